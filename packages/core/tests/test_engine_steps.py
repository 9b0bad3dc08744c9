"""Steps run once and for all; branches keep their order; what was drawn stays drawn."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, RetryPolicy, workflow
from rulvar.core.engine.kernel.replay import Replay
from rulvar.core.errors import ConfigError, NonDeterminismError, StepFailedError, SupersededError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.engine.lease.ownership import OwnedLease
    from rulvar.core.journal import JournalEntry


def quickly(
    attempts: int = 3,
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception,
) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, on=on, wait_initial=0, wait_max=0, wait_jitter=0)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())

    def run(self, body: Workflow, *, resume: bool = False, retry: bool = False) -> RunOutcome:
        async def main() -> RunOutcome:
            async with Engine(self.stores, [body], clock=self.clock, suspend_after=0) as engine:
                if resume:
                    return await (engine.retry("r") if retry else engine.resume("r"))
                return await engine.run(body, run_id="r")

        return asyncio.run(main())

    def crash(self) -> None:
        """Forget the settle, as if the process had died just before it."""
        self.store._tables._runs["r"].records.pop()

    def calls(self) -> list[tuple[str, str, int, str]]:
        return [
            (e.scope, e.key, e.ordinal, e.status)
            for e in read_journal("r", self.store.load("r"))
            if e.kind == "step"
        ]


# --- what a step can be -------------------------------------------------------------------------


def plain(value: str) -> str:
    return f"{value} in {threading.current_thread().name.split('-')[1]}"


async def asynchronous(value: str) -> str:
    assert threading.current_thread() is threading.main_thread()
    return f"{value} here"


def hands_out_an_awaitable(value: str) -> Awaitable[str]:
    return asynchronous(value)


class Callable_:  # noqa: N801 - of this test alone
    async def __call__(self, value: str) -> str:
        return await asynchronous(value)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, "x in step"),
        (functools.partial(plain, "x"), "x in step"),
        (lambda value: plain(value), "x in step"),  # noqa: PLW0108 - a lambda is the point
        (asynchronous, "x here"),
        (functools.partial(asynchronous, "x"), "x here"),
        (hands_out_an_awaitable, "x here"),
        (Callable_(), "x here"),
        (str.strip, "x"),
    ],
)
def test_a_step_may_be_any_function(function: Callable[..., object], expected: str) -> None:
    bench = Bench()
    args = () if isinstance(function, functools.partial) else ("x",)

    @workflow
    async def body(ctx: Context) -> object:
        return await ctx.step("s", function, *args)

    assert bench.run(body).value == expected
    bench.crash()
    again = bench.run(body, resume=True)
    assert (again.value, again.executed, again.replayed) == (expected, 0, 1)


def test_context_variables_reach_step_threads() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @workflow
    async def body(ctx: Context) -> object:
        variable.set("of the body")

        async def branch(inner: Context) -> object:
            variable.set("of the branch")
            return await inner.step("s", variable.get)

        [inside] = await ctx.parallel("p", [branch])
        return [inside, await ctx.step("s", variable.get)]

    assert Bench().run(body).value == ["of the branch", "of the body"]


@pytest.mark.parametrize("name", ["", "\ud800", "a\nb", "x" * 201])
def test_a_bad_name_is_refused(name: str) -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> None:
        for call in (
            lambda: ctx.step(name, lambda: 1),
            lambda: ctx.parallel(name, []),
            lambda: ctx.await_external(name),
        ):
            with pytest.raises(ConfigError):
                await call()  # type: ignore[no-untyped-call]

    assert bench.run(body).status == "ok"
    assert len(bench.store.load("r")) == 2


# --- failure and retries ------------------------------------------------------------------------


class Flaky:
    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error if error is not None else ConnectionError("again")
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return self.calls


def test_a_failing_step_is_tried_again_within_its_dispatch() -> None:
    bench, flaky = Bench(), Flaky(2)

    @workflow
    async def body(ctx: Context) -> int:
        return await ctx.step("s", flaky.__call__, retry=quickly())

    assert bench.run(body).value == 3
    assert len(bench.calls()) == 2, "one dispatch, one answer"


@pytest.mark.parametrize(
    ("error", "on", "attempts"),
    [
        (ConnectionError("x"), ConnectionError, 3),
        (ConnectionError("x"), (ValueError, OSError), 3),
        (ConnectionError("x"), ValueError, 1),
        (ConnectionError("x"), lambda error: "x" in str(error), 3),
        (ConnectionError("y"), lambda error: "x" in str(error), 1),
    ],
)
def test_a_step_that_fails_for_good_says_how_often_it_was_tried(
    error: Exception,
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool],
    attempts: int,
) -> None:
    bench, flaky = Bench(), Flaky(99, error)

    @workflow
    async def body(ctx: Context) -> object:
        try:
            await ctx.step("s", flaky, retry=quickly(on=on))
        except StepFailedError as failed:
            return [failed.step, failed.error_type, failed.attempts, failed.run_id, str(failed)]
        return None

    first = bench.run(body)
    assert isinstance(first.value, list)
    assert first.value[:4] == ["s", "ConnectionError", attempts, "r"]
    assert flaky.calls == attempts
    bench.crash()
    again = bench.run(body, resume=True)
    assert again.value == first.value, "a replayed failure carries the same facts"
    assert flaky.calls == attempts


def test_a_failed_step_replays_as_failed_unless_it_is_retried() -> None:
    bench, flaky = Bench(), Flaky(1)
    paid: list[str] = []

    @workflow
    async def body(ctx: Context) -> int:
        await ctx.step("paid", paid.append, "paid")
        return await ctx.step("s", flaky.__call__)

    failed = bench.run(body)
    assert failed.status == "error"
    assert failed.error is not None
    assert (failed.error.step, failed.error.error_type) == ("s", "ConnectionError")
    with pytest.raises(StepFailedError) as caught:
        failed.unwrap()
    assert caught.value.step == "s"
    journal = bench.store.load("r")
    again = bench.run(body, resume=True)
    assert (again.status, again.error, again.executed) == ("error", failed.error, 0)
    assert bench.store.load("r") == journal
    retried = bench.run(body, resume=True, retry=True)
    assert (retried.status, retried.value) == ("ok", 2)
    assert paid == ["paid"], "what had completed is not paid twice"
    assert bench.run(body, resume=True, retry=True).executed == 0


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"wait_initial": -0.001}, {"wait_max": -0.001}, {"wait_jitter": -0.001}],
)
def test_a_retry_policy_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


# --- scopes and branches ------------------------------------------------------------------------


def test_overlapping_calls_of_one_scope_are_refused() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        first = asyncio.create_task(ctx.step("a", asyncio.sleep, 0.01))
        await asyncio.sleep(0)
        with pytest.raises(NonDeterminismError, match="parallel"):
            await ctx.step("b", lambda: 1)
        with pytest.raises(NonDeterminismError):
            await ctx.parallel("c", [])
        with pytest.raises(NonDeterminismError):
            await ctx.now()
        await first
        return await ctx.step("b", lambda: 2)

    assert bench.run(body).value == 2
    assert [key for _, key, _, _ in bench.calls()] == ["a", "a", "b", "b"]


def test_a_body_that_takes_another_way_is_told_so() -> None:
    bench = Bench()
    stepped = True

    @workflow
    async def body(ctx: Context) -> object:
        if stepped:
            await ctx.step("a", lambda: 1)
        else:
            await ctx.await_external("a")
        return await ctx.await_external("k")

    assert bench.run(body).status == "suspended"
    stepped = False
    before = bench.store.load("r")
    with pytest.raises(NonDeterminismError, match="external 'a' stands where the journal has step"):
        bench.run(body, resume=True)
    row = bench.store.get_meta("r")
    assert row is not None
    assert row.blocked is not None
    assert "ctx.patched" in row.blocked.reason
    assert bench.store.load("r") == before, "nothing is opened or settled"


def test_branches_return_in_their_order_within_their_limit() -> None:
    bench = Bench()
    live = most = 0

    @workflow
    async def body(ctx: Context) -> object:
        def branch(index: int) -> Callable[[Context], Awaitable[int]]:
            async def run(inner: Context) -> int:
                nonlocal live, most
                live += 1
                most = max(most, live)
                await inner.step("s", asyncio.sleep, (9 - index) / 1000)
                live -= 1
                return index

            return run

        return await ctx.parallel("p", [branch(i) for i in range(9)], limit=3)

    outcome = bench.run(body)
    assert outcome.value == list(range(9))
    assert most == 3
    bench.crash()
    assert bench.run(body, resume=True).replayed == 9 + 1, "the branches' calls, and theirs"


def test_no_branches_is_no_work() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        with pytest.raises(ConfigError):
            await ctx.parallel("p", [], limit=0)
        return await ctx.parallel("p", [])

    assert bench.run(body).value == []


def test_nested_branches_have_scopes_of_their_own() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        async def leaf(inner: Context) -> int:
            return await inner.step("s", lambda: 1)

        async def node(inner: Context) -> list[int]:
            return await inner.parallel("q/r", [leaf, leaf])

        return [await ctx.parallel("p", [node, leaf]) for _ in range(2)]

    assert bench.run(body).value == [[[1, 1], 1]] * 2
    scopes = [scope for scope, _, _, _ in bench.calls()]
    assert len(set(scopes)) == 6
    assert "/p#1[0]/q%2Fr#0[1]" in scopes


def test_all_branches_are_waited_for_and_the_first_failure_carries_the_others() -> None:
    bench = Bench()
    done: list[str] = []

    @workflow
    async def body(ctx: Context) -> object:
        async def slow(inner: Context) -> None:
            await inner.step("slow", asyncio.sleep, 0.02)
            done.append("slow")

        async def late(inner: Context) -> None:
            await inner.step("late", asyncio.sleep, 0.01)
            message = "late"
            raise KeyError(message)

        async def early(_inner: Context) -> None:
            message = "early"
            raise ValueError(message)

        try:
            await ctx.parallel("p", [slow, late, early])
        except KeyError as error:
            return error.__notes__
        return None

    assert bench.run(body).value == ["another branch failed too: ValueError: early"]
    assert done == ["slow"]


# --- what the world says, once --------------------------------------------------------------------


def test_time_and_chance_are_drawn_once() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        async def branch(inner: Context) -> list[object]:
            return [await inner.random(), str(await inner.uuid())]

        drawn = [
            (await ctx.now()).isoformat(),
            await ctx.random(),
            await ctx.random(),
            str(await ctx.uuid()),
            *await ctx.parallel("p", [branch, branch]),
        ]
        seen.append(drawn)
        await ctx.await_external("k", timeout=3600, default=None)
        return drawn

    seen: list[object] = []
    bench.run(body)
    bench.clock.advance(3_600_000)
    outcome = bench.run(body, resume=True)
    assert seen[0] == seen[1] == outcome.value
    assert isinstance(outcome.value, list)
    assert outcome.value[0] == "2023-11-14T22:13:20+00:00"
    assert len({str(value) for value in outcome.value}) == 6
    assert 0 <= outcome.value[1] < 1


def test_a_leaked_call_of_a_body_that_has_returned_writes_nothing() -> None:
    bench = Bench()
    leaked: list[asyncio.Task[object]] = []
    ran: list[str] = []
    over = asyncio.Event()

    @workflow
    async def body(ctx: Context) -> str:
        async def later() -> object:
            await over.wait()
            return await ctx.step("late", ran.append, "late")

        leaked.append(asyncio.create_task(later()))
        return await ctx.step("s", lambda: "done")

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [body], clock=bench.clock) as engine:
            outcome = await engine.run(body, run_id="r")
            over.set()
            await asyncio.wait(leaked)
            assert type(leaked[0].exception()).__name__ == "SegmentEnded"
            return outcome

    assert asyncio.run(main()).value == "done"
    assert ran == []
    assert [key for _, key, _, _ in bench.calls()] == ["s", "s"]


@pytest.mark.parametrize("kind", ["step", "now"])
def test_a_call_whose_run_is_lost_while_it_was_journalled_does_not_begin(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opening landed; the keeper noticed the loss before the function was called."""
    bench = Bench()
    ran: list[str] = []

    landed = Replay.landed

    def landed_then_lost(replay: Replay, entry: JournalEntry) -> bool:
        first = landed(replay, entry)
        bench.store.seize("r", "successor")
        [owned] = kept
        owned.renew()  # the keeper's, due right now
        return first

    @workflow
    async def body(ctx: Context) -> None:
        monkeypatch.setattr(Replay, "landed", landed_then_lost)
        if kind == "step":
            await ctx.step("s", ran.append, "s")
        else:
            ran.append(str(await ctx.now()))

    kept: set[OwnedLease] = set()

    async def main() -> None:
        async with Engine(bench.stores, [body], clock=bench.clock) as engine:
            nonlocal kept
            kept = engine.runtime.renewer._kept
            with pytest.raises(SupersededError):
                await engine.run(body, run_id="r")

    asyncio.run(main())
    assert ran == []
