"""The lazy group: help, versions, commands of other distributions, and how errors end."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from cli_command import rulvar
from click.testing import CliRunner

from rulvar.cli.external_commands import OpenGroup
from rulvar.cli.main import BUILT_IN, main
from rulvar.cli.options import output_options

if TYPE_CHECKING:
    from pathlib import Path


WORKING = """
import click

@click.command()
@click.pass_context
def greet(context):
    '''Say hello.'''
    click.echo("hello")
    context.exit(4)

@click.command()
def shadow():
    click.echo("not ours")

class Helpless(click.Command):
    def get_short_help_str(self, limit=45):
        raise LookupError("no help here")

helpless = Helpless("helpless")
number = 7
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution that offers commands: good, broken, and one that is taken."""
    (tmp_path / "acme_rulvar_commands.py").write_text(WORKING, encoding="utf-8")
    (tmp_path / "acme_rulvar_script.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    info = tmp_path / "acme_tools-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[rulvar.commands]\n"
        "greet = acme_rulvar_commands:greet\n"
        "run = acme_rulvar_commands:shadow\n"
        "broken = acme_rulvar_missing:command\n"
        "number = acme_rulvar_commands:number\n"
        "helpless = acme_rulvar_commands:helpless\n"
        "script = acme_rulvar_script:main\n"
        "runs.script = acme_rulvar_script:main\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_rulvar_commands", raising=False)


def test_the_table_of_summaries_says_what_the_commands_say() -> None:
    context = click.Context(main)
    for name, built_in in BUILT_IN.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        first = (command.help or "").partition("\n\n")[0]
        assert " ".join(first.split()) == built_in.summary


def test_a_group_lists_each_command_with_its_whole_sentence() -> None:
    listed = " ".join(rulvar("runs", "--help").output.split())
    runs = main.get_command(click.Context(main), "runs")
    assert isinstance(runs, OpenGroup)
    context = click.Context(runs)
    assert len(runs.own_commands()) >= 9
    for name in runs.own_commands():
        command = runs.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert f"{name} {' '.join((command.help or '').partition('.')[0].split())}." in listed


def walk(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    found = [(name, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            child = command.get_command(context, each)
            assert child is not None
            found += walk(child, f"{name} {each}")
    return found


def test_every_command_has_examples_and_the_output_options() -> None:
    for name, command in walk(main, "rulvar"):
        assert "Examples:\n" in (command.help or ""), name
        names = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--debug"} <= names, name
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert all(each.help for each in options), name


@pytest.mark.slow
def test_help_imports_neither_the_engine_nor_a_store() -> None:
    code = (
        "import sys\n"
        "from rulvar.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = ('rulvar.core.engine', 'rulvar.stores', 'rich', 'asyncio')\n"
        "found = {name for name in sys.modules if name.startswith(heavy)}\n"
        # Where the file store is installed too, its command is listed, and not the store.
        "found -= {'rulvar.stores', 'rulvar.stores.file', 'rulvar.stores.file.command'}\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_versions_are_shown_by_command_and_by_flag() -> None:
    assert rulvar("version").stdout == rulvar("--version").stdout
    versions = json.loads(rulvar("version", "--json").stdout)["versions"]
    assert json.loads(rulvar("--json", "--version").stdout)["versions"] == versions
    assert set(versions) == {"rulvar-cli", "rulvar-core", "python"}


def test_the_installed_stores_are_listed() -> None:
    listed = json.loads(rulvar("stores", "--json").stdout)["stores"]
    by_scheme = {each["scheme"]: each for each in listed}
    assert by_scheme["memory"]["distribution"] == "rulvar-core"
    assert by_scheme["sqlite"]["distribution"] == "rulvar-store-sqlite"
    assert list(by_scheme["sqlite"]) == ["scheme", "distribution", "version", "value", "problem"]
    assert "sqlite://" in rulvar("stores").stdout


# --- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("nope",), ("runs", "show"), ("run", "--nope")])
def test_wrong_usage_is_status_2_also_as_json(args: tuple[str, ...]) -> None:
    assert "Usage: rulvar" in rulvar(*args, status=2).stderr
    error = json.loads(rulvar(*args, "--json", status=2).stdout)["error"]
    assert error["code"] == "usage"
    assert error["message"]


def test_json_is_asked_for_before_or_after_the_command() -> None:
    assert json.loads(rulvar("--json", "stores").stdout) == json.loads(
        rulvar("stores", "--json").stdout
    )


def test_an_unexpected_exception_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("rulvar.cli.commands.stores.installed_stores", boom)
    result = rulvar("stores", status=70)
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr


# --- commands of other distributions --------------------------------------------------------


@pytest.mark.usefixtures("acme")
def test_another_distributions_command_runs_with_its_own_status() -> None:
    result = rulvar("greet", status=4)
    assert result.stdout == "hello\n"


@pytest.mark.usefixtures("acme")
def test_a_broken_command_stops_nothing_but_itself() -> None:
    shown = rulvar("--help").stdout
    assert "Commands of other distributions:" in shown
    assert "Say hello." in shown
    assert shown.count("(broken: ") == 4
    assert "(broken: LookupError: no help here)" in shown
    assert "SystemExit: 3" in shown
    assert "SystemExit: 3" in rulvar("runs", "--help").stdout
    assert "List runs" in rulvar("runs", "--help").stdout
    assert "acme_rulvar_script" in rulvar("script", status=2).stderr
    assert "acme-tools" in shown
    rulvar("version")
    assert "acme_rulvar_missing" in rulvar("broken", status=2).stderr
    error = json.loads(rulvar("number", "--json", status=2).stdout)["error"]
    assert (error["code"], error["name"]) == ("plugin", "number")
    assert "is of type int, not click.Command" in error["message"]


@pytest.mark.usefixtures("acme")
def test_a_command_of_ours_cannot_be_taken() -> None:
    result = rulvar("--help")
    assert "acme-tools offers a command 'run', which is rulvar's own: ignored" in result.stderr
    assert "Start a run of WORKFLOW" in rulvar("run", "--help").stdout
    names = main.list_commands(click.Context(main))
    assert names.count("run") == 1


@pytest.mark.usefixtures("acme")
def test_a_foreign_command_is_imported_only_when_it_is_called() -> None:
    rulvar("stores")
    assert "acme_rulvar_commands" not in sys.modules
    rulvar("greet", status=4)
    assert "acme_rulvar_commands" in sys.modules


def test_another_distributions_command_may_use_our_options() -> None:
    @click.command()
    @output_options
    @click.pass_context
    def status(context: click.Context) -> None:
        click.echo(str(context.obj.json))

    assert CliRunner().invoke(status, ["--json"]).stdout == "True\n"
