"""While a run is taken again the door is closed; then it is as open as after the first take."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.io.mutations import LeaseApi
from rulvar.core.engine.lease.ownership import OwnedLease
from rulvar.core.errors import LeaseHeldError, StoreBusyError, SupersededError
from rulvar.core.journal import JournalEntry, encode_entry, read_journal
from rulvar.core.records import JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context
    from rulvar.core.engine.kernel.authority import Authority
    from rulvar.core.testing import StoreCall


def test_nobody_is_handed_a_lease_while_it_is_being_checked() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    calls = LeaseApi(Stores(store, store.transcripts()))
    owned = OwnedLease.take(calls, "r", "me", lease_ttl_ms=store.lease_ttl_ms, clock=clock)
    first = owned.lease
    answers: list[Authority] = []
    asks = threading.Thread(target=lambda: answers.append(owned.authority()))

    def verify() -> bool:
        asks.start()
        asks.join(0.1)  # it has no way to say that it waits
        return True

    owned.verify = verify
    clock.advance(store.lease_ttl_ms)
    with pytest.raises(LeaseHeldError) as expired:
        store.renew(first)
    owned.refused(first, expired.value)
    asks.join(10)
    assert answers == [owned.lease]
    assert owned.lease.epoch == first.epoch + 1


def test_the_first_loss_is_the_answer_to_every_later_question() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    calls = LeaseApi(Stores(store, store.transcripts()))
    owned = OwnedLease.take(calls, "r", "me", lease_ttl_ms=store.lease_ttl_ms, clock=clock)
    told: list[SupersededError] = []
    owned.on_loss = told.append
    store.seize("r", "successor")
    assert not owned.renew()
    store.seize("r", "another successor")
    later = LeaseHeldError(run_id="r", reason="superseded", holder="another successor", epoch=3)
    for ask in (owned.authority, lambda: owned.refused(owned.lease, later)):
        with pytest.raises(SupersededError) as lost:
            ask()
        assert lost.value is told[0]
    assert not owned.renew()
    assert [(error.holder, error.holder_epoch) for error in told] == [("successor", 2)]


def test_a_busy_store_is_tried_again_under_a_lease_that_was_taken_again() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    taken_again: list[StoreCall] = []
    busy: list[StoreCall] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "revive":
            taken_again.append(call)
        elif call.method == "append" and taken_again and not busy:
            busy.append(call)
            message = "somebody else writes just now"
            raise StoreBusyError(message)
        return perform()

    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.step("sleep", clock.advance, 10 * store.lease_ttl_ms)
        return "fine"

    async def main() -> None:
        watched = WatchedStores(Stores(store, store.transcripts()), around=around)
        async with Engine(watched, [sleeps], clock=clock) as engine:
            outcome = await engine.run(sleeps, run_id="r")
            assert (outcome.status, outcome.epoch) == ("ok", 2)

    asyncio.run(main())
    assert len(busy) == 1


def test_what_was_read_before_the_run_was_taken_again_decides_nothing() -> None:
    """The lease ran out between two reads of a beginning, and something landed meanwhile."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    loads: list[int] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        answer = perform()
        if call.method == "load" and asleep:
            asleep.clear()
            loads.append(len(store.load("r")))
            opening = next(e for e in read_journal("r", store.load("r")) if e.key == "k")
            answered = JournalEntry(
                seq=loads[0], kind="resolution", status="ok", key="k", ref=opening.seq, value=5
            )
            record = JournalRecord(seq=answered.seq, payload=encode_entry(answered))
            store.append("r", record)
            clock.advance(store.lease_ttl_ms)
            [owned] = engine.runtime.renewer._kept
            assert owned.renew(), "the keeper takes the run again"
        return answer

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    asleep: list[bool] = []
    engine: Engine

    async def main() -> None:
        nonlocal engine
        watched = WatchedStores(Stores(store, store.transcripts()), around=around)
        async with Engine(watched, [waits], clock=clock, suspend_after=0) as engine:
            assert (await engine.run(waits, run_id="r")).status == "suspended"
            asleep.append(True)
            outcome = await engine.resume("r")
            assert (outcome.status, outcome.value, outcome.epoch) == ("ok", 5, 3)

    asyncio.run(main())
    assert loads, "it slept"
