"""A retry makes the error again, and nothing that completed is paid a second time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.engine.admin.run_admin import reopen_run, would_reopen
from rulvar.core.engine.admin.run_admin import retry as reopen
from rulvar.core.errors import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context

    Body = Callable[[Context], Awaitable[object]]


class Flaky(ReplayBench):
    """Steps fail until the world is well."""

    well = False

    def risky(self, what: str) -> str:
        self.pay(what)
        if not self.well:
            message = f"{what} is not well"
            raise RuntimeError(message)
        return what


def test_only_the_failed_step_is_made_again() -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        await ctx.step("reserve", bench.pay, "reserve")
        got = await ctx.step("charge", bench.risky, "charge")
        return [got, await ctx.step("ship", bench.pay, "ship")]

    assert bench.life(body).status == "error"
    bench.well = True
    assert bench.life(body).status == "error", "resuming a run that is over executes nothing"
    outcome = bench.life(body, retry=True)
    assert (outcome.status, outcome.value) == ("ok", ["charge", "ship"])
    assert bench.ran == {"reserve": 1, "charge": 2, "ship": 1}
    assert bench.life(body, retry=True).value == ["charge", "ship"], "it did not fail: nothing"
    assert bench.ran == {"reserve": 1, "charge": 2, "ship": 1}


def test_a_compensation_is_made_again_with_what_it_compensated() -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        await ctx.step("seat", bench.pay, "seat")
        try:
            await ctx.step("ticket", bench.risky, "ticket")
        except StepFailedError:
            await ctx.step("give the seat back", bench.pay, "back")
            raise
        return "booked"

    assert bench.life(body).status == "error"
    bench.well = True
    outcome = bench.life(body, retry=True)
    assert outcome.value == "booked"
    assert bench.ran == {"seat": 1, "ticket": 2, "back": 1}
    assert bench.life(body).value == "booked"


def test_an_error_of_the_bodys_own_leaves_everything_and_goes_on_behind_it() -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        if not bench.well:
            message = "the body's own"
            raise ValueError(message)
        return await ctx.step("b", bench.pay, "b")

    assert bench.life(body).status == "error"
    bench.well = True
    assert bench.life(body, retry=True).value == "b"
    assert bench.ran == {"a": 1, "b": 1}


@pytest.mark.parametrize("how", ["wrapped", "grouped", "in a handler"])
def test_the_failed_call_is_found_behind_the_bodys_own_exception(how: str) -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        try:
            return await ctx.step("charge", bench.risky, "charge")
        except StepFailedError as error:
            if how == "wrapped":
                message = "no luck"
                raise ValueError(message) from error
            if how == "grouped":
                message = "several"
                raise ExceptionGroup(message, [KeyError("x"), error]) from None
            nothing: dict[str, object] = {}
            return nothing["at all"]

    assert bench.life(body).status == "error"
    bench.well = True
    assert bench.life(body, retry=True).value == "charge"


def test_the_failed_calls_of_all_branches_are_made_again_and_nothing_else_of_them() -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        def branch(name: str, *, risky: bool) -> Body:
            async def run(inner: Context) -> object:
                await inner.step("prepare", bench.pay, f"prepare {name}")
                return await inner.step("do", bench.risky if risky else bench.pay, name)

            return run

        risky = [("x", True), ("y", False), ("z", True)]
        got = await ctx.parallel("fan", [branch(n, risky=r) for n, r in risky])
        return [*got, await ctx.step("after", bench.pay, "after")]

    assert bench.life(body).status == "error"
    bench.well = True
    outcome = bench.life(body, retry=True)
    assert outcome.value == ["x", "y", "z", "after"]
    once = {"prepare x": 1, "prepare y": 1, "prepare z": 1, "y": 1, "after": 1}
    assert bench.ran == once | {"x": 2, "z": 2}


def test_a_failed_child_goes_on_under_its_own_id_and_pays_nothing_twice() -> None:
    bench = Flaky()

    @workflow(name="child")
    async def child(ctx: Context) -> object:
        await ctx.step("first", bench.pay, "first")
        return await ctx.step("second", bench.risky, "second")

    @workflow(name="w")
    async def parent(ctx: Context) -> object:
        return await ctx.child("c", child)

    async def main(*, retry: str | None = None) -> object:
        async with Engine(bench.stores(), [parent, child], clock=bench.clock) as engine:
            if bench.store.get_meta("r") is None:
                return (await engine.run(parent, run_id="r")).status
            if retry is not None:
                await engine.retry(retry)
            outcome = await engine.retry("r")
            return outcome.value

    assert asyncio.run(main()) == "error"
    [seq] = [e.seq for e in bench.entries() if e.kind == "child" and e.ref is None]
    bench.well = True
    assert asyncio.run(main()) == "second"
    assert bench.ran == {"first": 1, "second": 2}
    runs = [row.run_id for row in bench.store.list_runs()]
    assert runs == ["r", f"r.{seq}"], "no second child"


def test_a_child_that_was_retried_by_itself_is_not_executed_again() -> None:
    bench = Flaky()

    @workflow(name="child")
    async def child(ctx: Context) -> object:
        return await ctx.step("work", bench.risky, "work")

    @workflow(name="w")
    async def parent(ctx: Context) -> object:
        return await ctx.child("c", child)

    async def main() -> None:
        async with Engine(bench.stores(), [parent, child], clock=bench.clock) as engine:
            assert (await engine.run(parent, run_id="r")).status == "error"
            [seq] = [e.seq for e in bench.entries() if e.kind == "child" and e.ref is None]
            bench.well = True
            assert (await engine.retry(f"r.{seq}")).value == "work"
            assert (await engine.retry("r")).value == "work"

    asyncio.run(main())
    assert bench.ran == {"work": 2}


def test_a_retry_that_died_before_its_row_is_finished_by_the_next() -> None:
    bench = Flaky()

    @workflow(name="w")
    async def body(ctx: Context) -> object:
        return await ctx.step("work", bench.risky, "work")

    async def main() -> None:
        async with Engine(bench.stores(), [body], clock=bench.clock) as engine:
            assert (await engine.run(body, run_id="r")).status == "error"
            row = bench.store.get_meta("r")
            assert row is not None
            assert await reopen_run(engine.runtime, "r") is None
            journalled = bench.store.load("r")
            bench.store.put_meta(row)  # as a kill between the two writes leaves it
            assert await would_reopen(engine.runtime, "r") == (True, "error")
            assert await reopen_run(engine.runtime, "r") is None
            assert bench.store.load("r") == journalled, "it is journalled once"
            assert await would_reopen(engine.runtime, "r") == (False, "suspended")
            bench.well = True
            report = await Worker(engine).run(until_idle=True)
            assert report.outcomes == {"ok": 1}

    asyncio.run(main())
    assert bench.ran == {"work": 2}


def test_a_retry_that_is_only_journalled_reopens_the_run_for_workers() -> None:
    bench = Flaky()

    async def body(ctx: Context) -> object:
        return await ctx.step("charge", bench.risky, "charge")

    assert bench.life(body).status == "error"
    bench.well = True

    async def ask(engine: Engine) -> None:
        await engine._with_short_lease("r", None, reopen)

    async def look() -> None:
        async with Engine(bench.stores(), clock=bench.clock) as engine:  # without any code
            await ask(engine)

    asyncio.run(look())
    row = bench.row
    assert row.status == "suspended"
    assert row.wake_at is not None
    assert bench.life(body).value == "charge"
    assert bench.ran == {"charge": 2}


def test_a_wait_that_timed_out_asks_again_with_a_new_deadline() -> None:
    bench = ReplayBench(suspend_after=0)

    async def body(ctx: Context) -> object:
        return await ctx.await_external("k", timeout=60)

    assert bench.life(body).status == "suspended"
    bench.clock.advance(60_000)  # type: ignore[attr-defined] # a manual one
    assert bench.life(body).status == "error"
    assert bench.life(body, retry=True).status == "suspended"
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "k", "late but fine"))
    assert outcome.value == "late but fine"
