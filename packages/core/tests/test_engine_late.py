"""A lost run begins nothing more: not what waits for a thread, not what somebody shields."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from engine_late_bench import bench, hold_on, lose

from rulvar.core.audit import reconcile_run_meta
from rulvar.core.engine import (
    Compaction,
    Continue,
    Done,
    Engine,
    RetryPolicy,
    SegmentEnded,
    workflow,
)
from rulvar.core.errors import StoreFullError, SupersededError
from rulvar.core.journal import read_journal
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context
    from rulvar.core.engine.io.bridge import Bridge
    from rulvar.core.testing import StoreCall


def pass_over(threads: Bridge, left: int) -> None:
    """Wait, without the loop, until all but so many of the calls have been looked at."""
    while threads._unfinished > left:
        pass


@pytest.mark.parametrize("blocked", [True, False], ids=["loop blocked", "loop free"])
def test_a_step_that_waits_for_a_thread_does_not_begin_after_the_loss(blocked: bool) -> None:
    store, stores, clock = bench()
    ran: list[int] = []
    go = threading.Event()

    @workflow
    async def crowd(ctx: Context) -> None:
        async def first(inner: Context) -> None:
            await inner.step("first", go.wait, 10)

        async def waits(inner: Context) -> None:
            await inner.step("waits", ran.append, 1)

        async def loses(_inner: Context) -> None:
            while engine.runtime.step_threads._unfinished < 4:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            lose(store, engine)
            if blocked:  # the cancellation does not reach the branches: only the check is left
                go.set()
                pass_over(engine.runtime.step_threads, 0)

        await ctx.parallel("p", [first, waits, waits, waits, loses])

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [crowd], clock=clock, step_threads=1) as engine:
            with pytest.raises(SupersededError):
                await engine.run(crowd, run_id="r")
            go.set()
            await asyncio.to_thread(pass_over, engine.runtime.step_threads, 0)

    asyncio.run(main())
    assert ran == []


def test_a_step_that_is_given_up_while_it_waits_for_a_thread_does_not_begin() -> None:
    _store, stores, clock = bench()
    ran: list[str] = []
    began, go = threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        go.wait(10)

    @workflow
    async def impatient(ctx: Context) -> str:
        async def first(inner: Context) -> None:
            await inner.step("first", block)

        async def second(inner: Context) -> None:
            await asyncio.to_thread(began.wait, 10)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await inner.step("given up", ran.append, "given up")
            go.set()
            await inner.step("last", ran.append, "last")  # after it in the same thread

        await ctx.parallel("p", [first, second])
        return "fine"

    async def main() -> None:
        async with Engine(stores, [impatient], clock=clock, step_threads=1) as engine:
            assert (await engine.run(impatient, run_id="r")).value == "fine"

    asyncio.run(main())
    assert ran == ["last"]


def test_a_shielded_retry_is_not_made_after_the_loss() -> None:
    store, stores, clock = bench()
    tries: list[int] = []

    @workflow
    async def stubborn(ctx: Context) -> None:
        async def fails() -> None:
            tries.append(1)
            lose(store, engine)
            message = "as it happens"
            raise ValueError(message)

        policy = RetryPolicy(attempts=3, wait_initial=0.001, wait_max=0.001, wait_jitter=0)
        await hold_on(ctx.step("s", fails, retry=policy))

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [stubborn], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(stubborn, run_id="r")

    asyncio.run(main())
    assert tries == [1]


def test_a_shielded_loop_makes_no_summary_after_the_loss() -> None:
    store, stores, clock = bench()
    made: list[int] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        answer = perform()
        if call.method == "put" and b'"turns"' in call.payload:
            lose(store, engine)  # the checkpoint has landed: it was written in time
        return answer

    @workflow
    async def long(ctx: Context) -> None:
        compaction = Compaction(when=lambda _s, _n: True, make=lambda _s, n: made.append(n))
        await hold_on(ctx.turns("t", lambda _s, n: Continue(n), 0, compact=compaction))

    engine: Engine

    async def main() -> None:
        nonlocal engine
        watched = WatchedStores(stores, around=around)
        async with Engine(watched, [long], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(long, run_id="r")

    asyncio.run(main())
    assert made == []


def test_a_loss_that_is_noticed_while_a_segment_begins_runs_no_dangling_step() -> None:
    """Such a step has its entry already: no write that could be refused comes before it."""
    store, stores, clock = bench()
    ran: list[int] = []
    began = asyncio.Event()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        answer = perform()
        if call.method == "put_meta" and ran and call.arguments[0].segments == 2:  # type: ignore[attr-defined]
            lose(store, engine)  # the last write of a beginning has landed
        return answer

    @workflow
    async def long(ctx: Context) -> None:
        async def work() -> None:
            ran.append(1)
            began.set()
            await asyncio.Event().wait()

        await ctx.step("s", work)

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(WatchedStores(stores, around=around), [long], clock=clock) as engine:
            handle = engine.start(long, run_id="r")
            await began.wait()
            handle.detach()
            await handle.result()
            with pytest.raises(SupersededError):
                await asyncio.wait_for(engine.resume("r"), 10)

    asyncio.run(main())
    assert ran == [1]


def test_a_branch_that_waits_for_its_place_does_not_begin_after_the_loss() -> None:
    store, stores, clock = bench()
    ran: list[str] = []

    @workflow
    async def limited(ctx: Context) -> None:
        async def loses(_inner: Context) -> None:
            lose(store, engine)

        async def waits(_inner: Context) -> None:
            ran.append("waits")

        await hold_on(ctx.parallel("p", [loses, waits], limit=1))

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [limited], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(limited, run_id="r")

    asyncio.run(main())
    assert ran == []


def test_an_entry_that_waits_for_its_turn_is_not_journalled_after_the_end() -> None:
    store, stores, clock = bench()
    reached, go_on = threading.Event(), threading.Event()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append" and b'"key":"first"' in call.payload:
            reached.set()
            assert go_on.wait(10)
        return perform()

    @workflow
    async def both(ctx: Context) -> None:
        async def first(inner: Context) -> None:
            await inner.step("first", str)

        async def second(inner: Context) -> None:
            await inner.step("second", str)

        await hold_on(ctx.parallel("p", [first, second]))

    async def main() -> None:
        watched = WatchedStores(stores, around=around)
        async with Engine(watched, [both], clock=clock) as engine:
            handle = engine.start(both, run_id="r")
            await asyncio.to_thread(reached.wait, 10)
            handle.detach()
            for _ in range(5):
                await asyncio.sleep(0)
            go_on.set()
            assert (await handle.result()).status == "running"

    asyncio.run(main())
    keys = [entry.key for entry in read_journal("r", store.load("r")) if entry.key]
    assert keys == ["p", "first"]


@workflow
async def small(_ctx: Context) -> int:
    return 1


CALLS: dict[str, Callable[[Context], Awaitable[object]]] = {
    "step": lambda ctx: ctx.step("s", str),
    "turns": lambda ctx: ctx.turns("t", lambda _s, n: Done(n), 0),
    "now": lambda ctx: ctx.now(),
    "random": lambda ctx: ctx.random(),
    "uuid": lambda ctx: ctx.uuid(),
    "sleep": lambda ctx: ctx.sleep(0),
    "external": lambda ctx: ctx.await_external("e", timeout=0, default=1),
    "child": lambda ctx: ctx.child("c", small),
    "parallel": lambda ctx: ctx.parallel("p", []),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_lost_segment_is_not_even_served_from_its_journal(kind: str) -> None:
    store, stores, clock = bench()
    served: list[object] = []

    @workflow
    async def twice(ctx: Context) -> None:
        if ctx.segment == 2:
            lose(store, engine)
        served.append(await CALLS[kind](ctx))
        await ctx.await_external("k")

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [twice, small], clock=clock, suspend_after=0) as engine:
            for _ in range(9):  # a deadline of no time at all may still suspend it
                if (await engine.run(twice, run_id="r")).waiting_for[-1].key == "k":
                    break
            served.clear()
            with pytest.raises(SupersededError):
                await engine.resume("r")

    asyncio.run(main())
    assert served == []


def test_a_refusal_under_the_callers_lease_is_known_though_the_call_was_given_up() -> None:
    """The cancellation and the refusal of a checkpoint come together: both count."""
    store, stores, clock = bench()
    refused = threading.Event()
    given_up = threading.Event()
    said: list[str] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "put" and b'"turns"' in call.payload:
            store.seize("r", "successor")
            refused.set()
            given_up.wait(10)
        return perform()

    @workflow
    async def impatient(ctx: Context) -> str:
        loop = asyncio.create_task(ctx.turns("t", lambda _s, n: Continue(n), 0))
        await asyncio.to_thread(refused.wait, 10)
        loop.cancel()
        given_up.set()
        with contextlib.suppress(asyncio.CancelledError):
            await loop
        try:
            said.append(f"the token is {ctx.fencing_token}")
        except SegmentEnded as ended:
            said.append(str(ended))
            raise
        return "fine"

    async def main() -> None:
        lease = store.acquire("r", "caller")
        watched = WatchedStores(stores, around=around)
        async with Engine(watched, [impatient], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(impatient, run_id="r", lease=lease)

    asyncio.run(main())
    assert [text for text in said if "the token is" in text] == []


def test_a_loss_while_a_cancel_from_inside_is_on_its_way_is_no_exception_to_user_code() -> None:
    store, stores, clock = bench()
    asked: list[str] = []

    @workflow
    async def cancels(_ctx: Context) -> None:
        bridge = engine.runtime.bridge
        call = bridge.call

        async def lost_first(function: Callable[[], object], **options: object) -> object:
            bridge.call = call  # type: ignore[method-assign] # put back as it was
            lose(store, engine)
            return await call(function, **options)  # type: ignore[arg-type] # as they came

        bridge.call = lost_first  # type: ignore[method-assign, assignment] # stands before the call
        await hold_on(engine.cancel("r"))
        asked.append("cancel")

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [cancels], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(cancels, run_id="r")

    asyncio.run(main())
    assert asked == ["cancel"]


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_lost_run_is_lost_also_when_its_stores_fail_it(lost_first: bool) -> None:
    store, stores, clock = bench()

    @workflow
    async def fails(ctx: Context) -> None:
        fail = partial(ctx._segment.fail, StoreFullError("another branch met a full disk"))
        both = [partial(lose, store, engine), fail]
        for happens in both if lost_first else reversed(both):
            happens()
        await asyncio.Event().wait()

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [fails], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(fails, run_id="r")

    asyncio.run(main())


def test_what_waited_while_its_segment_was_lost_takes_no_other_run() -> None:
    """Asked from inside about a run that is slow to end: by then the asker has ended, too."""
    store, stores, clock = bench()
    leave = asyncio.Event()
    asked: list[asyncio.Task[None]] = []

    @workflow
    async def slow(ctx: Context) -> None:
        try:
            await ctx.await_external("k")
        finally:
            await leave.wait()

    @workflow
    async def asks(_ctx: Context) -> None:
        asked.append(asyncio.create_task(engine.resolve("slow", "k", 1)))
        await asyncio.sleep(0)
        lose(store, engine)
        await asyncio.Event().wait()

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [slow, asks], clock=clock, suspend_after=0) as engine:
            handle = engine.start(slow, run_id="slow")
            while handle._segment is None or handle._segment.ending is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            with pytest.raises(SupersededError):
                await engine.run(asks, run_id="r")
            leave.set()
            assert (await handle.result()).status == "suspended"
            before = store.load("slow")
            with pytest.raises(SegmentEnded):
                await asked[0]
            assert store.load("slow") == before
            assert store.snapshot().epochs["slow"] == 1

    asyncio.run(main())


def test_a_lost_segment_repairs_no_row() -> None:
    store, stores, clock = bench()
    refused: list[BaseException] = []

    @workflow
    async def repairs(ctx: Context) -> None:
        def lost_then_repair() -> None:
            lose(store, engine)
            row = store.get_meta("r")
            assert row is not None
            lease = store.seize("r", "successor again")
            store.put_meta(replace(row, status="ok"), lease=lease)  # stranded: worth a repair
            store.release(lease)  # anybody could take it now
            try:
                reconcile_run_meta(stores, "r", clock=clock)
            except BaseException as error:
                refused.append(error)
                raise
            finally:
                over.set()

        await ctx.step("repair", lost_then_repair)

    engine: Engine
    over = threading.Event()

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [repairs], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(repairs, run_id="r")
            await asyncio.to_thread(over.wait, 10)

    asyncio.run(main())
    assert isinstance(refused[0], SegmentEnded)
    assert store.snapshot().epochs["r"] == 3
