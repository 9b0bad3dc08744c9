"""The real command in a real process: clean stops, hard stops, and takeovers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core import Engine, assert_fenced_writes, open_stores, workflow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rulvar.core.engine import Context

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

FLOWS = """
import os, time
from rulvar.core import workflow

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.005)
    return name

@workflow
async def gated(ctx):
    for number in range(3):
        await ctx.step(f"pass {number}", wait_for, f"gate{number}")
    return "through"

@workflow
async def chatty(ctx):
    return await ctx.step("say", say)

def say():
    print("from the step", flush=True)
    return 7

@workflow
async def stuck(ctx):
    await ctx.step("block the loop", block)

async def block():
    print("blocked", flush=True)
    time.sleep(600)
"""

STORE = "sqlite:///runs.db?lease_ttl_ms=600000"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "process_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULVAR_STORE", STORE)
    monkeypatch.setenv("RULVAR_APP", "process_flows")
    return tmp_path


@contextmanager
def rulvar(*args: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; kill it at the end, whatever happened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rulvar.cli", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], **facts: object) -> dict[str, object]:
    """Read JSON Lines until one has these facts."""
    assert process.stdout is not None
    for line in process.stdout:
        event = cast("dict[str, object]", json.loads(line))
        if facts.items() <= event.items():
            return event
    raise AssertionError(process.stderr.read() if process.stderr else "")


def finish(*args: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", *args, "--json"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, cast("dict[str, object]", json.loads(done.stdout))


def is_held(run_id: str) -> bool:
    with open_stores(STORE) as stores:
        assert_fenced_writes(stores)
        lease = stores.journal.get_lease(run_id)  # type: ignore[attr-defined] # SQLite shows them
    return lease is not None and lease.live


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_lets_its_runs_go_at_once(
    folder: Path, number: signal.Signals
) -> None:
    (folder / "gate0").touch()
    with rulvar("run", "gated", "--run-id", "g1", "--json") as first:
        wait_until_seq(first, "g1", 3)
        first.send_signal(number)
        assert first.wait(60) == 128 + number
    assert not is_held("g1")
    with rulvar("worker", "--json", "--grace-ms", "60000") as worker:
        read_until(worker, kind="step.started", run_id="g1", name="pass 1")
        worker.send_signal(number)
        read_until(worker, kind="worker.stopping", signal=number.name)
        # The step under way may end and be journalled; the next one does not begin.
        (folder / "gate1").touch()
        read_until(worker, kind="step.finished", name="pass 1")
        report = read_until(worker, kind="worker.ended")
        assert report["outcomes"] == {"running": 1}
        assert worker.wait(60) == 0
    # Its lease would have lived for ten minutes; the run is free now.
    assert not is_held("g1")
    (folder / "gate2").touch()
    status, outcome = finish("resume", "g1")
    assert (status, outcome["value"], outcome["executed"]) == (0, "through", 1)


def wait_until_seq(process: subprocess.Popen[str], run_id: str, seq: int) -> None:
    """Wait until the run's journal has reached a record."""
    assert process.stderr is not None
    assert process.stderr.readline() == f"run {run_id}: started\n"
    with open_stores(STORE) as stores:
        while process.poll() is None:
            records = stores.journal.load(run_id)
            if records and records[-1].seq >= seq:
                return
    raise AssertionError(process.stderr.read())


def end_by_repeating(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal until it ends the process: two that are pending at once are one."""
    for _ in range(100):
        process.send_signal(number)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        return
    raise AssertionError(number)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_second_signal_does_not_wait_for_a_blocked_loop() -> None:
    with rulvar("run", "stuck", "--run-id", "s1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        end_by_repeating(process, signal.SIGTERM)
        assert process.returncode == -signal.SIGTERM
    assert is_held("s1")


@pytest.mark.slow
def test_a_worker_until_idle_ends_by_itself(folder: Path) -> None:
    for number in range(3):
        (folder / f"gate{number}").touch()
    assert finish("run", "gated", "--run-id", "g1")[0] == 0
    with rulvar("worker", "--until-idle", "--json") as worker:
        report = read_until(worker, kind="worker.ended")
        assert worker.wait(60) == 0
    assert (report["outcomes"], report["broken"]) == ({}, {})


@pytest.mark.slow
def test_a_superseded_segment_is_status_4(folder: Path) -> None:
    with rulvar("run", "gated", "--run-id", "g1", "--json") as stalled:
        wait_until_seq(stalled, "g1", 1)
        with open_stores(STORE) as stores:
            stores.journal.seize("g1", "successor")  # type: ignore[attr-defined] # SQLite seizes
        (folder / "gate0").touch()
        out, _ = stalled.communicate(timeout=60)
        assert stalled.returncode == 4
    error = json.loads(out)["error"]
    assert (error["code"], error["reason"]) == ("superseded", "superseded")
    assert (error["epoch"], error["holder"], error["holder_epoch"]) == (1, "successor", 2)


@pytest.mark.slow
def test_a_worker_and_a_run_do_not_take_each_others(folder: Path) -> None:
    with rulvar("run", "gated", "--run-id", "g1", "--json") as first:
        wait_until_seq(first, "g1", 1)
        status, document = finish("resume", "g1")
        assert status == 3
        assert cast("dict[str, object]", document["error"])["reason"] == "held"
        for number in range(3):
            (folder / f"gate{number}").touch()
        assert first.wait(60) == 0


def on_a_terminal(*args: str) -> tuple[str, str]:
    """Run to its end; return standard output, and what a terminal shows of standard error."""
    terminal, other_end = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rulvar.cli", *args],
            check=True,
            stdout=subprocess.PIPE,
            stderr=other_end,
            text=True,
        )
        return done.stdout, os.read(terminal, 100_000).decode()
    finally:
        os.close(terminal)
        os.close(other_end)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_progress_line_keeps_out_of_standard_output() -> None:
    told, shown = on_a_terminal("run", "chatty", "--run-id", "c1")
    assert told == "from the step\n7\n"
    assert "steps done: 1, running: say" in shown
    assert "run c1: ok" in shown


async def two_runs() -> None:
    @workflow
    async def quick(_ctx: Context) -> int:
        return 7

    with open_stores(STORE) as stores:
        async with Engine(stores, [quick]) as engine:
            for run_id in ("c1", "c2"):
                await engine.run(quick, run_id=run_id)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_an_audit_shows_how_far_it_is_on_a_terminal_and_nowhere_else() -> None:
    asyncio.run(two_runs())
    told, shown = on_a_terminal("runs", "audit")
    assert told == "2 runs: 2 consistent\n"
    assert "auditing" in shown
    assert "2/2" in shown
    done = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", "runs", "audit"], check=True, capture_output=True
    )
    assert done.stderr == b""
