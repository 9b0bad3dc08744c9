"""What user code raises is the failure of that code, whatever it is, and ends nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from rulvar.core.engine import (
    Compaction,
    Continue,
    Engine,
    RetryPolicy,
    SegmentEnded,
    Worker,
    workflow,
)
from rulvar.core.errors import StepFailedError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from rulvar.core.engine import Context, Done, RunOutcome, WorkerResult, Workflow


class Odd(BaseException):
    """Of nobody's tree."""


class Unspeakable(Exception):  # noqa: N818 - of this test alone
    """Even asking for its message raises."""

    def __str__(self) -> str:  # noqa: PLE0307 - it never does
        sys.exit(3)


KINDS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("by code"),
    "GeneratorExit": GeneratorExit,
    "asyncio.exceptions.CancelledError": lambda: asyncio.CancelledError("of its own"),
    "SegmentEnded": lambda: SegmentEnded("it says so itself"),
    "Odd": Odd,
    "Unspeakable": Unspeakable,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
}

kinds = pytest.mark.parametrize("kind", KINDS)


def throw(kind: str) -> NoReturn:
    error = KINDS[kind]()
    raise error


async def throw_later(kind: str) -> NoReturn:
    await asyncio.sleep(0)
    throw(kind)


class _Hostile(dict[str, object]):
    """A result that raises when it is looked at."""

    def items(self) -> NoReturn:
        sys.exit(4)


async def in_a_step(ctx: Context, kind: str) -> object:
    return await ctx.step("s", throw, kind)


async def in_an_async_step(ctx: Context, kind: str) -> object:
    return await ctx.step("s", throw_later, kind)


async def in_a_step_that_is_retried(ctx: Context, kind: str) -> object:
    policy = RetryPolicy(attempts=2, wait_initial=0, wait_jitter=0)
    return await ctx.step("s", throw_later, kind, retry=policy)


async def in_the_policy(ctx: Context, kind: str) -> object:
    def fails() -> NoReturn:
        message = "as it happens"
        raise ValueError(message)

    policy = RetryPolicy(attempts=2, wait_initial=0, on=lambda _error: throw(kind))
    return await ctx.step("s", fails, retry=policy)


async def in_a_task_of_a_step(ctx: Context, kind: str) -> object:
    async def step() -> None:
        await asyncio.to_thread(throw, kind)

    return await ctx.step("s", step)


async def in_a_turn(ctx: Context, kind: str) -> object:
    return await ctx.turns("s", lambda _state, _n: throw(kind), 0)


async def in_an_async_turn(ctx: Context, kind: str) -> object:
    async def turn(_state: object, _number: int) -> Done[int]:
        return await throw_later(kind)

    return await ctx.turns("s", turn, 0)


async def when_asked_to_compact(ctx: Context, kind: str) -> object:
    compact = Compaction(when=lambda _s, _n: throw(kind), make=lambda state, _n: state)
    return await ctx.turns("s", lambda state, _n: Continue(state), 0, compact=compact)


async def while_it_compacts(ctx: Context, kind: str) -> object:
    compact = Compaction(when=lambda _s, _n: True, make=lambda _s, _n: throw(kind))
    return await ctx.turns("s", lambda state, _n: Continue(state), 0, compact=compact)


CALLS = [
    in_a_step,
    in_an_async_step,
    in_a_step_that_is_retried,
    in_the_policy,
    in_a_task_of_a_step,
    in_a_turn,
    in_an_async_turn,
    when_asked_to_compact,
    while_it_compacts,
]


class Bench:
    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.stores = Stores(self.store, self.store.transcripts())

    def run(self, body: Workflow, *, resume: bool = False) -> RunOutcome:
        async def main() -> RunOutcome:
            async with Engine(self.stores, [body], suspend_after=0) as engine:
                if resume:
                    return await engine.resume("r")
                outcome = await engine.run(body, run_id="r")
                # Nobody was asked to go on after a loop that something has left.
                await asyncio.sleep(0)
                return outcome

        return asyncio.run(main())

    def crash(self) -> None:
        """Forget the settle, as if the process had died just before it."""
        self.store._tables._runs["r"].records.pop()


@kinds
@pytest.mark.parametrize("call", CALLS)
def test_what_a_call_raises_is_its_failure(
    call: Callable[[Context, str], Awaitable[object]], kind: str
) -> None:
    if kind == "GeneratorExit" and call is in_a_task_of_a_step:
        pytest.skip("asyncio closes a coroutine whose future has it: nothing can be awaited then")
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        try:
            await call(ctx, kind)
        except StepFailedError as error:
            told = [type(error).__name__, error.error_type.rpartition(".")[2], str(error)]
            return [*told, error.attempts]
        return None

    first = bench.run(body)
    assert first.status == "ok"
    assert isinstance(first.value, list)
    assert first.value[1] == kind.rpartition(".")[2]
    bench.crash()
    assert bench.run(body, resume=True).value == first.value
    answers = [e for e in read_journal("r", bench.store.load("r")) if e.ref is not None]
    assert [entry.status for entry in answers] == ["error"]


@kinds
@pytest.mark.parametrize("where", ["body", "branch", "async branch", "result"])
def test_what_a_body_raises_is_the_failure_of_its_run(where: str, kind: str) -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        async def branch(inner: Context) -> None:
            if where == "async branch":
                await inner.step("s", lambda: 1)
            throw(kind)

        if where == "body":
            throw(kind)
        if where == "result":
            return _Hostile(a=1)
        return await ctx.parallel("p", [branch, branch])

    for resume in (False, True):
        outcome = bench.run(body, resume=resume)
        assert outcome.status == "error"
        assert outcome.error is not None
        told = outcome.error.error_type.rpartition(".")[2]
        assert told == ("SystemExit" if where == "result" else kind.rpartition(".")[2])


@pytest.mark.slow
@kinds
def test_what_a_worktrees_body_raises_is_its_failure(kind: str, tmp_path: Path) -> None:
    for command in ("init -q", "-c user.name=n -c user.email=e commit -q --allow-empty -m m"):
        assert os.system(f"git -C {tmp_path} {command}") == 0
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        return await ctx.worktree("w", tmp_path, lambda _path: throw(kind))

    outcome = bench.run(body)
    assert outcome.error is not None
    assert outcome.error.error_type.rpartition(".")[2] == kind.rpartition(".")[2]


@kinds
def test_a_worker_outlives_everything(kind: str) -> None:
    bench = Bench()
    told: list[str] = []

    @workflow
    async def bad(ctx: Context) -> None:
        await ctx.await_external("k")
        await ctx.step("s", throw_later, kind)

    @workflow
    async def good(ctx: Context) -> str:
        await ctx.await_external("k")
        return "good"

    def on_result(result: WorkerResult) -> None:
        told.append(result.run_id)
        throw(kind)

    async def main() -> dict[str, int]:
        async with Engine(bench.stores, [bad, good], suspend_after=0) as engine:
            for run_id, body in (("bad", bad), ("good", good)):
                await engine.run(body, run_id=run_id)
                await engine.resolve(run_id, "k")
            worker = Worker(engine, concurrency=1, on_result=on_result)
            return (await worker.run(until_idle=True)).outcomes

    assert asyncio.run(main()) == {"error": 1, "ok": 1}
    assert sorted(told) == ["bad", "good"]


def test_a_step_may_name_what_is_no_exception_as_worth_another_try() -> None:
    tries: list[int] = []

    def leaves_once() -> str:
        tries.append(1)
        if len(tries) == 1:
            sys.exit(1)
        return "stayed"

    @workflow
    async def body(ctx: Context) -> str:
        policy = RetryPolicy(attempts=2, wait_initial=0, wait_jitter=0, on=SystemExit)
        return await ctx.step("s", leaves_once, retry=policy)

    assert Bench().run(body).value == "stayed"


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_cancellation_from_around_a_step_is_told_from_its_own(plain: bool) -> None:
    """By a timeout around the call: the step has not failed."""
    bench = Bench()
    gate = threading.Event()

    async def forever() -> None:
        await asyncio.Event().wait()

    @workflow
    async def body(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.02):
                await ctx.step("s", gate.wait if plain else forever)
        except TimeoutError:
            gate.set()
            return "in time"
        return "never"

    assert bench.run(body).value == "in time"
    entries = read_journal("r", bench.store.load("r"))
    assert not [e for e in entries if e.kind == "step" and e.status == "error"]


# --- signals are no user code ---------------------------------------------------------------------

INTERRUPTED = """
import asyncio, os, signal, sys
from rulvar.core import Engine, Stores, workflow
from rulvar.core.testing import ReferenceStore

how = sys.argv[1]
store = ReferenceStore()

def leave(number, frame):
    sys.exit(7)

async def work():
    if how == "exit":
        signal.signal(signal.SIGTERM, leave)
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "default":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
    else:  # as asyncio.run has it: the second one does not wait
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass

@workflow
async def body(ctx):
    await ctx.step("s", work)

async def main():
    async with Engine(Stores(store, store.transcripts()), [body]) as engine:
        await engine.run(body, run_id="r")

signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, too
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
finally:
    row, lease = store.get_meta("r"), store.get_lease("r")
    print(row.status, lease is not None and lease.live)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("exit", 7, "running False\n"),
        ("default", 0, "interrupted\nrunning False\n"),
        ("asyncio", 0, "interrupted\nrunning False\n"),
    ],
)
def test_a_signal_in_the_midst_of_a_step_is_not_the_steps(
    how: str, status: int, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED, encoding="utf-8")
    command = [sys.executable, str(script), how]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, said), done.stderr
