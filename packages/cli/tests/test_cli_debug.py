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
import json
from rulvar.core import workflow

def deep():
    raise ValueError("the reason")

@workflow
async def in_a_step(ctx):
    await ctx.step("deep", deep)

@workflow
async def in_the_body(ctx):
    deep()

@workflow
async def in_a_library(ctx):
    json.loads("{")

@workflow
async def after_a_word(ctx):
    await ctx.await_external("go")
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


def line_of(text: str) -> int:
    return FLOWS.splitlines().index(text) + 1


@pytest.mark.parametrize(
    ("workflow", "line", "what"),
    [
        ("in_a_step", '    raise ValueError("the reason")', "the failed steps"),
        ("in_the_body", '    raise ValueError("the reason")', "the workflow"),
        ("in_a_library", '    json.loads("{")', "the workflow"),
    ],
)
def test_a_failed_run_says_where_and_what_runs_again(
    tmp_path: Path, workflow: str, line: str, what: str
) -> None:
    told = run(workflow, "--run-id", "a run").stderr
    assert f"  raised at {tmp_path / 'cli_debug_flows.py'}:{line_of(line)}\n" in told
    again = f"to retry {what} and see the traceback: "
    again += "rulvar resume 'a run' --retry --debug\n"
    assert f"  {again}" in told
    assert told.count("to retry ") == 1
    shown = CliRunner().invoke(main, ["runs", "show", "a run"]).stdout
    assert again in shown
    # The recorded outcome has no line; the same hint stands.
    result = CliRunner().invoke(main, ["resume", "a run"])
    assert "raised at" not in result.stderr
    assert again in result.stderr
    debugged = CliRunner().invoke(main, ["resume", "a run", "--retry", "--debug"])
    assert "Traceback" in debugged.stderr


def test_a_worker_says_where_too(tmp_path: Path) -> None:
    began = CliRunner().invoke(main, ["run", "after_a_word", "--run-id", "w"])
    assert began.exit_code == 6, began.output
    CliRunner().invoke(main, ["resolve", "w", "go", "1"])
    told = CliRunner().invoke(main, ["worker", "--until-idle"]).stdout
    assert f"run w: settled (error, {tmp_path / 'cli_debug_flows.py'}:" in told
