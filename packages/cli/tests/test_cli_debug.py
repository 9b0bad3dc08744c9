"""`--debug` shows where a body failed: the journal keeps the text of an error alone."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rulvar.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

FLOWS = """
from rulvar.core import workflow

def deep():
    raise ValueError("the reason")

@workflow
async def in_a_step(ctx):
    await ctx.step("deep", deep)

@workflow
async def in_the_body(ctx):
    deep()
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_debug_flows.py").write_text(FLOWS, encoding="utf-8")
    settings = '[tool.rulvar]\nstore = "sqlite:///runs.db"\napp = "cli_debug_flows"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_debug_flows", raising=False)


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["run", *args])
    assert result.exit_code == 1, result.output
    return result


@pytest.mark.parametrize("workflow", ["in_a_step", "in_the_body"])
def test_the_lines_of_the_body_are_shown_under_debug_and_only_there(workflow: str) -> None:
    plain = run(workflow)
    assert "the reason" in plain.stderr
    assert "Traceback" not in plain.stderr
    debug = run(workflow, "--debug")
    assert "in deep" in debug.stderr
    assert "ValueError: the reason" in debug.stderr
    assert logging.getLogger("rulvar").handlers == []
