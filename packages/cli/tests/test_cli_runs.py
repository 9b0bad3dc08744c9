"""Running, resuming, answering, listing and showing runs, over a SQLite file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import apsw
import pytest
from cli_command import document, rulvar

from rulvar.core.fencing import assert_fenced_writes
from rulvar.core.journal import JournalEntry, encode_entry
from rulvar.core.plugins import open_stores
from rulvar.core.records import Blocked, JournalRecord

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.stores import Stores

FLOWS = """
import os
from rulvar.core import workflow

@workflow
async def count(ctx, args):
    return sum([await ctx.step(f"add {i}", lambda i=i: i) for i in range(args["n"])])

@workflow
async def approve(ctx):
    draft = await ctx.step("prepare", lambda: "draft")
    return [draft, await ctx.await_external("approval")]

@workflow
async def deliver(ctx):
    answer = await ctx.await_external("approval")
    return [answer, await ctx.step("ship", lambda: "shipped")]

@workflow(name="ask twice")
async def ask_twice(ctx):
    await ctx.await_external("the first one")

@workflow
async def fragile(ctx):
    def mend():
        if not os.path.exists("mended"):
            raise ValueError("broken \\x1b[31m")
        return "whole"
    return await ctx.step("mend", mend)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with workflows and settings the current one."""
    (tmp_path / "cli_test_flows.py").write_text(FLOWS, encoding="utf-8")
    settings = '[tool.rulvar]\nstore = "sqlite:///runs.db"\napp = "cli_test_flows"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_test_flows", raising=False)
    return tmp_path


def error_of(*args: str, status: int) -> dict[str, object]:
    return cast("dict[str, object]", document(*args, status=status)["error"])


# --- run and resume -----------------------------------------------------------------------


@pytest.mark.usefixtures("project")
def test_a_run_prints_its_result_alone_on_standard_output() -> None:
    result = rulvar("run", "count", "--args", '{"n": 4}', "--run-id", "c1")
    assert json.loads(result.stdout) == 6
    assert "run c1: ok" in result.stderr
    # The same again is the same run: nothing is executed.
    again = document("run", "count", "--args", '{"n": 4}', "--run-id", "c1")
    assert (again["status"], again["value"], again["executed"]) == ("ok", 6, 0)


@pytest.mark.usefixtures("project")
def test_arguments_come_from_standard_input_and_files(project: Path) -> None:
    (project / "args.json").write_text('{"n": 2}', encoding="utf-8")
    assert rulvar("run", "count", "--args", "@args.json").stdout == "1\n"
    assert rulvar("run", "count", "--args", "-", stdin='{"n": 3}').stdout == "3\n"


@pytest.mark.usefixtures("project")
@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("run", "nope"), "no workflow 'nope'"),
        (("run", "count"), "needs arguments"),
        (("run", "count", "--args", "{n: 2}"), "is not one JSON value"),
        (("run", "approve", "--run-id", "a/b"), "must not contain '/'"),
        (("run", "count", "--args", "1", "--store", "runs.db"), "is not a store URL"),
        (("run", "count", "--args", "1", "--store", "postgres:///x"), "install"),
        (("run", "count", "--args", "1", "--app", "missing"), "no module 'missing'"),
        (("resume", "nope"), "there is no file"),
        (("cancel", "nope"), "there is no file"),
        (("runs", "show", "nope"), "there is no file"),
        (("runs", "ls"), "there is no file"),
        (("runs", "audit"), "there is no file"),
        (("runs", "show", "nope", "--store", "memory://"), "no run 'nope'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_status_2(args: tuple[str, ...], complaint: str) -> None:
    result = rulvar(*args, status=2)
    assert result.stdout == ""
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in rulvar(*args, "--debug", status=2).stderr
    error = error_of(*args, status=2)
    assert complaint in cast("str", error["message"])
    assert error["code"] in {"config", "plugin"}


def test_a_failed_run_is_status_1_until_its_steps_are_run_again(project: Path) -> None:
    result = rulvar("run", "fragile", "--run-id", "f1", status=1)
    assert result.stdout == ""
    assert "step 'mend' failed: ValueError: broken \\x1b[31m" in result.stderr
    assert "--retry" in result.stderr
    outcome = document("resume", "f1", status=1)
    assert cast("dict[str, object]", outcome["error"])["step"] == "mend"
    (project / "mended").touch()
    assert rulvar("resume", "f1", "--retry").stdout == '"whole"\n'


@pytest.mark.usefixtures("project")
def test_a_run_is_said_to_have_begun_when_it_has() -> None:
    begun = "run c1: started\n"
    assert rulvar("run", "count", "--args", '{"n": 1}', "--run-id", "c1").stderr.startswith(begun)
    refused = rulvar("run", "count", "--args", '{"n": 2}', "--run-id", "c1", status=2)
    assert ": started" not in refused.stderr
    over = rulvar("run", "count", "--args", '{"n": 1}', "--run-id", "c1")
    assert ": started" not in over.stderr
    with open_stores("sqlite:///runs.db") as stores:
        assert_fenced_writes(stores).journal.acquire("c1", "elsewhere")
        held = rulvar("run", "count", "--args", '{"n": 1}', "--run-id", "c1", status=3)
    assert ": started" not in held.stderr
    assert held.stderr.rstrip().endswith("take it over with rulvar runs take-over c1")


@pytest.mark.usefixtures("project")
def test_commands_that_are_told_quote_what_a_shell_would_read() -> None:
    result = rulvar("run", "ask twice", "--run-id", "order 17", status=6)
    assert ": rulvar resolve 'order 17' 'the first one' JSON --seq 1\n" in result.stderr
    rulvar("run", "approve", "--run-id", "order 18", status=6)
    assert "--after 'order 17'\n" in rulvar("runs", "ls", "--limit", "1").stderr


@pytest.mark.usefixtures("project")
def test_a_cancelled_run_waits_for_nothing() -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    (waits,) = cast("list[object]", journal_of("a1")["waiting_for"])
    assert waits == {"kind": "external", "key": "approval", "deadline_at": None, "seq": 3}
    rulvar("cancel", "a1")
    assert journal_of("a1")["waiting_for"] == []
    assert "waits for" not in rulvar("runs", "show", "a1").stdout


def journal_of(run_id: str) -> dict[str, object]:
    return cast("dict[str, object]", document("runs", "show", run_id)["journal"])


@pytest.mark.usefixtures("project")
def test_a_suspended_run_is_status_6_and_goes_on_after_a_word() -> None:
    result = rulvar("run", "approve", "--run-id", "a1", status=6)
    assert "rulvar resolve a1 approval JSON --seq 3" in result.stderr
    assert "waits for  external approval (seq 3)" in rulvar("runs", "show", "a1").stdout
    outcome = document("resume", "a1", status=6)
    waiting = cast("list[dict[str, object]]", outcome["waiting_for"])
    assert [each["key"] for each in waiting] == ["approval"]
    early = error_of("resolve", "a1", "other", "1", status=2)
    assert (early["code"], early["retryable"]) == ("not-asked", True)
    assert document("resolve", "a1", "approval", '{"yes": true}', "--seq", "3")["resolved"] is True
    late = error_of("resolve", "a1", "approval", "1", "--seq", "3", status=2)
    assert late["code"] == "already-answered"
    assert document("resume", "a1")["value"] == ["draft", {"yes": True}]
    assert document("cancel", "a1") == {"run_id": "a1", "status": "ok", "cancelled": False}


@pytest.mark.usefixtures("project")
def test_a_cancelled_run_is_status_1() -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    assert "cancelled run a1" in rulvar("cancel", "a1").stdout
    assert document("resume", "a1", status=1)["status"] == "cancelled"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "command", [("resume", "a1"), ("cancel", "a1"), ("resolve", "a1", "k", "1")]
)
def test_a_run_that_somebody_holds_is_status_3(command: tuple[str, ...]) -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    with open_stores("sqlite:///runs.db") as stores:
        assert_fenced_writes(stores).journal.acquire("a1", "elsewhere")
        error = error_of(*command, status=3)
        page = cast("list[dict[str, object]]", document("runs", "ls")["runs"])
        text = rulvar("runs", "show", "a1").stdout
    assert (error["code"], error["reason"], error["holder"]) == ("lease-held", "held", "elsewhere")
    assert error["retryable"] is True
    holder = cast("dict[str, object]", page[0]["holder"])
    assert (holder["owner"], holder["epoch"], holder["live"]) == ("elsewhere", 2, True)
    assert "held by elsewhere, epoch 2" in text


def test_a_corrupt_store_is_status_5(project: Path) -> None:
    (project / "runs.db").write_bytes(b"this is no database, and it is long enough to tell" * 40)
    assert error_of("runs", "ls", status=5)["code"] == "store-corrupt"


# --- a worker -----------------------------------------------------------------------------


def test_a_worker_finishes_what_waits_and_says_so(project: Path) -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    rulvar("run", "fragile", "--run-id", "f1", status=1)
    rulvar("resolve", "a1", "approval", "1")
    text = rulvar("worker", "--until-idle").stdout
    assert "ready for count, approve, deliver, ask twice, fragile" in text
    assert "run a1: settled (ok, epoch " in text
    assert "stopped: 1 ok, 0 lost to another worker, 0 set aside" in text
    (project / "mended").touch()
    # A run that has ended is nothing to do for a worker.
    lines = rulvar("worker", "--until-idle", "--json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["worker.ready", "worker.ended"]


@pytest.mark.usefixtures("project")
@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_a_worker_warns_of_a_store_without_the_fence() -> None:
    result = rulvar("worker", "--until-idle", "--store", "memory://", "--json")
    assert "warning: not fenced: the journal store" in result.stderr
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == [
        "worker.ready",
        "worker.ended",
    ]


# --- listing and showing ------------------------------------------------------------------


@pytest.mark.usefixtures("project")
def test_listing_filters_and_pages() -> None:
    for number in range(3):
        run_id = f"c{number}"
        rulvar("run", "count", "--args", '{"n": 0}', "--run-id", run_id, "--tag", "nightly")
    rulvar("run", "approve", "--run-id", "a1", "--name", "first", "--tag", "nightly", status=6)

    def ids(*args: str) -> tuple[list[object], object]:
        found = document("runs", "ls", *args)
        page = cast("list[dict[str, object]]", found["runs"])
        return [row["run_id"] for row in page], found["next_after"]

    assert ids() == (["a1", "c0", "c1", "c2"], None)
    assert ids("--status", "suspended", "--status", "running") == (["a1"], None)
    assert ids("--tag", "nightly", "--name", "first") == (["a1"], None)
    assert ids("--limit", "2") == (["a1", "c0"], "c0")
    assert ids("--limit", "2", "--after", "c0") == (["c1", "c2"], None)
    text = rulvar("runs", "ls", "--limit", "2")
    assert [line.split()[0] for line in text.stdout.splitlines()] == ["RUN", "a1", "c0"]
    assert "--after c0" in text.stderr
    assert rulvar("runs", "ls", "--tag", "none").stdout == "no runs\n"
    assert "Invalid value for '--status'" in rulvar("runs", "ls", "--status", "x", status=2).stderr


@pytest.mark.usefixtures("project")
def test_showing_a_run_names_its_parts() -> None:
    rulvar("run", "count", "--args", '{"n": 2}', "--run-id", "c1", "--tag", "nightly")
    text = rulvar("runs", "show", "c1").stdout
    for part in ("status     ok", "none: the run is not held", '{"n":2}', "add 1", "source"):
        assert part in text
    shown = document("runs", "show", "c1")
    assert list(shown) == [
        "run_id",
        "run",
        "leases_known",
        "lease",
        "journal",
        "tenures",
        "calls",
        "blobs",
        "problems",
    ]
    tenures = cast("list[dict[str, object]]", shown["tenures"])
    assert [(each["epoch"], each["began"], each["settled"]) for each in tenures] == [
        (1, "started", "ok")
    ]


@pytest.mark.usefixtures("project")
def test_showing_a_takeover_tells_its_story() -> None:
    rulvar("run", "deliver", "--run-id", "a1", status=6)
    # A holder that begins a step and never answers, then a successor.
    with open_stores("sqlite:///runs.db") as stores:
        begin_a_step_and_stop(stores, "a1")
    rulvar("resolve", "a1", "approval", "1")
    rulvar("resume", "a1")
    text = rulvar("runs", "show", "a1").stdout
    assert "TOOK OVER after" in text
    assert "unfinished: ship" in text
    assert "epochs never fall along this journal" in text


def begin_a_step_and_stop(stores: Stores, run_id: str) -> None:
    """Do what a worker does that boots, begins a step and is never heard of again."""
    journal = assert_fenced_writes(stores).journal
    lease = journal.acquire(run_id, "stalled")
    [row] = journal.list_runs()
    journal.put_meta(replace(row, status="running", segments=2), lease=lease)
    seq = journal.load(run_id)[-1].seq + 1
    entry = JournalEntry(seq=seq, kind="step", status="running", key="ship", epoch=lease.epoch)
    journal.append(run_id, JournalRecord(seq=seq, payload=encode_entry(entry)), lease=lease)
    journal.release(lease)


def test_a_journal_that_cannot_be_read_hides_nothing_else(project: Path) -> None:
    rulvar("run", "count", "--args", '{"n": 1}', "--run-id", "c1")
    connection = apsw.Connection(str(project / "runs.db"))
    connection.execute("UPDATE entries SET payload = '[1]' WHERE id = 2")
    connection.close()
    result = rulvar("runs", "show", "c1", status=5)
    assert "status     ok" in result.stdout
    assert "run 'c1' cannot be read" in result.stderr
    shown = document("runs", "show", "c1", status=5)
    assert shown["journal"] is None
    assert len(cast("list[str]", shown["problems"])) == 1


@pytest.mark.usefixtures("project")
def test_a_run_that_waits_for_another_code_is_named_with_the_reason_and_the_remedy() -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    blocked = Blocked(reason="step 'ship' is not asked for", since="2026-01-02", codes=("x", "y"))
    with open_stores("sqlite:///runs.db") as stores:
        [row] = stores.journal.list_runs()
        stores.journal.put_meta(replace(row, blocked=blocked))
    listed = rulvar("runs", "ls").stdout
    assert "blocked, the code cannot replay it: step 'ship' is not asked for" in listed
    text = " ".join(rulvar("runs", "show", "a1").stdout.split())
    assert (
        "2 versions of the code could not replay its journal: step 'ship' is not asked for" in text
    )
    assert "rulvar resume a1 tries the present code again" in text
    shown = cast("dict[str, object]", document("runs", "show", "a1")["run"])
    assert shown["blocked"] == {
        "reason": "step 'ship' is not asked for",
        "since": "2026-01-02",
        "codes": ["x", "y"],
    }


@pytest.mark.usefixtures("project")
def test_a_suspected_run_is_named() -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    with open_stores("sqlite:///runs.db") as stores:
        [row] = stores.journal.list_runs()
        stores.journal.put_meta(replace(row, recoveries=2))
    assert "2 deaths in a row: executed last and alone" in rulvar("runs", "ls").stdout
    assert "suspected: workers execute it last and alone" in rulvar("runs", "show", "a1").stdout
    assert "version 1" in rulvar("runs", "show", "a1").stdout


@pytest.mark.usefixtures("project")
def test_a_source_that_has_changed_is_refused_where_that_is_asked_for() -> None:
    rulvar("run", "approve", "--run-id", "a1", status=6)
    with open_stores("sqlite:///runs.db") as stores:
        seq, payload = 0, stores.journal.load("a1")[0].payload
        assert b"sha256:" in payload
        stores.journal.delete("a1")
        changed = payload.replace(b'"workflowHash":"sha256:', b'"workflowHash":"sha256:0')
        stores.journal.append("a1", JournalRecord(seq=seq, payload=changed))
    refused = rulvar("resume", "a1", "--on-source-change", "refuse", status=2)
    assert "a different version of workflow" in refused.stderr
    rulvar("resume", "a1", status=6)
