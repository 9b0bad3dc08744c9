"""What a run asks about itself from inside goes through its own door, and is refused there."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, RetentionPolicy, SegmentEnded, workflow
from rulvar.core.errors import LeaseHeldError, RunCancelledError, SupersededError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.records import Lease
    from rulvar.core.testing import StoreCall, StoreSnapshot


class Takeover:
    """Lets a successor seize the run just before the call that it waits for."""

    def __init__(self, store: ReferenceStore, due: Callable[[StoreCall], bool]) -> None:
        self.store = store
        self.due = due
        self.lease: Lease | None = None
        self.snapshot: StoreSnapshot | None = None
        self.seen_at_takeover = 0
        self.ran: list[str] = []

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self.lease is None and self.due(call):
            self.lease = self.store.seize("r", "successor")
            self.snapshot = self.store.snapshot()
            self.seen_at_takeover = len(self.ran)
        return perform()


def bench() -> tuple[ReferenceStore, Stores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, Stores(store, store.transcripts()), clock


def test_calls_from_inside_use_the_segments_own_lease() -> None:
    store, stores, clock = bench()
    watched = WatchedStores(stores)
    refused: list[object] = []

    @workflow
    async def asks(ctx: Context) -> object:
        async def answer() -> None:
            await engine.resolve("r", "k", "from inside")

        async def waits(inner: Context) -> object:
            return await inner.await_external("k")

        async def resolves(inner: Context) -> object:
            return await inner.step("resolve", answer)

        [value, _] = await ctx.parallel("p", [waits, resolves])
        for again in (engine.resume("r"), engine.run(asks, run_id="r")):
            try:
                await again
            except LeaseHeldError as error:
                refused.append(error.reason)
        return value

    engine: Engine

    async def main() -> RunOutcome:
        nonlocal engine
        async with Engine(watched, [asks], clock=clock) as engine:
            return await engine.run(asks, run_id="r")

    outcome = asyncio.run(main())
    assert outcome.value == "from inside"
    assert refused == ["held", "held"]
    assert [c.method for c in watched.changes()].count("acquire") == 1
    assert {c.lease for c in watched.changes() if c.method == "append"} == {
        watched.changes()[1].lease
    }
    assert store.list_leases(None, 1) == []


@pytest.mark.parametrize("ask", ["cancel", "delete_run", "prune_run", "resolve", "resume"])
@pytest.mark.parametrize("thread", [False, True], ids=["task", "thread"])
@pytest.mark.parametrize("asked_engine", ["same", "other", "other over the same database"])
def test_a_superseded_segment_is_refused_from_inside_and_gets_no_fresh_lease(
    ask: str, thread: bool, asked_engine: str
) -> None:
    store, stores, clock = bench()
    takeover = Takeover(store, lambda _call: False)
    watched = WatchedStores(stores, around=takeover)
    seen: list[type[BaseException]] = []

    @workflow
    async def asks(ctx: Context) -> None:
        def about_itself() -> Awaitable[object]:
            asked = engine if asked_engine == "same" else other
            if ask == "resolve":
                return asked.resolve("r", "k", 1)
            return getattr(asked, ask)("r")  # type: ignore[no-any-return]

        async def call() -> None:
            takeover.due = lambda _call: True
            takeover(watched.calls[-1], lambda: None)
            store.release(takeover.lease or pytest.fail("no takeover"))
            takeover.snapshot = store.snapshot()  # nobody holds it: a fresh lease would be granted
            try:
                await about_itself()
            except BaseException as error:
                seen.append(type(error))
                raise

        async def parks(inner: Context) -> None:
            await inner.await_external("k")

        async def step(inner: Context) -> None:
            await inner.step("ask", (lambda: asyncio.run(call())) if thread else call)

        await ctx.parallel("p", [parks, step])

    engine: Engine
    other: Engine

    async def main() -> None:
        nonlocal engine, other
        another = WatchedStores(stores)  # objects of its own, over one fencing domain
        async with (
            Engine(watched, [asks], clock=clock) as engine,
            Engine(watched if asked_engine == "other" else another, [asks], clock=clock) as other,
        ):
            with pytest.raises(SupersededError):
                await engine.run(asks, run_id="r")

    asyncio.run(main())
    assert store.snapshot() == takeover.snapshot
    assert [c.method for c in watched.changes()].count("acquire") == 1


@pytest.mark.parametrize("run_id", ["r", "another"])
@pytest.mark.parametrize("ask", ["cancel", "delete_run", "resolve", "resume", "run", "retention"])
def test_what_is_left_of_a_segment_that_has_ended_may_begin_nothing(ask: str, run_id: str) -> None:
    store, stores, clock = bench()
    watched = WatchedStores(stores)
    left: list[contextvars.Context] = []

    @workflow
    async def leaves(ctx: Context) -> int:
        def keep() -> None:
            left.append(contextvars.copy_context())

        await ctx.step("keep", keep)
        return 1

    async def main() -> None:
        async with Engine(watched, [leaves], clock=clock) as engine:
            await engine.run(leaves, run_id="another")
            left.clear()
            await engine.run(leaves, run_id="r")
            before, calls = store.snapshot(), len(watched.calls)

            async def late() -> None:
                if ask == "resolve":
                    await engine.resolve(run_id, "k", 1)
                elif ask == "run":
                    await engine.run(leaves, run_id=run_id)
                elif ask == "retention":
                    await engine.apply_retention(RetentionPolicy(older_than=0))
                else:
                    await getattr(engine, ask)(run_id)

            with pytest.raises(SegmentEnded):
                await asyncio.get_running_loop().create_task(late(), context=left[0])
            assert store.snapshot() == before
            assert len(watched.calls) == calls

    asyncio.run(main())


@pytest.mark.parametrize("thread", [False, True], ids=["task", "thread"])
def test_deleting_a_run_from_inside_ends_it_as_deleted(thread: bool) -> None:
    store = ReferenceStore(lease_ttl_ms=90)
    stores = WatchedStores(Stores(store, store.transcripts()))
    ran: list[str] = []

    @workflow
    async def deletes(ctx: Context) -> None:
        async def delete() -> None:
            await engine.delete_run("r")

        try:
            await ctx.step("delete", (lambda: asyncio.run(delete())) if thread else delete)
        finally:
            # Slow to leave: the keeper would have renewed by now.
            time.sleep(0.1)  # noqa: ASYNC251 - it blocks the loop on purpose
            ran.append("left")
            await ctx.step("after", ran.append, "after")

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [deletes]) as engine:
            with pytest.raises(RunCancelledError):
                await engine.run(deletes, run_id="r")

    asyncio.run(main())
    assert ran == ["left"]
    assert store.list_run_ids(None, 10) == []
    assert [c.method for c in stores.changes()].count("acquire") == 1


def test_one_run_id_in_two_databases_is_two_runs() -> None:
    store, stores, clock = bench()
    other_store, other_stores, _ = bench()

    @workflow
    async def inner(ctx: Context) -> str:
        return await ctx.step("s", lambda: "inner")

    @workflow
    async def outer(ctx: Context) -> object:
        async def elsewhere() -> object:
            value = (await there.run(inner, run_id="r")).value
            await there.delete_run("r")
            return value

        return await ctx.step("elsewhere", elsewhere)

    there: Engine

    async def main() -> RunOutcome:
        nonlocal there
        async with (
            Engine(stores, [outer], clock=clock) as here,
            Engine(other_stores, [inner]) as there,
        ):
            return await here.run(outer, run_id="r")

    assert asyncio.run(main()).value == "inner"
    assert read_journal("r", store.load("r"))[-1].kind == "decision"
    assert other_store.load("r") == ()


def test_a_thread_of_a_steps_own_knows_the_run_if_it_is_given_the_context() -> None:
    store, stores, clock = bench()
    told: list[type[Exception] | None] = []
    threads_of_step: list[threading.Thread] = []

    def ask() -> None:
        try:
            asyncio.run(engine.delete_run("r"))
        except (LeaseHeldError, RunCancelledError) as error:
            told.append(type(error))
        else:
            told.append(None)

    def step() -> None:
        contexts = (contextvars.Context(), contextvars.copy_context())
        for each in contexts:
            thread = threading.Thread(target=each.run, args=(ask,))
            threads_of_step.append(thread)
            thread.start()
            thread.join()

    @workflow
    async def threads(ctx: Context) -> None:
        await ctx.step("ask", step)

    async def main() -> None:
        async with engine:
            await engine.run(threads, run_id="r")

    engine = Engine(stores, workflows=[threads], clock=clock)
    with pytest.raises(RunCancelledError):
        asyncio.run(main())
    for thread in threads_of_step:
        thread.join()  # nobody waits for a step of a run that is gone
    assert told == [LeaseHeldError, None]
    assert not store.load("r")
