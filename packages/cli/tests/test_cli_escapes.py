"""Nothing that stands in a store or is raised reaches the terminal but as text that is seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from rulvar.cli.main import main
from rulvar.core import open_stores
from rulvar.core.capabilities import has_lease_admin
from rulvar.core.records import JournalRecord, RunMeta

if TYPE_CHECKING:
    from pathlib import Path

BAD = "\x1b[2J\x1b]0;pwn\x07\r\nFAKE ROW ok \x9b31m\x85\u202egnp\u2066\u200b\u2028line\u2029\ufeff"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}

FLOWS = f"""
import logging, warnings
from rulvar.core import workflow

BAD = {BAD!r}

@workflow
async def returns(ctx):
    return {{"text": BAD}}

@workflow
async def raises(ctx):
    def fail():
        raise ValueError(BAD)
    await ctx.step("fail", fail)

@workflow
async def tells(ctx):
    warnings.warn(BAD)
    logging.getLogger("rulvar.mine").warning("said: %s", BAD)
    raise LookupError(BAD)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_escapes_flows.py").write_text(FLOWS, encoding="utf-8")
    settings = '[tool.rulvar]\nstore = "sqlite:///runs.db"\napp = "cli_escapes_flows"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_escapes_flows", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    return tmp_path


def entries() -> list[dict[str, object]]:
    base = {"hashVersion": 102, "scope": "", "key": "", "ordinal": 0}
    start = {"decisionType": "run_start", "workflow": "w" + BAD, "genesis": BAD}
    settle = {"decisionType": "run_settle", "runStatus": "ok", "segment": 1, "result": BAD}
    error = {"code": BAD, "message": BAD, "type": BAD}
    return [
        base | each
        for each in (
            {"kind": "decision", "status": "ok", "value": start | {"args": BAD}, "startedAt": BAD},
            {"kind": "step", "status": "running", "key": BAD, "scope": BAD, "startedAt": BAD},
            {"kind": "step", "status": "error", "key": BAD, "ref": 1, "error": error},
            {"kind": "external", "status": "suspended", "key": BAD, "deadlineAt": BAD},
            {"kind": "decision", "status": "ok", "value": settle, "error": error, "endedAt": BAD},
        )
    ]


def filled() -> None:
    """A store in which another writer, or a hand, has put what it liked."""
    with open_stores("sqlite:///runs.db") as stores:
        journal, blobs = stores.journal, stores.transcripts
        for run_id in ("plain", "r\u202egnp.exe"):
            for seq, entry in enumerate(entries()):
                payload = json.dumps(entry | {"seq": seq}).encode()
                journal.append(run_id, JournalRecord(seq=seq, payload=payload))
            source = f"{run_id}/source\u202e"
            blobs.put(source, f'def f():\n\treturn "{BAD}"\n'.encode())
            journal.put_meta(
                RunMeta(
                    run_id=run_id,
                    status="error",
                    updated_at=BAD,
                    name=BAD,
                    tags=(BAD,),
                    workflow_name="w" + BAD,
                    workflow_hash=BAD,
                    workflow_source_ref=source,
                    genesis=BAD,
                    wake_at=BAD,
                )
            )
        assert has_lease_admin(journal)
        journal.seize("plain", "own\u202eer")


COMMANDS = [
    ["runs", "ls"],
    ["runs", "ls", "--tag", BAD],
    ["runs", "show", "plain"],
    ["runs", "show", "r\u202egnp.exe"],
    ["runs", "show", f"none{BAD}"],
    ["runs", "audit"],
    ["runs", "audit", "--repair"],
    ["runs", "source", "r\u202egnp.exe"],
    ["runs", "source", "r\u202egnp.exe", "--diff"],
    ["runs", "prune", "r\u202egnp.exe", "plain"],
    ["runs", "retain", "--older-than", "0s", "--status", "error"],
    ["runs", "rm", "r\u202egnp.exe", "plain", "--yes"],
    ["runs", "take-over", "plain", "--yes"],
    ["runs", "repair-file", "--store", f"file:///none{BAD}"],
    ["resume", "r\u202egnp.exe"],
    ["cancel", "r\u202egnp.exe"],
    ["resolve", "r\u202egnp.exe", BAD, "1"],
    ["run", "returns"],
    ["run", "raises"],
    ["run", BAD],
    ["run", "returns", f"--{BAD}"],
    [BAD],
    ["worker", "--until-idle"],
    ["fencing", "check"],
    ["store", "copy", "sqlite:///runs.db", "sqlite:///other.db"],
]


def hidden(text: str) -> set[str]:
    shown = COLOUR.sub("", text)
    return {each for each in shown if unicodedata.category(each) in HIDDEN} - {"\n", "\t"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: ascii(" ".join(command[:3])))
@pytest.mark.parametrize("option", [[], ["--json"], ["--debug"]], ids=" ".join)
def test_what_is_not_seen_is_not_printed(command: list[str], option: list[str]) -> None:
    filled()
    result = CliRunner().invoke(main, [*command, *option])
    assert hidden(result.stdout) == set(), command
    assert hidden(result.stderr) == set(), command
    text = COLOUR.sub("", result.stdout + result.stderr)
    if "--debug" not in option and "source" not in command:  # those have lines
        assert not any(line.startswith("FAKE ROW") for line in text.splitlines())
    if "--json" in option and result.stdout:
        for line in result.stdout.splitlines() if command[0] == "worker" else [result.stdout]:
            json.loads(line)


def test_a_usage_error_begins_no_line_whatever_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the oldest click that is admitted words them, and as another's command may."""

    @click.command()
    def fail() -> None:
        message = f"there is no {BAD}"
        raise click.UsageError(message)

    monkeypatch.setitem(main.commands, "fail", fail)
    result = CliRunner().invoke(main, ["fail"])
    assert result.exit_code == 2
    assert r"\r\nFAKE ROW" in result.stderr
    assert not any(line.startswith("FAKE ROW") for line in result.stderr.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("workflow", ["raises", "tells", "returns"])
def test_a_process_of_its_own_tells_no_more(project: Path, workflow: str) -> None:
    """What others print for us too: warnings, the log, the traceback of a step."""
    done = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", "run", workflow, "--debug"],
        cwd=project,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert hidden(out) == hidden(err) == set()
    assert done.returncode == (0 if workflow == "returns" else 1)
    if workflow == "returns":
        assert json.loads(out) == {"text": BAD}, "the result is the same value"
    else:
        assert r"\x1b]0;pwn" in err
