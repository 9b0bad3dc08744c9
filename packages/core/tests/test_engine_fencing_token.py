"""The fencing token is the epoch that the run is held under, and a lost run has none."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, SegmentEnded, workflow
from rulvar.core.errors import SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context
    from rulvar.core.testing import StoreCall


def test_it_is_the_epoch_of_each_tenure_and_grows_when_the_run_is_taken_again() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    seen: list[int | None] = []

    @workflow
    async def passes_it_on(ctx: Context) -> None:
        await ctx.step("pay", lambda: seen.append(ctx.fencing_token))
        clock.advance(store.lease_ttl_ms)  # nobody takes it: the next write takes it again
        await ctx.step("ship", lambda: seen.append(ctx.fencing_token))
        seen.append(ctx.fencing_token)
        await ctx.await_external("paid")

    async def main() -> None:
        pair = Stores(store, store.transcripts())
        store.release(store.acquire("r", "somebody before"))
        for _ in range(2):
            async with Engine(pair, [passes_it_on], clock=clock, suspend_after=0) as engine:
                await engine.run(passes_it_on, run_id="r")

    asyncio.run(main())
    assert b'"epoch":2' in store.load("r")[1].payload, "the number that the journal has, too"
    assert seen == [2, 3, 3, 4]


def test_a_run_that_is_lost_has_none_to_pass_on() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    told: list[object] = []

    @workflow
    async def stubborn(ctx: Context) -> None:
        with contextlib.suppress(SegmentEnded, asyncio.CancelledError):
            await ctx.step("pay", lambda: 1)
        try:
            told.append(ctx.fencing_token)
        except SegmentEnded as ended:
            told.append(str(ended))

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append" and b'"key":"pay"' in call.payload:
            store.seize("r", "successor")
        return perform()

    async def main() -> None:
        watched = WatchedStores(Stores(store, store.transcripts()), around=around)
        async with Engine(watched, [stubborn], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.run(stubborn, run_id="r")

    asyncio.run(main())
    assert len(told) == 1
    assert "lost the run" in str(told[0])


def test_without_a_lease_there_is_none() -> None:
    @workflow
    async def tells(ctx: Context) -> object:
        return ctx.fencing_token

    async def main() -> object:
        store = ReferenceStore()
        pair = Stores(store, store.transcripts())
        async with Engine(pair, ownership="none") as engine:
            return (await engine.run(tells)).value

    assert asyncio.run(main()) is None
