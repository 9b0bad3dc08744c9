"""Commands of others that raise whatever they like: the help is there all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

AT_IMPORT = {
    "leaves": "raise SystemExit(0)",
    "interrupts": "raise KeyboardInterrupt",
    "cancels": "import asyncio\nraise asyncio.CancelledError",
    "exits": "raise GeneratorExit('gone')",
    "fails": "raise ValueError('\\x1b[2J')",
}
IN_ITS_HELP = """
import click

class Odd(click.Command):
    def get_short_help_str(self, limit=45):
        raise SystemExit(0)

main = Odd("odd", callback=lambda: None)
"""


def rulvar(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rulvar.cli", *args],
        env=os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    modules = AT_IMPORT | {"odd": IN_ITS_HELP}
    lines = ["[rulvar.commands]"]
    for name, source in modules.items():
        (tmp_path / f"{name}_command.py").write_text(source, encoding="utf-8")
        lines += [f"{name} = {name}_command:main", f"runs.{name} = {name}_command:main"]
    info = tmp_path / "acme-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("group", [(), ("runs",)])
def test_the_help_shows_them_as_broken(site: Path, group: tuple[str, ...]) -> None:
    done = rulvar(site, *group, "--help")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if "(broken:" in line}
    assert lines.keys() == {*AT_IMPORT, "odd"}
    assert "acme 1.2" in lines["leaves"]
    assert "SystemExit" in lines["odd"]
    assert "\x1b" not in done.stdout


def test_called_by_name_they_are_an_error_of_their_own(site: Path) -> None:
    for name in AT_IMPORT:
        done = rulvar(site, name)
        assert done.returncode == 2, (name, done.stderr)
        assert "cannot be loaded" in done.stderr
        assert "acme 1.2" in done.stderr


@pytest.mark.parametrize("source", [AT_IMPORT["interrupts"], AT_IMPORT["cancels"]])
def test_an_app_that_raises_so_is_named(site: Path, source: str) -> None:
    (site / "odd_app.py").write_text(source, encoding="utf-8")
    done = rulvar(site, "run", "x", "--app", "odd_app", "--store", "sqlite:///runs.db")
    assert done.returncode == 2, done.stderr
    assert "app 'odd_app' cannot be imported" in done.stderr
