"""How `rulvar run` and `rulvar worker` end, whatever ends them and whatever user code does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rulvar.core import assert_fenced_writes, open_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

FLOWS = """
import asyncio, sys, time
from rulvar.core import workflow

def begun(ctx):
    open(f"{ctx.run_id}.begun", "w").close()

@workflow
async def thread(ctx):
    async def step():
        begun(ctx)
        await asyncio.to_thread(time.sleep, 60)
    await ctx.step("s", step)

@workflow
async def crowd(ctx):
    async def step():
        begun(ctx)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 60) for _ in range(50)))
    await ctx.step("s", step)

@workflow
async def swallows(ctx):
    async def step():
        begun(ctx)
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                pass
    await ctx.step("s", step)

@workflow
async def branches(ctx):
    async def branch(inner):
        begun(ctx)
        while True:
            try:
                await asyncio.sleep(1)
            except:
                pass
    await ctx.parallel("p", [branch, branch])

@workflow
async def catches(ctx):
    begun(ctx)
    while True:
        try:
            await ctx.step("s", time.sleep, 0.02)
        except:
            pass

@workflow
async def leaves(ctx):
    await ctx.step("s", lambda: sys.exit(0))

@workflow
async def waits(ctx):
    begun(ctx)
    await ctx.step("s", time.sleep, 60)
"""

STORE = "sqlite:///runs.db?lease_ttl_ms=600000"
COMMAND = (sys.executable, "-m", "rulvar.cli")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ending_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULVAR_STORE", STORE)
    monkeypatch.setenv("RULVAR_APP", "ending_flows")
    return tmp_path


def listen() -> None:
    """Let a command hear what it would hear at a prompt, also where the tests do not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def rulvar(*args: str, before: Callable[[], None] = listen) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=before,  # noqa: PLW1509 - no threads of ours matter to it
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def appears(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.01)


def is_held(run_id: str) -> bool:
    with open_stores(STORE) as stores:
        assert_fenced_writes(stores)
        lease = stores.journal.get_lease(run_id)  # type: ignore[attr-defined] # SQLite shows them
    return lease is not None and lease.live


@contextmanager
def at_work(kind: str, flow: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Have the flow's run "r" under way, in a `run` or in a `worker` that took it over."""
    with rulvar("run", flow, "--run-id", "r") as process:
        appears(folder / "r.begun", process)
        if kind == "run":
            yield process
            return
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    (folder / "r.begun").unlink()
    with rulvar("worker", "--grace-ms", "100", "--app", f"ending_flows:{flow}") as worker:
        appears(folder / "r.begun", worker)
        yield worker


@pytest.mark.parametrize("kind", ["run", "worker"])
@pytest.mark.parametrize("flow", ["thread", "crowd", "swallows", "branches", "catches", "waits"])
@pytest.mark.storm
def test_the_first_signal_ends_it_and_gives_the_lease_back(
    kind: str, flow: str, folder: Path
) -> None:
    with at_work(kind, flow, folder) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
        assert time.monotonic() - began < 10
        assert process.stdout is not None
        assert status == (143 if kind == "run" else 0), process.stdout.read()
    assert not is_held("r")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "worker"])
def test_a_hang_up_is_a_clean_end(kind: str, folder: Path) -> None:
    with at_work(kind, "waits", folder) as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == (129 if kind == "run" else 0)
    assert not is_held("r")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["run", "worker"])
def test_what_was_ignored_stays_ignored(kind: str, number: signal.Signals, folder: Path) -> None:
    """As `nohup` has it, and a shell without job control for what it puts into the background."""

    def before() -> None:
        listen()
        signal.signal(number, signal.SIG_IGN)

    command = ("run", "catches", "--run-id", "r") if kind == "run" else ("worker",)
    with rulvar(*command, before=before) as process:
        if kind == "run":
            appears(folder / "r.begun", process)
        else:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == (143 if kind == "run" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "worker"])
def test_a_terminal_that_is_closed_ends_it_in_order(kind: str, folder: Path) -> None:
    command = ["run", "catches", "--run-id", "r"]
    if kind == "worker":
        with at_work("run", "catches", folder) as process:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        (folder / "r.begun").unlink()
        command = ["worker", "--grace-ms", "100", "--app", "ending_flows:catches"]
    pid, terminal = pty.fork()
    if pid == 0:
        listen()
        os.execv(sys.executable, [*COMMAND, *command])
    try:
        while not (folder / "r.begun").exists():
            time.sleep(0.01)
        os.close(terminal)
        status = wait_for(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not is_held("r")
    assert os.WIFEXITED(status), "it was not killed"


def wait_for(pid: int) -> int:
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    raise AssertionError(pid)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["swallows", "waits"])
@pytest.mark.parametrize("kind", ["run", "worker"])
def test_a_second_signal_does_not_wait(kind: str, flow: str, folder: Path) -> None:
    with at_work(kind, flow, folder) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            if "SIGINT" in line:
                break
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(30)
        # Of `run` the first may have been enough already.
        assert time.monotonic() - began < 1.5
        assert process.returncode in {-signal.SIGINT, 130}


@pytest.mark.slow
def test_a_step_that_leaves_fails_its_run_and_nothing_else(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "run", "leaves", "--run-id", "r", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["status"], outcome["error"]["error_type"]) == ("error", "SystemExit")
    assert "traceback" not in outcome["error"]
    assert not is_held("r")
    del folder
