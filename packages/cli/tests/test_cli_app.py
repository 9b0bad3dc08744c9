"""Loading workflows: by module, by attribute, and what is said when that does not work."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rulvar.cli.app import load_workflows
from rulvar.cli.config import Setting
from rulvar.cli.main import main
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

TWO = """
from rulvar.core import workflow

@workflow
async def first(ctx): ...

@workflow(name="second")
async def other(ctx): ...

again = first
both = [other, first]
one_and_more = (first, len)
class Group:
    inner = other
number = 7
"""

_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """Write a module of a fresh name and load ``{module}<what>`` from it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write_and_load(source: str, what: str) -> list[str]:
        module = f"cli_app_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        found = load_workflows([Setting(f"{module}{what}", tmp_path)])
        assert sys.path[0] == str(tmp_path)
        return [each.name for each in found]

    return write_and_load


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("", ["first", "second"]),
        (":first", ["first"]),
        (":both", ["second", "first"]),
        (":Group.inner", ["second"]),
    ],
)
def test_a_module_or_an_attribute_names_workflows(
    load: Callable[[str, str], list[str]], what: str, names: list[str]
) -> None:
    assert load(TWO, what) == names


@pytest.mark.parametrize(
    ("source", "what", "complaint"),
    [
        (TWO, ":nope", "has no attribute 'nope'"),
        (TWO, ":number", "a value of type int"),
        (TWO, ":one_and_more", "the builtin_function_or_method 'len'"),
        (TWO, ":", "must be MODULE or MODULE:ATTR"),
        ("x = 1", "", "holds no workflow"),
        ("x = []", ":x", "holds no workflow"),
        ("import cli_app_missing", "", "No module named 'cli_app_missing'"),
        ("\n1 / 0", "", r"ZeroDivisionError: division by zero \(.*cli_app_\d+\.py, line 2\)"),
        ("def", "", "SyntaxError"),
        ("import sys\nsys.exit(3)", "", r"SystemExit: 3 \(.*cli_app_\d+\.py, line 2\)"),
        (
            TWO + "\n@workflow(name='second')\nasync def third(ctx): ...",
            "",
            "two workflows named 'second'",
        ),
    ],
)
def test_what_is_wrong_with_an_app_is_named(
    load: Callable[[str, str], list[str]], source: str, what: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(source, what)


@pytest.mark.parametrize("app", ["../flows", ".flows", ":flow", "flows:"])
def test_a_path_is_no_module(app: str) -> None:
    with pytest.raises(ConfigError, match="must be MODULE or MODULE:ATTR"):
        load_workflows([Setting(app, Path.cwd())])


def test_a_missing_module_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match="no module 'cli_app_nowhere'") as caught:
        load_workflows([Setting("cli_app_nowhere.inner:flow", tmp_path)])
    assert str(tmp_path) in str(caught.value)


def test_a_folder_that_is_on_the_path_already_is_not_added_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    before = list(sys.path)
    with pytest.raises(ConfigError, match="holds no workflow"):
        load_workflows([Setting("json", Path.cwd())])
    assert sys.path == before


def test_several_apps_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[str, str], list[str]]
) -> None:
    del load  # it leaves sys.path and sys.modules as they were
    body = "from rulvar.core import workflow\n@workflow\nasync def {}(ctx): return {!r}\n"
    for name in ("one", "two"):
        (tmp_path / f"cli_apps_{name}.py").write_text(body.format(name, name), encoding="utf-8")
    again = "from cli_apps_one import one\n"
    (tmp_path / "cli_apps_again.py").write_text(again, encoding="utf-8")
    (tmp_path / "cli_apps_rival.py").write_text(body.format("one", "x"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    store = ("--store", "sqlite:///runs.db")

    def rulvar(*args: str, env: str | None = None) -> tuple[int, str, str]:
        result = CliRunner(env={"RULVAR_APP": env}).invoke(main, args)
        return result.exit_code, result.stdout, result.stderr

    apps = ("--app", "cli_apps_one", "--app", "cli_apps_two", "--app", "cli_apps_again:one")
    for name in ("one", "two"):
        assert rulvar("run", name, *apps, *store, "--run-id", name)[:2] == (0, f'"{name}"\n')
        assert rulvar("resume", name, *apps, *store)[0] == 0
        assert rulvar("runs", "source", name, "--diff", *apps, *store)[0] == 0
        assert rulvar("run", name, *store, env="cli_apps_one cli_apps_two")[0] == 0
    _, said, _ = rulvar("worker", "--until-idle", *apps, *store)
    assert "ready for one, two" in said
    status, _, said = rulvar("run", "one", *apps, "--app", "cli_apps_rival", *store)
    assert status == 2
    assert "'cli_apps_one' and 'cli_apps_rival': two workflows named 'one'" in said
    status, _, said = rulvar("run", "three", *apps, *store)
    assert "it has one, two" in said
