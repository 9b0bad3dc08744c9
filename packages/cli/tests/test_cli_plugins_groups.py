"""Commands of other distributions inside a group of ours: an entry point with a dot."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.testing import CliRunner

from rulvar.cli.external_commands import KNOWN
from rulvar.cli.main import main

if TYPE_CHECKING:
    import pytest


class Claim:
    def __init__(self, name: str) -> None:
        self.name = name
        self.distribution = "acme"


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    loaded: list[str] = []

    @click.command()
    def polish() -> None:
        """Polish a run."""
        click.echo("polished")

    def load(name: str) -> object:
        loaded.append(name)
        return polish if name.endswith("polish") else "no command"

    monkeypatch.setattr("rulvar.core.plugins.installed_commands", lambda: tuple(map(Claim, names)))
    monkeypatch.setattr("rulvar.core.plugins.load_command", load)
    return loaded


def test_a_dot_puts_a_command_into_our_group(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = install(monkeypatch, "runs.polish", "shine")
    result = CliRunner().invoke(main, ("runs", "polish"))
    assert (result.exit_code, result.output) == (0, "polished\n")
    assert loaded == ["runs.polish"]
    assert CliRunner().invoke(main, ("polish",)).exit_code == 2
    assert CliRunner().invoke(main, ("runs", "shine")).exit_code == 2


def test_help_shows_it_below_ours_and_a_broken_one_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "runs.polish", "runs.rust")
    lines = CliRunner().invoke(main, ("runs", "--help")).output.splitlines()
    (shown,) = [line for line in lines if line.split()[:1] == ["polish"]]
    assert shown.endswith("Polish a run.")
    (broken,) = [line for line in lines if line.split()[:1] == ["rust"]]
    assert "(broken: the command 'rust' is of type str, not click.Command" in broken
    assert lines.index(shown) > next(i for i, line in enumerate(lines) if line.startswith("  ls"))


def test_a_name_of_ours_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = install(monkeypatch, "runs.ls")
    assert "List runs" in CliRunner().invoke(main, ("runs", "ls", "--help")).output
    assert loaded == []


def test_a_command_that_is_not_installed_names_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    monkeypatch.setattr("rulvar.core.plugins.find_spec", lambda _name: None)
    for name, distribution in KNOWN.items():
        result = CliRunner().invoke(main, (*name.split("."), "--help"))
        assert result.exit_code == 2
        told = f"No such command {name.rpartition('.')[2]!r}; it is part of {distribution}"
        assert f"{told}: pip install {distribution}" in result.stderr
    misplaced = CliRunner().invoke(main, ("repair-file",)).stderr
    assert (
        "'repair-file' here: it is `rulvar runs repair-file`; it is part of rulvar-store-file"
        in misplaced
    )
    assert "pip install rulvar-store-file" in misplaced
    misplaced = CliRunner().invoke(main, ("runs", "soak")).stderr
    assert "'soak' here: it is `rulvar soak`; it is part of rulvar-conformance" in misplaced
    json_text = CliRunner().invoke(main, ("certify", "--json")).stdout
    assert "pip install rulvar-conformance" in json.loads(json_text)["error"]["message"]
    assert "No such command 'other'." in CliRunner().invoke(main, ("other",)).stderr


def test_one_that_is_here_without_its_metadata_is_not_to_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    # The kit need not be installed beside the command: this test says that its package is.
    monkeypatch.setattr("rulvar.core.plugins.find_spec", lambda _name: object())
    told = CliRunner().invoke(main, ("certify",)).stderr
    assert "rulvar.conformance is here, and the metadata of rulvar-conformance" in told
    assert "pip install" not in told


def test_an_installed_one_is_only_put_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "runs.repair-file")
    told = CliRunner().invoke(main, ("repair-file",)).stderr
    assert "it is `rulvar runs repair-file`" in told
    assert "pip install" not in told


def test_the_known_commands_are_those_of_this_repositorys_distributions() -> None:
    members = Path(__file__).resolve().parents[2]
    found = {
        name: project["name"]
        for file in members.glob("*/pyproject.toml")
        for project in [tomllib.loads(file.read_text(encoding="utf-8"))["project"]]
        for name in project.get("entry-points", {}).get("rulvar.commands", ())
    }
    assert found == KNOWN
