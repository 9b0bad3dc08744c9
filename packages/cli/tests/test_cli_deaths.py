"""Runs that kill their process, and runs that are handed over in order: with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core import open_stores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

FLOWS = """
import os, signal, time
from rulvar.core import workflow

def note(text):
    with open("effects", "a") as effects:
        effects.write(f"{text}\\n")

def shoot(run_id):
    note(f"{run_id} boom")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)

@workflow(max_recoveries=2)
async def bomb(ctx):
    await ctx.step("boom", shoot, ctx.run_id)

@workflow(max_recoveries=1)
async def quits(ctx):
    note("body")
    os._exit(3)

@workflow
async def healthy(ctx, steps):
    for number in range(steps):
        await ctx.step(f"s{number}", note, f"{ctx.run_id} {number}")
    return steps

@workflow
async def patient(ctx):
    return await ctx.step("wait", wait_for, "gate")

async def wait_for(name):
    import asyncio
    print("inside", flush=True)
    while not os.path.exists(name):
        await asyncio.sleep(0.005)
    return name
"""

TTL_MS = 600
STORE = f"sqlite:///runs.db?lease_ttl_ms={TTL_MS}"
LONG = "sqlite:///runs.db?lease_ttl_ms=600000"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "deaths_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULVAR_STORE", STORE)
    monkeypatch.setenv("RULVAR_APP", "deaths_flows")
    return tmp_path


def rulvar(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rulvar.cli", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*args: str) -> int:
    with rulvar(*args) as process:
        process.communicate()
        return process.returncode


def shown(run_id: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", "runs", "show", run_id, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return cast("dict[str, object]", json.loads(done.stdout))


def statuses() -> dict[str, str]:
    with open_stores(STORE) as stores:
        return {meta.run_id: meta.status for meta in stores.journal.list_runs()}


def supervise(until_over: Sequence[str], *, most: int) -> int:
    """Start workers, one after the other, until these runs are over; return how many died."""
    for deaths in range(most + 1):
        now = statuses()
        if all(now.get(run_id) not in {"running", "suspended"} for run_id in until_over):
            return deaths
        with rulvar("worker", "--concurrency", "4", "--poll-interval-ms", "20") as worker:
            while worker.poll() is None:
                try:
                    worker.wait(0.2)
                except subprocess.TimeoutExpired:
                    now = statuses()
                    if all(now[run_id] not in {"running", "suspended"} for run_id in until_over):
                        worker.terminate()
            worker.communicate()
    raise AssertionError(statuses())


def begin(folder: Path, runs: dict[str, tuple[str, ...]]) -> None:
    """Begin runs and let them go before their first step: nobody has them."""
    script = """
import asyncio, json, sys
import deaths_flows as flows
from rulvar.core import Engine, open_stores

async def main():
    with open_stores(sys.argv[1]) as stores:
        async with Engine(stores) as engine:
            for run_id, (name, *args) in json.loads(sys.argv[2]).items():
                handle = engine.start(
                    getattr(flows, name), *map(int, args), run_id=run_id
                )
                handle.detach()
                await handle.result()
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, STORE, json.dumps(runs)]
    subprocess.run(command, check=True, cwd=folder)


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_a_run_that_kills_its_process_in_a_step_is_not_taken_for_ever(folder: Path) -> None:
    begin(folder, {"bomb": ("bomb",), "good": ("healthy", "3")})
    deaths = supervise(["bomb", "good"], most=5)
    assert statuses() == {"bomb": "exhausted", "good": "ok"}
    assert effects(folder).count("bomb boom") == 3, "once, and as often as it may be recovered"
    assert deaths <= 4
    story = shown("bomb")
    journal = cast("dict[str, object]", story["journal"])
    told = cast("list[dict[str, object]]", journal["deaths"])
    assert [(each["segment"], each["under_way"]) for each in told] == [
        (2, ["step boom"]),
        (3, ["step boom"]),
        (4, ["step boom"]),
    ]
    # On the same machine a process is found to be gone at once, where the system tells.
    assert {each["ended"] for each in told} <= {"process-gone", "lease-expired"}
    assert all(each["owner"] for each in told)
    assert journal["takeovers"] == 3, "the last one found the death that was one too many"
    [call] = cast("list[dict[str, object]]", story["calls"])
    assert call["attempts"] == 3
    text = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", "runs", "show", "bomb"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for part in ("max_recoveries=2", "Deaths", "step boom", "boom (attempt 3)"):
        assert part in text


@pytest.mark.slow
def test_a_body_that_ends_its_process_is_not_taken_for_ever(folder: Path) -> None:
    assert ended("run", "quits", "--run-id", "q") == 3
    supervise(["q"], most=4)
    assert statuses() == {"q": "exhausted"}
    assert effects(folder) == ["body", "body"]


@pytest.mark.storm
@pytest.mark.timeout(300)
def test_three_doomed_runs_among_ten_leave_seven_that_end_ok(folder: Path) -> None:
    doomed: dict[str, tuple[str, ...]] = {f"{letter}-doomed": ("bomb",) for letter in "aiz"}
    good: dict[str, tuple[str, ...]] = {f"g{number}": ("healthy", "20") for number in range(7)}
    begin(folder, doomed | good)
    deaths = supervise(sorted(doomed | good), most=12)
    assert statuses() == dict.fromkeys(doomed, "exhausted") | dict.fromkeys(good, "ok")
    lines = effects(folder)
    # One may have died beside another before it did anything: never more often than it may.
    assert all(lines.count(f"{name} boom") <= 3 for name in doomed)
    # What was in flight when a process died is paid again, and nothing else.
    assert sum(lines.count(f"{name} {n}") - 1 for name in good for n in range(20)) <= 4 * deaths


@pytest.mark.slow
def test_a_run_that_is_handed_over_by_a_signal_is_no_takeover(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULVAR_STORE", LONG)
    begin(folder, {"p": ("patient",)})
    for _ in range(3):
        with rulvar("worker", "--json", "--grace-ms", "0") as worker:
            assert worker.stdout is not None
            assert any("inside" in line for line in worker.stdout)
            worker.send_signal(signal.SIGTERM)
            worker.communicate()
            assert worker.returncode == 0
    (folder / "gate").touch()
    with rulvar("worker", "--json", "--until-idle") as worker:
        # What a step prints and a line of the worker's may share one line of the pipe.
        lines = [line for line in worker.communicate()[0].splitlines() if "{" in line]
        told = [json.loads(line[line.index("{") :]) for line in lines]
    resumed = [each for each in told if each["kind"] == "run.resumed"]
    assert [(each["segment"], each["detail"]) for each in resumed] == [(5, "")]
    story = shown("p")
    journal = cast("dict[str, object]", story["journal"])
    assert (journal["takeovers"], journal["deaths"], journal["status"]) == (0, [], "ok")
    row = cast("dict[str, object]", story["run"])
    assert (row["recoveries"], row["stopped"], row["segments"]) == (0, 4, 5)
    tenures = cast("list[dict[str, object]]", story["tenures"])
    assert [each["began"] for each in tenures][2:] == ["handed-over"] * 3


@pytest.mark.slow
def test_an_operators_take_over_is_no_death(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULVAR_STORE", LONG)
    begin(folder, {"p": ("patient",)})
    for _ in range(3):
        with rulvar("worker", "--json", "--poll-interval-ms", "20") as worker:
            assert worker.stdout is not None
            assert any("inside" in line for line in worker.stdout)
            worker.send_signal(signal.SIGSTOP)
            taken = ended("runs", "take-over", "p", "--yes")
            worker.kill()
            worker.communicate()
        assert taken == 0
    (folder / "gate").touch()
    assert ended("resume", "p") == 0
    story = shown("p")
    journal = cast("dict[str, object]", story["journal"])
    assert (journal["takeovers"], journal["deaths"], journal["status"]) == (0, [], "ok")
