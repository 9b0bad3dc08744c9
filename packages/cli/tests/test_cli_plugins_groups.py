"""Commands of other distributions inside a group of ours: an entry point with a dot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.testing import CliRunner

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
    assert "(broken: the command 'rust' is no click.Command" in broken
    assert lines.index(shown) > next(i for i, line in enumerate(lines) if line.startswith("  ls"))


def test_a_name_of_ours_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = install(monkeypatch, "runs.ls")
    assert "List runs" in CliRunner().invoke(main, ("runs", "ls", "--help")).output
    assert loaded == []
