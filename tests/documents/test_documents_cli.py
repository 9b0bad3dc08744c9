"""The page of the command line is the commands' own help."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_page_of_the_command_line_is_up_to_date() -> None:
    script = ROOT / "scripts" / "gen_cli_docs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_page_has_every_command_that_a_distribution_of_this_repository_adds() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    projects = [
        tomllib.loads(path.read_text("utf-8"))["project"]
        for path in ROOT.glob("packages/*/pyproject.toml")
    ]
    sections = {
        f"### rulvar {name.replace('.', ' ')}\n": project["name"]
        for project in projects
        for name in project.get("entry-points", {}).get("rulvar.commands", {})
    }
    assert sections
    for head, distribution in sections.items():
        assert head in page
        assert f"From `{distribution}`." in page.partition(head)[2].partition("\n###")[0]
