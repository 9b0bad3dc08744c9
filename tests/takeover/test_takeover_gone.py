"""A holder that was killed costs no time to live: its process is proved gone, and by one alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.process_identity import parse_owner
from rulvar.core.spi import has_lease_admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core import Stores

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems do not tell"
)

HOUR_MS = 3_600_000
ROUNDS = 12

FLOWS = '''
import os, time
from rulvar.core import workflow

def pay(name):
    """Say who pays; the victim is killed here, everybody else returns after a while."""
    log = os.open("paid", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{name} {os.getpid()}\\n".encode())
    os.close(log)
    time.sleep(600 if os.environ.get("VICTIM") else 0.2)
    return os.getpid()

@workflow
async def order(ctx, name):
    return await ctx.step("pay", pay, name)
'''

WORKS = """
import asyncio, sys
from gone_flows import order
from rulvar.core import Engine, SupersededError, Worker, open_stores

def told(result):
    print(type(result.error).__name__, result.run_id, flush=True)

async def main():
    with open_stores(sys.argv[1]) as stores:
        async with Engine(stores, [order]) as engine:
            worker = Worker(engine, poll_interval=0.005, concurrency=2, on_result=told)
            await worker.run()

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gone_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RULVAR_STORE", url())
    monkeypatch.setenv("RULVAR_APP", "gone_flows")
    return tmp_path


def url() -> str:
    return f"sqlite:///runs.db?lease_ttl_ms={HOUR_MS}"


@contextmanager
def process(*arguments: str, victim: bool = False) -> Iterator[subprocess.Popen[str]]:
    there = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | ({"VICTIM": "1"} if victim else {}),
    )
    try:
        yield there
    finally:
        there.kill()
        there.wait()
        if there.stdout is not None:
            there.stdout.close()


def paid(run_id: str) -> list[int]:
    """Return which processes have begun to pay for a run."""
    lines = Path("paid").read_text().splitlines() if Path("paid").exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == run_id]


def wait_until(what: str, holds: object, *, seconds: float = 60) -> None:
    assert callable(holds)
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.005)


@contextmanager
def victim(run_id: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of paying, under a lease of an hour."""
    command = ("-m", "rulvar.cli", "run", "order", "--args", f'"{run_id}"', "--run-id", run_id)
    with process(*command, victim=True) as there:
        wait_until("the victim pays", lambda: paid(run_id) == [there.pid])
        yield there


def status(stores: Stores, run_id: str) -> str:
    [row] = [meta for meta in stores.journal.list_runs() if meta.run_id == run_id]
    return row.status


@pytest.mark.storm
def test_of_two_workers_that_see_a_death_one_goes_on_at_once(folder: Path) -> None:
    assert folder.exists()
    with ExitStack() as stack:
        stores = stack.enter_context(open_stores(url()))
        workers = [stack.enter_context(process("-c", WORKS, url())) for _ in range(2)]
        for number in range(ROUNDS):
            run_id = f"r{number}"
            with victim(run_id) as there:
                there.send_signal(signal.SIGKILL)
                wait_until("it is taken", lambda it=run_id: status(stores, it) == "ok", seconds=30)
                assert len(paid(run_id)) == 2, "the step was performed by both"
        said = []
        for worker in workers:
            worker.kill()
            assert worker.stdout is not None
            said += worker.stdout.read().splitlines()
    assert not [line for line in said if line.startswith("SupersededError")], said


@pytest.mark.slow
def test_a_frozen_holder_is_waited_for(folder: Path) -> None:
    assert folder.exists()
    with victim("r") as there, open_stores(url()) as stores:
        there.send_signal(signal.SIGSTOP)
        with process("-c", WORKS, url()) as worker:
            journal = stores.journal
            assert has_lease_admin(journal)
            before = journal.get_lease("r")
            assert before is not None
            found = parse_owner(before.owner)
            assert found is not None
            assert found.pid == there.pid
            with victim("another") as dead:
                dead.send_signal(signal.SIGKILL)
                # The worker has looked at both by the time that it has finished this one.
                wait_until("it is taken", lambda: status(stores, "another") == "ok")
            assert journal.get_lease("r") == before
            worker.kill()
        there.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_command_goes_on_with_the_run_of_a_holder_that_was_killed(folder: Path) -> None:
    assert folder.exists()
    with victim("r") as there:
        there.send_signal(signal.SIGKILL)
        done = subprocess.run(
            [sys.executable, "-m", "rulvar.cli", "resume", "r"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert len(paid("r")) == 2


@pytest.mark.slow
def test_a_dead_owner_named_by_an_operator_is_found_as_well(folder: Path) -> None:
    """The readable part is the operator's; the identity is added to it."""
    assert folder.exists()
    script = (
        "import asyncio, os, signal, sys\n"
        "from gone_flows import order\n"
        "from rulvar.core import Engine, open_stores\n"
        "async def main():\n"
        "    stores = open_stores(sys.argv[1])\n"
        "    engine = Engine(stores, [order], owner='blue:7')\n"
        "    engine.start(order, 'r', run_id='r')\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with process("-c", script, url(), victim=True) as there:
        wait_until("the victim pays", lambda: paid("r") == [there.pid])
        there.send_signal(signal.SIGKILL)
        with process("-c", WORKS, url()), open_stores(url()) as stores:
            wait_until("it is taken", lambda: status(stores, "r") == "ok", seconds=30)
