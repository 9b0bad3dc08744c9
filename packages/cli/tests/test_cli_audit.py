"""`rulvar runs audit` and `rulvar runs source`: what they say, write, and answer to the shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from cli_command import document, rulvar

from rulvar.cli.commands import audit
from rulvar.core.plugins import open_stores
from rulvar.core.records import JournalRecord, RunFilter, RunMeta

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.stores import Stores

FLOWS = """
from rulvar.core import workflow

@workflow
async def greet(ctx):
    name = await ctx.step("name", lambda: "you")
    return f"hello {name}"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a workflow and settings the current one."""
    (tmp_path / "cli_audit_flows.py").write_text(FLOWS, encoding="utf-8")
    settings = '[tool.rulvar]\nstore = "sqlite:///runs.db"\napp = "cli_audit_flows"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_audit_flows", raising=False)
    return tmp_path


def verdicts(*args: str, status: int = 0) -> dict[str, int]:
    counts = cast("dict[str, int]", document("runs", "audit", *args, status=status)["verdicts"])
    return {verdict: count for verdict, count in counts.items() if count}


def store() -> Stores:
    return open_stores("sqlite:///runs.db")


def row_of(run_id: str) -> RunMeta:
    with store() as stores:
        return next(row for row in stores.journal.list_runs(RunFilter()) if row.run_id == run_id)


def set_row(run_id: str, **changed: object) -> None:
    row = row_of(run_id)
    with store() as stores:
        stores.journal.put_meta(replace(row, **changed))  # type: ignore[arg-type]


def strand(run_id: str) -> None:
    """Leave a terminal row over a journal that goes on."""
    begins = b'{"hashVersion":102,"seq":0,"kind":"decision","status":"ok","value":'
    begins += b'{"decisionType":"run_start","workflow":"greet","genesis":"g"}}'
    works = b'{"hashVersion":102,"seq":1,"kind":"step","status":"running","key":"s"}'
    with store() as stores:
        for seq, payload in enumerate((begins, works)):
            stores.journal.append(run_id, JournalRecord(seq=seq, payload=payload))
        stores.journal.put_meta(RunMeta(run_id=run_id, status="ok", updated_at="then"))


@pytest.mark.usefixtures("project")
def test_a_sound_catalogue_is_status_0() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    assert rulvar("runs", "audit").stdout == "1 run: 1 consistent\n"
    assert verdicts() == {"consistent": 1}


@pytest.mark.usefixtures("project")
def test_divergence_is_status_1_until_it_is_repaired() -> None:
    for run_id in ("g1", "g2"):
        rulvar("run", "greet", "--run-id", run_id)
    before = row_of("g1")
    set_row("g1", status="running")
    strand("s1")
    text = rulvar("runs", "audit", status=1).stdout
    assert re.search(r"g1 +meta-behind +running +ok +the row says 'running'", text)
    assert re.search(r"s1 +stranded +ok ", text)
    assert text.endswith("3 runs: 1 consistent, 1 meta-behind, 1 stranded\n")

    plan = rulvar("runs", "audit", "--repair", "--dry-run", status=1).stdout
    assert re.search(r"g1 +meta-behind +running -> ok", plan)
    assert re.search(r"s1 +stranded +ok -> running", plan)
    assert rulvar("runs", "audit", "--dry-run", status=1).stdout == plan
    assert row_of("g1").status == "running"

    applied = rulvar("runs", "audit", "--repair").stdout
    assert applied.startswith(plan.rstrip("\n"))  # the plan comes first
    assert re.search(r"g1 +repaired +consistent", applied)
    assert applied.endswith("3 runs: 3 consistent\n")
    assert row_of("g1") == before
    assert row_of("s1").status == "running"
    assert "nothing to repair" in rulvar("runs", "audit", "--repair").stdout


@pytest.mark.usefixtures("project")
def test_what_is_only_reported_stays_status_1() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    with store() as stores:
        stores.journal.append("lost", JournalRecord(seq=0, payload=b'{"seq":0}'))
    found = document("runs", "audit", "--repair", status=1)
    assert found["plan"] == found["repairs"] == []
    (lost,) = cast("list[dict[str, object]]", found["findings"])
    assert (lost["run_id"], lost["verdict"], lost["row_status"]) == ("lost", "suspect", None)


@pytest.mark.usefixtures("project")
def test_a_held_run_is_owned_skipped_and_named_and_no_divergence() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    set_row("g1", status="running")
    with store() as stores:
        stores.journal.acquire("g1", "worker-7")  # type: ignore[attr-defined]
    text = rulvar("runs", "audit", "--repair").stdout
    assert re.search(r"g1 +owned .*held by worker-7, epoch 2", text)
    assert "nothing to repair" in text
    assert row_of("g1").status == "running"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_run_taken_between_plan_and_repair_is_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    rulvar("run", "greet", "--run-id", "g1")
    set_row("g1", status="running")
    apply = audit._apply

    def taken_first(*args: object) -> None:
        with store() as stores:
            stores.journal.acquire("g1", "worker-7")  # type: ignore[attr-defined]
        apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(audit, "_apply", taken_first)
    if as_json:
        told = document("runs", "audit", "--repair")["repairs"]
        (repair,) = cast("list[dict[str, object]]", told)
        assert (repair["outcome"], repair["after"]) == ("skipped", "owned")
        assert "worker-7" in cast("str", repair["why"])
    else:
        text = rulvar("runs", "audit", "--repair").stdout.partition("Repairs")[2]
        assert re.search(r"g1 +skipped +owned .*worker-7", text)
    assert row_of("g1").status == "running"


@pytest.mark.usefixtures("project")
def test_runs_are_chosen_by_name_and_status() -> None:
    for run_id in ("g1", "g2"):
        rulvar("run", "greet", "--run-id", run_id)
    set_row("g1", status="running")
    assert verdicts("g2") == {"consistent": 1}
    assert verdicts("--status", "running", status=1) == {"meta-behind": 1}
    assert verdicts("--status", "ok") == {"consistent": 1}
    named = cast("list[dict[str, object]]", document("runs", "audit", "g2")["findings"])
    assert [found["run_id"] for found in named] == ["g2"]
    assert "there is no run 'nope'" in rulvar("runs", "audit", "nope", status=2).stderr


@pytest.mark.usefixtures("project")
def test_blobs_are_listed_and_a_lost_one_is_status_1() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    with store() as stores:
        stores.transcripts.put("g1/left", b"x" * 2048)
    text = rulvar("runs", "audit").stdout
    assert re.search(r"g1/left +orphan +2.0 KiB", text)
    with store() as stores:
        stores.transcripts.delete("g1/source")
    text = rulvar("runs", "audit", status=1).stdout
    assert re.search(r"g1/source +missing +source", text)
    assert "1 run: 1 consistent" in text
    rulvar("runs", "source", "g1", status=2)


@pytest.mark.slow
def test_an_audit_changes_no_byte_of_the_file_or_its_log(project: Path) -> None:
    """Left by a killed writer, with the last run still in the log; the audit closes it last."""
    rulvar("run", "greet", "--run-id", "g1")
    dies = (
        "import os, signal\n"
        "from rulvar.core import open_stores\n"
        "from rulvar.core.records import RunMeta\n"
        "stores = open_stores('sqlite:///runs.db')\n"
        "stores.journal.put_meta(RunMeta(run_id='late', status='ok', updated_at='-'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", dies], check=False, timeout=60)
    kept = [project / "runs.db", project / "runs.db-wal"]
    before = [path.read_bytes() for path in kept]
    assert before[1]
    for args in (("runs", "audit"), ("runs", "ls"), ("runs", "show", "g1"), ("fencing", "check")):
        command = [sys.executable, "-m", "rulvar.cli", *args]
        done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
        assert done.stdout
        assert [path.read_bytes() for path in kept] == before, args


@pytest.mark.slow
def test_the_kept_source_is_shown_and_compared_with_the_present_one(project: Path) -> None:
    rulvar("run", "greet", "--run-id", "g1")
    shown = rulvar("runs", "source", "g1").stdout
    assert "async def greet(ctx):" in shown
    assert 'return f"hello {name}"' in shown
    same = rulvar("runs", "source", "g1", "--diff")
    assert same.stdout == ""
    assert "has not changed since" in same.stderr

    flows = project / "cli_audit_flows.py"
    flows.write_text(FLOWS.replace("hello", "good day,"), encoding="utf-8")
    command = [sys.executable, "-m", "rulvar.cli", "runs", "source", "g1", "--diff"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["--- greet when run g1 started", "+++ greet now"]
    assert '-    return f"hello {name}"' in lines
    assert '+    return f"good day, {name}"' in lines
    as_json = json.loads(
        subprocess.run([*command, "--json"], check=True, timeout=60, capture_output=True).stdout
    )
    assert as_json["diff"] == done.stdout
    assert as_json["source"] == shown
    assert as_json["workflow_hash"] != as_json["present_hash"]


@pytest.mark.usefixtures("project")
def test_a_source_that_is_not_to_be_had_is_status_2() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    assert "there is no run 'nope'" in rulvar("runs", "source", "nope", status=2).stderr
    set_row("g1", workflow_name="other")
    wrong = rulvar("runs", "source", "g1", "--diff", status=2).stderr
    assert "is of workflow 'other'" in wrong
    set_row("g1", workflow_source_ref=None)
    assert "has no stored source" in rulvar("runs", "source", "g1", status=2).stderr


@pytest.mark.usefixtures("project")
def test_a_kept_source_cannot_move_the_cursor() -> None:
    rulvar("run", "greet", "--run-id", "g1")
    with store() as stores:
        stores.transcripts.put("g1/source", b"a\tb\x1b[2J\nc\n")
    assert rulvar("runs", "source", "g1").stdout == "a\tb\\x1b[2J\nc\n"
