"""A parent that dies or is superseded: its children are let go, and resumed with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest
from engine_family import Family, Image, ProcessDiedError, suspended

from rulvar.core.engine import workflow
from rulvar.core.errors import (
    LeaseHeldError,
    StoreFullError,
    SupersededError,
)
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall


# --- a crash at every call --------------------------------------------------------------------


async def through(family: Family, stores: StorePair) -> RunOutcome:
    """Start the parent, answer its child, and resume until it is over."""
    engine = family.engine(stores=stores)
    try:
        outcome = await engine.run(family.parent, run_id="r")
        while outcome.status not in TERMINAL_STATUSES:
            child_id = family.child("asked")
            if family.status(child_id) == "suspended":
                await engine.resolve(child_id, "ok", "yes")
            outcome = await engine.resume("r")
    finally:
        await engine.aclose()
    return outcome


def crash_at(at: int, when: Literal["before", "after"]) -> bool:
    family = Family()
    image = Image(at, when)
    with contextlib.suppress(ProcessDiedError):
        asyncio.run(through(family, WatchedStores(family.stores, around=image)))
    before = Counter(family.ran)
    runs = list(family.store.snapshot().journals)
    done = {
        str(entry.value).lower()
        for run_id in runs
        for entry in family.entries(run_id)
        if entry.kind == "step" and entry.ref is not None
    }
    family.clock.advance(family.store.lease_ttl_ms)
    outcome = asyncio.run(through(family, family.stores))
    assert outcome.value == list(Family.EXPECTED)
    for name, times in family.ran.items():
        assert times == before[name] if name in done else times <= 2, f"{name}: {times} times"
    assert set(family.ran) == {"first", "child", "before", "after", "last"}
    snapshot = family.store.snapshot()
    assert snapshot.leases == {}
    assert {row.status for row in snapshot.rows.values()} == {"ok"}
    assert set(snapshot.journals) == {"r", family.child("named"), family.child("asked")}
    for run_id in snapshot.journals:
        epochs = [entry.epoch or 0 for entry in family.entries(run_id)]
        assert epochs == sorted(epochs)
    return image.dead


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_parent_that_dies_at_any_store_call_is_resumed_with_its_children(
    when: Literal["before", "after"],
) -> None:
    at = 1
    while crash_at(at, when):
        at += 1
    assert at > 60, "a parent and two children make more calls than that"


# --- superseded -------------------------------------------------------------------------------


def test_a_superseded_parent_lets_its_children_go_at_once() -> None:
    family = Family()
    ended: list[str] = []

    async def main() -> None:
        in_child, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            in_child.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return "never"

        async def quick() -> str:
            return "done"

        work = [slow]

        @workflow
        async def careful(ctx: Context) -> str:
            return await ctx.step("work", work[0])

        @workflow
        async def two(ctx: Context) -> object:
            async def one(branch: Context) -> object:
                return await branch.child("c", careful)

            async def other(branch: Context) -> str:
                await go_on.wait()
                return await branch.step("write", family.count, "write")

            return await ctx.parallel("both", [one, other])

        async with family.engine(two) as engine:
            handle = engine.start(two, run_id="r")
            await in_child.wait()
            child_id = family.child("c")
            held = family.store.get_lease(child_id)
            assert held is not None
            assert held.live
            lease = family.store.seize("r", "successor")
            frozen = family.store.snapshot()
            go_on.set()
            with pytest.raises(SupersededError):
                await handle.result()
            assert ended == ["cancelled"]
            assert family.store.get_lease(child_id) is None, "its lease is given back at once"
        # Nothing was written after the takeover, in neither journal.
        assert family.store.snapshot().journals == frozen.journals
        rows = family.store.snapshot().rows
        assert rows["r"] == frozen.rows["r"]
        # The child still owned its run, and has let it go in order.
        assert rows[child_id] == replace(frozen.rows[child_id], stopped=1)
        assert family.ran["write"] == 0
        family.store.release(lease)
        work[0] = quick
        async with family.engine(two) as successor:
            outcome = await successor.resume("r")
        assert outcome.value == ["done", "WRITE"]
        child = family.store.get_meta(child_id)
        assert child is not None
        assert (child.status, child.segments) == ("ok", 2)

    asyncio.run(main())


def test_a_superseded_parent_lets_a_child_go_that_its_body_holds_on_to() -> None:
    """Not by way of the body, which is cancelled and does not obey."""
    family = Family()

    async def main() -> None:
        in_child, detach = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            in_child.set()
            await asyncio.Event().wait()

        @workflow
        async def careful(ctx: Context) -> object:
            return await ctx.step("work", slow)

        @workflow
        async def holds_on(ctx: Context) -> None:
            child = asyncio.ensure_future(ctx.child("c", careful))
            while not detach.is_set():
                try:
                    await asyncio.shield(child)
                except asyncio.CancelledError:
                    if child.done():
                        return

        async with family.engine(holds_on) as engine:
            handle = engine.start(holds_on, run_id="r")
            await in_child.wait()
            child_id = family.child("c")
            family.store.seize("r", "successor")
            [owned] = [one for one in engine.runtime.renewer._kept if one.run_id == "r"]
            await asyncio.to_thread(owned.renew)
            try:
                with pytest.raises(SupersededError):
                    await asyncio.wait_for(handle.result(), 10)
                assert family.store.get_lease(child_id) is None
            finally:
                detach.set()
        row = family.store.get_meta(child_id)
        assert row is not None
        assert row.status == "running", "it can be gone on with"

    asyncio.run(main())


def test_a_successor_waits_for_a_child_that_its_predecessor_holds_still() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))
    held = family.store.acquire(child_id, "predecessor")
    refused = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal refused
        if call.method == "acquire" and call.run_id == child_id:
            try:
                return perform()
            except LeaseHeldError:
                refused += 1
                if refused == 2:
                    family.store.release(held)
                raise
        return perform()

    async def main() -> RunOutcome:
        family.watched.around = around
        async with family.engine() as engine:
            return await engine.resume("r")

    assert asyncio.run(main()).status == "suspended"
    assert refused == 2
    assert family.ran["before"] == 1


def test_trouble_with_the_childs_store_ends_the_parents_segment_and_is_no_outcome() -> None:
    family = Family()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append" and call.run_id != "r" and b'"key":"count"' in call.payload:
            message = "no room"
            raise StoreFullError(message)
        return perform()

    async def main() -> None:
        async with family.engine() as engine:
            family.watched.around = around
            with pytest.raises(StoreFullError):
                await engine.run(family.parent, run_id="r")
            assert family.status("r") == "running"
            family.watched.around = lambda _call, perform: perform()
            assert (await engine.resume("r")).status == "suspended"

    asyncio.run(main())
    assert family.store.list_leases(None, 9) == []
