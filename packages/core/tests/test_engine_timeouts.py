"""Time limits that are journalled: of a step, a child, a block of calls, and a run."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.clock import SystemClock
from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import RunTimeoutError, StepFailedError
from rulvar.core.journal import GIVEN_UP
from rulvar.core.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context

    Body = Callable[[Context], Awaitable[object]]

LIMIT = 0.05


@pytest.fixture(autouse=True)
def _short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manual clock is looked at soon after it was moved."""
    monkeypatch.setattr("rulvar.core.engine.segment.scheduling._LONGEST_NAP_SECONDS", 0.01)


def real() -> ReplayBench:
    return ReplayBench(clock=SystemClock())


async def never() -> object:
    return await asyncio.Event().wait()


def too_slow(bench: ReplayBench, *, together: int = 1) -> Callable[[], Awaitable[object]]:
    """Return a step that never ends, and moves the clock by a minute once so many have begun."""
    begun: list[int] = []

    async def slow() -> object:
        begun.append(1)
        if len(begun) == together:
            bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
        return await never()

    return slow


async def told_or_value(call: Awaitable[object]) -> object:
    try:
        return await call
    except StepFailedError as error:
        return [error.error_type, str(error)]


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [LIMIT, timedelta(seconds=LIMIT)])
def test_a_step_that_is_too_late_fails_and_replays_as_failed(limit: float | timedelta) -> None:
    bench = real()

    async def body(ctx: Context) -> object:
        told = await told_or_value(ctx.step("slow", never, timeout=limit))
        await ctx.await_external("go")
        return told

    assert bench.life(body).status == "suspended"
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert isinstance(outcome.value, list)
    assert outcome.value[0] == "TimeoutError"
    assert "took longer than 0.05 s" in outcome.value[1]


def test_a_step_in_time_is_not_touched() -> None:
    bench = real()

    async def body(ctx: Context) -> object:
        return await ctx.step("quick", bench.pay_later, "quick", timeout=30)

    assert bench.life(body).value == "quick"


def test_after_a_crash_the_original_deadline_of_a_step_counts() -> None:
    bench = ReplayBench()
    entered = []

    async def slow() -> object:
        entered.append(1)
        bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
        return await never()

    async def body(ctx: Context) -> object:
        return await told_or_value(ctx.step("slow", slow, timeout=60))

    first = bench.life(body)
    opening = next(e for e in bench.entries() if e.key == "slow")
    bench.keep(opening.seq + 1)
    again = bench.life(body)
    assert again.value == first.value
    assert isinstance(again.value, list)
    assert again.value[0] == "TimeoutError"
    assert len(entered) == 1, "its time was over when the second life began"


def test_a_plain_function_that_is_too_late_keeps_its_thread_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = ReplayBench(clock=SystemClock(), step_threads=3)
    release = threading.Event()

    def blocks() -> str:
        release.wait(20)
        return bench.pay("late")

    async def body(ctx: Context) -> object:
        told = await told_or_value(ctx.step("slow", blocks, timeout=LIMIT))
        return [told, await ctx.step("next", bench.pay, "next")]

    with caplog.at_level(logging.WARNING):
        outcome = bench.life(body)
    release.set()
    assert isinstance(outcome.value, list)
    assert outcome.value[1] == "next"
    assert "1 of 3 step threads are kept" in caplog.text
    assert [e.status for e in bench.entries() if e.key == "slow"] == ["running", "error"]


# --- blocks -------------------------------------------------------------------------------------


def test_a_block_that_fires_is_catchable_and_replays_at_the_same_place() -> None:
    bench = ReplayBench()
    slow = too_slow(bench)

    async def body(ctx: Context) -> object:
        try:
            async with ctx.timeout(60):
                await ctx.step("before", bench.pay, "before")
                got = await ctx.step("slow", slow)
        except TimeoutError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        await ctx.await_external("go")
        return got

    assert bench.life(body).status == "suspended"
    seqs = {e.key: e.seq for e in bench.entries() if e.ref is None and e.key}
    [firing] = [e for e in bench.entries() if e.kind == "timeout" and e.ref is not None]
    assert firing.value == {"calls": [seqs["slow"]]}
    assert not any(e.kind == GIVEN_UP for e in bench.entries())
    paid = dict(bench.ran)
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, dict(bench.ran)) == ("fallback", paid)


def test_a_block_that_is_left_in_time_never_fires_later() -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        async with ctx.timeout(60):
            await ctx.step("quick", bench.pay, "quick")
        await ctx.await_external("go")
        return "in time"

    assert bench.life(body).status == "suspended"
    bench.clock.advance(3_600_000)  # type: ignore[attr-defined] # a manual one
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, bench.ran) == ("in time", {"quick": 1})


def test_after_a_crash_the_original_deadline_of_a_block_counts() -> None:
    bench = ReplayBench()
    entered = []

    async def slow() -> object:
        entered.append(1)
        bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
        return await never()

    async def body(ctx: Context) -> object:
        try:
            async with ctx.timeout(60):
                await ctx.step("slow", slow)
        except TimeoutError:
            return "too late"
        return "?"

    async def look(_engine: Engine) -> None:
        return None

    assert bench.life(body).value == "too late"
    opening = next(e for e in bench.entries() if e.key == "slow")
    bench.keep(opening.seq + 1)
    assert bench.life(body, before=look).value == "too late"
    assert len(entered) == 1


def test_a_block_around_a_suspension_wakes_the_run_at_its_deadline() -> None:
    bench = ReplayBench(suspend_after=0)

    async def body(ctx: Context) -> object:
        try:
            async with ctx.timeout(60):
                return await ctx.await_external("answer")
        except TimeoutError:
            return await ctx.step("fallback", bench.pay, "fallback")

    first = bench.life(body)
    assert first.status == "suspended"
    assert first.wake_at is not None
    bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
    outcome = bench.life(body)
    assert (outcome.status, outcome.value) == ("ok", "fallback")


def test_a_block_around_a_parallel_names_every_call_under_way() -> None:
    bench = ReplayBench()
    slow = too_slow(bench, together=2)

    async def body(ctx: Context) -> object:
        async def branch(inner: Context) -> object:
            await inner.step("quick", bench.pay, "quick")
            return await inner.step("slow", slow)

        try:
            async with ctx.timeout(60):
                got: object = await ctx.parallel("fan", [branch, branch])
        except TimeoutError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        await ctx.await_external("go")
        return got

    assert bench.life(body).status == "suspended"
    opened = {e.seq: e.key for e in bench.entries() if e.ref is None}
    [firing] = [e for e in bench.entries() if e.kind == "timeout" and e.ref is not None]
    assert isinstance(firing.value, dict)
    assert sorted(opened[seq] for seq in firing.value["calls"]) == ["fan", "slow", "slow"]
    paid = dict(bench.ran)
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, dict(bench.ran)) == ("fallback", paid)


def test_of_nested_blocks_the_outermost_that_is_due_fires() -> None:
    bench = ReplayBench()
    seen: list[str] = []

    async def slow() -> object:
        bench.clock.advance(60_000)  # type: ignore[attr-defined] # both are due at once
        return await never()

    async def body(ctx: Context) -> object:
        try:
            async with ctx.timeout(50):
                try:
                    async with ctx.timeout(10):
                        await ctx.step("slow", slow)
                except TimeoutError:
                    seen.append("inner")
                    raise
        except TimeoutError:
            seen.append("outer")
        await ctx.await_external("go")
        return seen

    assert bench.life(body).status == "suspended"
    assert seen == ["outer"]
    seen.clear()
    assert bench.life(body, before=lambda engine: engine.resolve("r", "go")).status == "ok"
    assert seen == ["outer"]


def test_a_deadline_that_passes_between_calls_is_delivered_at_the_next_one() -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        try:
            async with ctx.timeout(10):
                await ctx.step("first", bench.pay, "first")
                bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
                await ctx.step("second", bench.pay, "second")
        except TimeoutError:
            await ctx.step("fallback", bench.pay, "fallback")
        await ctx.await_external("go")
        return "over"

    assert bench.life(body).status == "suspended"
    assert bench.ran == {"first": 1, "fallback": 1}
    assert bench.life(body, before=lambda engine: engine.resolve("r", "go")).value == "over"
    assert bench.ran == {"first": 1, "fallback": 1}


# --- children -----------------------------------------------------------------------------------


def test_a_child_that_is_too_late_is_cancelled_after_it_is_journalled() -> None:
    bench = ReplayBench()
    slow = too_slow(bench)

    @workflow
    async def endless(ctx: Context) -> object:
        return await ctx.step("never", slow)

    async def body(ctx: Context) -> object:
        return await told_or_value(ctx.child("c", endless, timeout=60))

    outcome = bench.life(body)
    assert isinstance(outcome.value, list)
    assert outcome.value[0] == "TimeoutError"
    [seq] = [e.seq for e in bench.entries() if e.kind == "child" and e.ref is None]
    row = bench.store.get_meta(f"r.{seq}")
    assert row is not None
    assert row.status == "cancelled"
    assert bench.store.get_lease(f"r.{seq}") is None


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_that_is_not_over_at_its_deadline_ends_in_error_and_cancels_its_children() -> None:
    clock = ManualClock()
    bench = ReplayBench(clock=clock)

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("never")

    @workflow(name="w")
    async def body(ctx: Context) -> object:
        return await ctx.child("c", waits)

    async def main() -> None:
        async with Engine(bench.stores(), [body, waits], clock=clock, suspend_after=0) as engine:
            first = await engine.run(body, run_id="r", deadline=timedelta(minutes=1))
            assert first.status == "suspended"
            assert first.wake_at is not None, "the deadline counts in when the run is due"
            clock.advance(59_999)
            assert (await engine.resume("r")).status == "suspended"
            clock.advance(1)
            outcome = await engine.resume("r")
            assert outcome.status == "error"
            with pytest.raises(RunTimeoutError):
                outcome.unwrap()
            again = await engine.resume("r")
            assert (again.status, again.error) == ("error", outcome.error)

    asyncio.run(main())
    [seq] = [e.seq for e in bench.entries() if e.kind == "child" and e.ref is None]
    row = bench.store.get_meta(f"r.{seq}")
    assert row is not None
    assert row.status == "cancelled"


def test_a_running_body_is_ended_at_the_deadline() -> None:
    bench = real()

    @workflow(name="w")
    async def body(ctx: Context) -> object:
        return await ctx.step("never", never)

    async def main() -> None:
        async with Engine(bench.stores(), [body]) as engine:
            outcome = await asyncio.wait_for(engine.run(body, run_id="r", deadline=LIMIT), 20)
            assert outcome.status == "error"

    asyncio.run(main())
