"""A child is a run of its own: begun by its parent, resumed and cancelled with it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from engine_family import Family, suspended

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    ConfigError,
    StepFailedError,
)
from rulvar.core.journal import GIVEN_UP

if TYPE_CHECKING:
    from rulvar.core.engine import Context, Event


# --- beginning --------------------------------------------------------------------------------


def test_the_dispatch_is_journalled_under_the_parents_lease_before_the_child_exists() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))
    calls = family.watched.calls
    dispatch = next(c for c in calls if c.method == "append" and b'"key":"asked"' in c.payload)
    assert dispatch.run_id == "r"
    assert dispatch.lease is not None
    first = next(c for c in calls if c.run_id == child_id)
    assert (first.method, first.number > dispatch.number) == ("acquire", True)
    changes = [c for c in calls if c.run_id == child_id and c.changes]
    leases = {c.lease for c in changes[1:]}
    assert len(leases) == 1, "every mutation of the child carries the child's own lease"
    assert leases != {dispatch.lease}
    row = family.store.get_meta(child_id)
    assert row is not None
    assert (row.parent_run_id, row.workflow_name, row.status) == ("r", "asks", "suspended")
    assert family.store.list_leases(None, 9) == []


def test_a_child_is_told_of_in_its_parents_events_and_in_its_own() -> None:
    family = Family()
    heard: list[Event] = []

    @workflow
    async def works(ctx: Context) -> object:
        return await ctx.step("work", lambda: 1)

    @workflow
    async def parent(ctx: Context) -> object:
        return await ctx.child("c", works)

    async def main() -> None:
        pair = family.watched
        async with Engine(pair, [parent], clock=family.clock, observer=heard.append) as engine:
            assert (await engine.run(parent, run_id="r")).value == 1

    asyncio.run(main())
    child_id = family.child("c")
    told = [(e.kind, e.name, e.detail) for e in heard if e.kind.startswith("child.")]
    assert told == [("child.started", "c", child_id), ("child.finished", "c", "ok")]
    own = [e.kind for e in heard if e.run_id == child_id]
    assert own[:2] == ["lease.granted", "run.started"]
    assert "step.started" in own


def test_a_parent_whose_id_leaves_no_room_for_its_childrens_is_refused_before_any_io() -> None:
    family = Family()
    told: list[str] = []

    @workflow
    async def long(ctx: Context) -> str:
        before = len(family.watched.calls)
        try:
            await ctx.child("c", family.counts, "x")
        except ConfigError as error:
            told.append(str(error))
        assert len(family.watched.calls) == before
        return "refused"

    async def main() -> None:
        async with family.engine(long) as engine:
            assert (await engine.run(long, run_id="x" * 184)).value == "refused"
            fits = await engine.run(family.parent, run_id="x" * 183)
            assert fits.status == "suspended"

    asyncio.run(main())
    assert len(told) == 1
    assert "shorter run_id" in told[0]


# --- suspension -------------------------------------------------------------------------------


def test_a_parent_suspends_with_its_child_until_the_child_wants_to_be_looked_at() -> None:
    family = Family()

    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep(30)
        return await ctx.step("woke", family.count, "woke")

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.child("sleeper", sleeps)

    async def main() -> None:
        async with family.engine(waits) as engine:
            outcome = await engine.run(waits, run_id="r")
        row = family.store.get_meta(family.child("sleeper"))
        assert row is not None
        assert (outcome.status, outcome.wake_at) == ("suspended", row.wake_at)
        assert outcome.wake_at is not None
        assert await family.until_idle(waits) == {}, "not before it is due"
        family.clock.advance(30_000)
        # A worker that knows the parent alone is enough: the parent brings its child.
        assert await family.until_idle(waits) == {"ok": 1}
        assert (await family.engine(waits).resume("r")).value == "WOKE"

    asyncio.run(main())


def test_an_answer_to_a_child_wakes_its_suspended_parent_through_a_worker() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))

    async def main() -> None:
        assert await family.until_idle() == {}
        async with family.engine() as engine:
            await engine.resolve(child_id, "ok", "yes")
        assert await family.until_idle() == {"ok": 1}
        async with family.engine() as engine:
            outcome = await engine.resume("r")
        assert (outcome.value, outcome.executed) == (list(Family.EXPECTED), 0)

    asyncio.run(main())
    assert set(family.ran.values()) == {1}


def test_an_answer_to_a_child_wakes_its_parent_that_another_branch_keeps_alive() -> None:
    family = Family()

    async def main() -> None:
        go_on = asyncio.Event()

        @workflow
        async def both(ctx: Context) -> object:
            async def one(branch: Context) -> object:
                answer = await branch.child("asked", family.asks)
                go_on.set()
                return answer

            async def other(branch: Context) -> str:
                await go_on.wait()
                return await branch.step("other", family.count, "other")

            return await ctx.parallel("both", [one, other])

        asks = asyncio.Event()
        loop = asyncio.get_running_loop()

        def observer(event: Event) -> None:
            if (event.kind, event.name) == ("run.settled", "suspended"):
                loop.call_soon_threadsafe(asks.set)

        known = [both]
        async with Engine(family.stores, known, clock=family.clock, observer=observer) as engine:
            handle = engine.start(both, run_id="r")
            await asks.wait()
            child_id = family.child("asked")
            assert family.status("r") == "running"
            await engine.resolve(child_id, "ok", "yes")
            outcome = await handle.result()
        assert outcome.value == [["BEFORE", "yes", "AFTER"], "OTHER"]
        assert outcome.segment == 1

    asyncio.run(main())


@pytest.mark.parametrize("ends_by", ["cancel", "delete"])
def test_a_child_that_ended_apart_from_its_suspended_parent_wakes_it(ends_by: str) -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))

    async def main() -> None:
        assert await family.until_idle() == {}, "the worker has seen the suspended parent"
        async with family.engine(family.asks, family.counts) as engine:
            if ends_by == "cancel":
                await engine.cancel(child_id)
            else:
                await engine.delete_run(child_id)
        status = {"cancel": "error", "delete": "suspended"}[ends_by]
        assert await family.until_idle() == {status: 1}

    asyncio.run(main())


# --- outcomes ---------------------------------------------------------------------------------


def test_a_failed_child_fails_the_call_and_is_replayed_as_failed() -> None:
    family = Family()
    healthy = False

    def work() -> str:
        family.ran["work"] += 1
        if not healthy:
            message = "not yet"
            raise ValueError(message)
        return "healed"

    @workflow
    async def fragile(ctx: Context) -> str:
        return await ctx.step("work", work)

    @workflow
    async def caring(ctx: Context) -> object:
        try:
            return await ctx.child("c", fragile)
        except StepFailedError as error:
            await ctx.step("noted", family.count, str(error.error_type))
            raise

    async def main() -> None:
        async with family.engine(caring) as engine:
            first = await engine.run(caring, run_id="r")
            again = await engine.resume("r")
            assert (first.status, again.status, again.executed) == ("error", "error", 0)
            assert first.error == again.error
            assert first.error is not None
            assert "not yet" in first.error.message
            assert family.ran == {"work": 1, "ValueError": 1}
            nonlocal healthy
            healthy = True
            retried = await engine.retry("r")
            assert (retried.status, retried.value) == ("ok", "healed")
        openings = [e.seq for e in family.entries("r") if e.kind == "child" and e.ref is None]
        assert [family.status(f"r.{seq}") for seq in openings] == ["ok"]
        assert len(openings) == 1, "the failed child goes on under its own run id"

    asyncio.run(main())


def test_a_child_that_was_given_up_under_a_timeout_is_cancelled() -> None:
    family = Family()

    async def main() -> None:
        entered = asyncio.Event()

        async def forever() -> None:
            entered.set()
            await asyncio.sleep(3600)

        @workflow
        async def endless(ctx: Context) -> None:
            await ctx.step("forever", forever)

        @workflow
        async def impatient(ctx: Context) -> str:
            task = asyncio.ensure_future(ctx.child("c", endless))
            await entered.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return "gave up"

        async with family.engine(impatient) as engine:
            outcome = await asyncio.wait_for(engine.run(impatient, run_id="r"), 20)
        assert (outcome.status, outcome.value) == ("ok", "gave up")
        child_id = family.child("c")
        assert family.status(child_id) == "cancelled"
        assert family.store.get_lease(child_id) is None
        given_up = [e.ref for e in family.entries("r") if e.kind == GIVEN_UP]
        assert [f"r.{seq}" for seq in given_up] == [child_id], "journalled before it is cancelled"

    asyncio.run(main())


def test_a_stop_lets_the_step_of_a_child_end_and_begins_no_other() -> None:
    family = Family()

    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            family.ran["slow"] += 1
            entered.set()
            await go_on.wait()
            return "slow"

        @workflow
        async def steps(ctx: Context) -> object:
            return [await ctx.step("one", slow), await ctx.step("two", family.count, "two")]

        @workflow
        async def above(ctx: Context) -> object:
            return await ctx.child("c", steps)

        async with family.engine(above) as engine:
            handle = engine.start(above, run_id="r")
            await entered.wait()
            handle.drain()
            await asyncio.sleep(0)
            go_on.set()
            outcome = await asyncio.wait_for(handle.result(), 20)
            assert outcome.status == "running"
            assert family.ran == {"slow": 1}
            assert family.store.list_leases(None, 9) == []
            assert (await engine.resume("r")).value == ["slow", "TWO"]
        assert family.ran == {"slow": 1, "two": 1}

    asyncio.run(main())
