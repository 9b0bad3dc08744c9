"""The settle comes before the row, is written on change, and never reports a success it has not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import RulvarError, SettlementError, StoreFullError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.testing import StoreCall


def bench() -> tuple[ReferenceStore, WatchedStores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, WatchedStores(Stores(store, store.transcripts())), clock


@workflow
async def two_steps(ctx: Context) -> object:
    first = await ctx.step("one", lambda: 1)
    return [first, await ctx.step("two", lambda: 2)]


async def run(stores: WatchedStores, clock: ManualClock, body: Workflow = two_steps) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.run(body, run_id="r")


async def resume(
    stores: WatchedStores, clock: ManualClock, body: Workflow = two_steps
) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.resume("r")


@pytest.mark.parametrize("error", [StoreFullError("full"), RuntimeError("a store without manners")])
def test_a_failing_settle_is_a_settlement_error_and_the_row_is_not_written(
    error: Exception,
) -> None:
    store, stores, clock = bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append" and b"run_settle" in call.payload:
            raise error
        return perform()

    stores.around = around
    with pytest.raises(SettlementError) as caught:
        asyncio.run(run(stores, clock))
    assert caught.value.__cause__ is error
    assert caught.value.run_id == "r"
    assert [c.method for c in stores.changes()][-2:] == ["append", "release"]
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "running"
    stores.around = lambda _call, perform: perform()
    assert asyncio.run(resume(stores, clock)).value == [1, 2]


def test_a_failing_terminal_row_is_a_settlement_error_and_healed_later() -> None:
    store, stores, clock = bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "put_meta" and stores.calls[-2].method == "append" and call.number > 12:
            message = "no room"
            raise StoreFullError(message)
        return perform()

    stores.around = around
    with pytest.raises(SettlementError):
        asyncio.run(run(stores, clock))
    journal = store.load("r")
    assert b"run_settle" in journal[-1].payload
    stores.around = lambda _call, perform: perform()
    outcome = asyncio.run(resume(stores, clock))
    assert (outcome.value, outcome.executed, outcome.replayed) == ([1, 2], 0, 0)
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "ok"
    assert store.load("r") == journal


def test_replaying_a_settled_run_appends_nothing_and_executes_nothing() -> None:
    store, stores, clock = bench()
    first = asyncio.run(run(stores, clock))
    before = store.snapshot()
    stores.calls.clear()
    again = asyncio.run(resume(stores, clock))
    assert again.value == first.value
    assert [c.method for c in stores.changes()] == ["acquire", "release"]
    after = store.snapshot()
    assert (after.journals, after.rows, after.blobs) == (before.journals, before.rows, before.blobs)


def test_a_terminal_run_is_resumed_without_its_workflow() -> None:
    _store, stores, clock = bench()
    asyncio.run(run(stores, clock))

    async def main() -> RunOutcome:
        async with Engine(stores, clock=clock) as engine:
            return await engine.resume("r")

    assert asyncio.run(main()).value == [1, 2]


def test_a_suspended_run_that_is_looked_at_settles_once() -> None:
    """Write on change: the same status and no new work is not journalled again."""
    store, stores, clock = bench()

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            assert (await engine.run(waits, run_id="r")).status == "suspended"
            journal = store.load("r")
            assert (await engine.resume("r")).status == "suspended"
            assert store.load("r") == journal
            row = store.get_meta("r")
            assert row is not None
            assert (row.status, row.segments) == ("suspended", 2)

    asyncio.run(main())


def test_the_settle_comes_before_the_row() -> None:
    _store, stores, clock = bench()
    asyncio.run(run(stores, clock))
    last = [c for c in stores.changes() if c.method in {"append", "put_meta"}][-2:]
    assert [c.method for c in last] == ["append", "put_meta"]
    assert b'"decisionType":"run_settle"' in last[0].payload


def test_a_settle_says_how_the_segment_ended() -> None:
    store, stores, clock = bench()

    @workflow
    async def fails(_ctx: Context) -> None:
        message = "on purpose"
        raise KeyError(message)

    outcome = asyncio.run(run(stores, clock, fails))
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.error_type == "KeyError"
    settle = read_journal("r", store.load("r"))[-1]
    assert settle.error is not None
    assert settle.error["code"] == "run-failed"
    with pytest.raises(RulvarError, match="on purpose"):
        outcome.unwrap()


def test_a_run_whose_row_lags_is_repaired_without_touching_its_journal() -> None:
    store, stores, clock = bench()
    asyncio.run(run(stores, clock))
    row, journal = store.get_meta("r"), store.load("r")
    assert row is not None
    store.put_meta(replace(row, status="running", name="kept"))
    outcome = asyncio.run(resume(stores, clock))
    assert (outcome.status, outcome.executed) == ("ok", 0)
    repaired = store.get_meta("r")
    assert repaired is not None
    assert (repaired.status, repaired.name, repaired.genesis) == ("ok", "kept", row.genesis)
    assert store.load("r") == journal


def test_a_run_whose_row_is_gone_gets_one_from_its_journal() -> None:
    store, stores, clock = bench()

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            await engine.run(waits, run_id="r")
            records = store.load("r")
            store.delete("r")
            for record in records:
                store.append("r", record)
            assert (await engine.resume("r")).status == "suspended"
            await engine.resolve("r", "k", 5)
            assert (await engine.resume("r")).value == 5

    asyncio.run(main())
    row = store.get_meta("r")
    assert row is not None
    assert (row.status, row.workflow_name) == ("ok", "waits")


def test_a_resolved_run_that_still_waits_settles_again() -> None:
    """Otherwise its journal looks grown for ever, and a worker takes it up for ever."""
    store, stores, clock = bench()

    @workflow
    async def waits(ctx: Context) -> object:
        async def one(inner: Context) -> object:
            return await inner.await_external("one")

        async def two(inner: Context) -> object:
            return await inner.await_external("two")

        return await ctx.parallel("p", [one, two])

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            await engine.run(waits, run_id="r")
            await engine.resolve("r", "one", 1)
            assert (await engine.resume("r")).status == "suspended"
            journal = store.load("r")
            assert b"run_settle" in journal[-1].payload
            assert (await engine.resume("r")).status == "suspended"
            assert store.load("r") == journal
            await engine.resolve("r", "two", 2)
            assert (await engine.resume("r")).value == [1, 2]

    asyncio.run(main())


def test_a_cancel_counts_also_while_a_run_is_being_let_go() -> None:
    store, stores, clock = bench()
    began, leave = asyncio.Event(), asyncio.Event()

    @workflow
    async def slow(_ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await leave.wait()

    async def main() -> str:
        async with Engine(stores, [slow], clock=clock) as engine:
            handle = engine.start(slow, run_id="r")
            await began.wait()
            handle.detach()
            cancelled = asyncio.create_task(handle.cancel())
            asyncio.get_running_loop().call_soon(leave.set)
            return (await cancelled).status

    assert asyncio.run(main()) == "cancelled"
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "cancelled"


def test_a_segment_that_only_replays_settles_what_nobody_has_settled() -> None:
    """Its predecessor died between the last answer and the settle."""
    store, stores, clock = bench()

    @workflow
    async def one(ctx: Context) -> str:
        return await ctx.step("s", lambda: "done")

    async def main() -> RunOutcome:
        async with Engine(stores, [one], clock=clock) as engine:
            await engine.run(one, run_id="r")
            row = store.get_meta("r")
            assert row is not None
            store.put_meta(replace(row, status="running"))
            assert b"run_settle" in store._tables._runs["r"].records.pop().payload
            return await engine.resume("r")

    outcome = asyncio.run(main())
    assert (outcome.value, outcome.executed) == ("done", 0)
    assert b"run_settle" in store.load("r")[-1].payload


def test_a_segment_that_ends_otherwise_than_the_one_before_settles_again() -> None:
    store, stores, clock = bench()
    parked = asyncio.Event()

    @workflow
    async def waits(ctx: Context) -> None:
        parked.set()
        await ctx.await_external("k", timeout=0.05)

    async def main() -> str:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            await engine.run(waits, run_id="r")
        parked.clear()
        async with Engine(stores, [waits], clock=clock, suspend_after=0.1) as engine:
            handle = engine.start_resume("r")
            await parked.wait()
            return (await handle.cancel()).status

    assert asyncio.run(main()) == "cancelled"
    settles = [b'"cancelled"' in r.payload for r in store.load("r") if b"run_settle" in r.payload]
    assert settles == [False, True]


def test_a_segment_whose_task_is_cancelled_ends_its_body_before_it_gives_its_lease_back() -> None:
    """As code does that cancels every task it can find."""
    store, stores, clock = bench()
    began = asyncio.Event()
    held: list[bool] = []

    @workflow
    async def waits(_ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            lease = store.get_lease("r")
            held.append(lease is not None and lease.live)

    async def main() -> str:
        async with Engine(stores, [waits], clock=clock) as engine:
            handle = engine.start(waits, run_id="r")
            await began.wait()
            [task] = [t for t in asyncio.all_tasks() if t.get_name() == "rulvar-segment:r"]
            task.cancel()
            return (await handle.result()).status

    assert asyncio.run(main()) == "running"
    assert held == [True]
    assert store.list_leases(None, 1) == []
