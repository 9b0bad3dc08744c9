"""A workflow's code that stops the command's loop, or cancels its task, is named and counted."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.capabilities import has_lease_admin

if TYPE_CHECKING:
    from pathlib import Path

FLOWS = """
import asyncio, threading
from rulvar.core import workflow

@workflow
async def stops(ctx):
    asyncio.get_running_loop().stop()
    await ctx.step("s", lambda: 1)

@workflow(max_recoveries=1)
async def cancels(ctx):
    for task in asyncio.all_tasks():
        task.cancel()
    await ctx.step("s", lambda: 1)

@workflow
async def cancels_the_command(ctx):
    [main] = [each for each in asyncio.all_tasks() if each.get_name() == "Task-1"]
    main.cancel()
    await asyncio.sleep(600)

@workflow
async def stops_from_a_step(ctx):
    loop = asyncio.get_running_loop()
    await ctx.step("s", stop_and_wait, loop)

def stop_and_wait(loop):
    loop.call_soon_threadsafe(loop.stop)
    threading.Event().wait()

def stop_unseen(loop):
    threading.Thread(target=loop.call_soon_threadsafe, args=(loop.stop,)).start()

@workflow
async def stops_unseen(ctx):
    stop_unseen(asyncio.get_running_loop())
    await asyncio.sleep(600)

@workflow
async def parent(ctx, name):
    return await ctx.child("c", globals()[name])

@workflow
async def slow(ctx):
    for number in range(10):
        await ctx.step(f"s{number}", asyncio.sleep, 0.05)
    return "well"
"""

SAID = {
    "stops": "workflow code stopped the event loop of the command",
    "cancels": "workflow code cancelled the task of the command",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_it_is_told_without_a_traceback_and_the_lease_is_given_back(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["--app", "flows", "--store", "sqlite:///runs.db"]
        command = [sys.executable, "-m", "rulvar.cli", *words, *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    for words in (("run", name, "--run-id", "r"), ("worker", "--until-idle")):
        done = said(*words)
        assert done.returncode == 2, done.stderr
        assert SAID[name] in done.stderr
        assert "Traceback" not in done.stderr
        with open_stores(f"sqlite:///{tmp_path}/runs.db") as stores:
            assert has_lease_admin(stores.journal)
            lease = stores.journal.get_lease("r")
            assert lease is None or not lease.live
            [row] = stores.journal.list_runs()
            assert row.status == "running"


BEGIN = """
import asyncio, sys
import flows
from rulvar.core import Engine, open_stores

async def main():
    with open_stores("sqlite:///runs.db") as stores:
        async with Engine(stores) as engine:
            begin = [("neighbour", "slow", ())]
            name, *args = sys.argv[1:]
            begin.append(("culprit", name, args))
            for run_id, flow, args in begin:
                handle = engine.start(
                    getattr(flows, flow), *args, run_id=run_id, max_recoveries=3
                )
                handle.detach()
                await handle.result()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("stops",),
        ("cancels",),
        ("cancels_the_command",),
        ("stops_from_a_step",),
        ("stops_unseen",),
    ],
    ids=lambda words: words[-1],
)
def test_a_run_that_ends_its_worker_again_and_again_is_exhausted(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The neighbour ends well; it dies only where nobody can tell whose code it was."""
    statuses = _supervise(tmp_path, words, "culprit", deaths=4)
    assert statuses == {"culprit": "exhausted", "neighbour": "ok"}


@pytest.mark.slow
def test_a_child_that_does_it_is_exhausted_and_its_parent_is_told(tmp_path: Path) -> None:
    """The death is the child's; the parent's error is what became of the child."""
    statuses = _supervise(tmp_path, ("parent", "cancels"), "culprit.1", deaths=2)
    assert statuses == {"culprit": "error", "culprit.1": "exhausted", "neighbour": "ok"}


def _supervise(
    folder: Path, words: tuple[str, ...], culprit: str, *, deaths: int
) -> dict[str, str]:
    """Restart the worker until it ends in order; return how the runs have ended."""
    (folder / "flows.py").write_text(FLOWS)
    subprocess.run([sys.executable, "-c", BEGIN, *words], cwd=folder, check=True, timeout=60)
    options = ("--app", "flows", "--store", "sqlite:///runs.db", "--poll-interval-ms", "20")
    command = [sys.executable, "-m", "rulvar.cli", "worker", "--until-idle", *options]
    for _ in range(deaths + 3):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert "Traceback" not in done.stderr
        if done.returncode == 0:
            break
        assert done.returncode == 2, done.stderr
        assert "workflow code " in done.stderr
    with open_stores(f"sqlite:///{folder}/runs.db") as stores:
        rows = {row.run_id: row for row in stores.journal.list_runs()}
    if words != ("stops_unseen",):
        assert rows["neighbour"].recoveries == 0
    assert rows[culprit].recoveries == deaths
    return {run_id: row.status for run_id, row in rows.items()}
