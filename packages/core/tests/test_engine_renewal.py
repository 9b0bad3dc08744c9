"""Renewals that meet a busy store, ends that meet a renewal: no lease is lost or left over."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.io.mutations import LeaseApi
from rulvar.core.engine.lease.ownership import OwnedLease
from rulvar.core.errors import LeaseHeldError, StoreBusyError, StoreError, SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.testing import StoreCall


class Bench:
    """A run that waits; the store's time stands still, and the keeper's goes on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock, lease_ttl_ms=300)
        self.busy_tries = 0
        self.methods: list[str] = []
        self.enough = threading.Event()
        self.at_busy: Callable[[int], bool] = lambda _try: True

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        self.methods.append(call.method)
        if call.method == "renew" and not self.enough.is_set():
            self.busy_tries += 1
            if self.at_busy(self.busy_tries):
                message = "somebody else writes just now"
                raise StoreBusyError(message)
        answer = perform()
        if call.method in {"renew", "revive"}:
            self.enough.set()
        return answer

    async def run(self) -> RunOutcome:
        @workflow
        async def waits(ctx: Context) -> bool:
            return await ctx.step("wait", self.enough.wait, 10)

        stores = WatchedStores(Stores(self.store, self.store.transcripts()), around=self.around)
        async with Engine(stores, [waits], clock=self.clock) as engine:
            return await engine.run(waits, run_id="r")


def test_a_busy_renewal_is_tried_again_for_as_long_as_the_lease_lives() -> None:
    """Twelve times is more than there is room for in one time to live."""
    bench = Bench()
    bench.at_busy = lambda tried: tried <= 12
    outcome = asyncio.run(bench.run())
    assert (outcome.status, outcome.value, outcome.epoch) == ("ok", True, 1)
    assert bench.busy_tries == 13
    assert "revive" not in bench.methods


@pytest.mark.parametrize("taken", [False, True])
def test_a_lease_that_ran_out_while_renewals_were_busy_is_lost_to_a_successor_alone(
    taken: bool,
) -> None:
    bench = Bench()

    def runs_out(tried: int) -> bool:
        if tried == 3:
            bench.clock.advance(bench.store.lease_ttl_ms)
            if taken:
                bench.store.acquire("r", "successor")
        return tried <= 5

    bench.at_busy = runs_out
    if taken:
        with pytest.raises(SupersededError) as lost:
            asyncio.run(bench.run())
        assert (lost.value.reason, lost.value.holder) == ("superseded", "successor")
        bench.enough.set()
    else:
        outcome = asyncio.run(bench.run())
        assert (outcome.status, outcome.epoch) == ("ok", 2)
    assert bench.busy_tries == 6


def owned_over(store: ReferenceStore, clock: ManualClock) -> OwnedLease:
    calls = LeaseApi(Stores(store, store.transcripts()))
    return OwnedLease.take(calls, "r", "me", lease_ttl_ms=store.lease_ttl_ms, clock=clock)


def test_a_run_that_was_given_back_is_not_taken_again_by_a_late_renewal() -> None:
    """Keeper and segment wake up together: one learns of the expiry while the other lets go."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    owned = owned_over(store, clock)
    clock.advance(store.lease_ttl_ms)

    def detach(*_: object, **__: object) -> None:
        """Come between the refusal of the renewal and what it leads to."""
        segment = threading.Thread(target=owned.release)
        segment.start()
        segment.join()

    owned.emit = detach
    before = store.snapshot()
    assert not owned.renew()
    assert store.snapshot() == before
    assert store.acquire("r", "next").epoch == 2


def test_a_late_call_of_a_run_that_was_given_back_does_not_take_it_again() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    owned = owned_over(store, clock)
    clock.advance(store.lease_ttl_ms)
    owned.release()
    with pytest.raises(LeaseHeldError) as expired:
        store.renew(owned.lease)
    with pytest.raises(SupersededError) as late:
        owned.refused(owned.lease, expired.value)
    assert late.value.reason == "expired"
    info = store.get_lease("r")
    assert info is not None
    assert not info.live


def test_a_lease_that_cannot_be_checked_is_given_back() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    owned = owned_over(store, clock)

    def unreadable() -> bool:
        message = "the disk reports an error"
        raise StoreError(message)

    owned.verify = unreadable
    clock.advance(store.lease_ttl_ms)
    with pytest.raises(StoreError, match="the disk reports"):
        owned.renew()
    assert store.get_lease("r") is None, "nobody would renew or release it"
    assert not owned.renew(), "its own number was passed: it cannot tell what else happened"


def test_what_was_read_before_the_run_was_taken_again_decides_nothing() -> None:
    """Between row and journal the lease runs out, somebody without one changes the row."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    kept: set[OwnedLease] = set()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal kept
        if call.method == "load" and kept:
            [owned] = kept
            row = store.get_meta("r")
            assert row is not None
            store.put_meta(replace(row, segments=7))
            clock.advance(store.lease_ttl_ms)
            keeper = threading.Thread(target=owned.renew)
            kept = set()
            keeper.start()
            keeper.join()
        return perform()

    @workflow
    async def asks(ctx: Context) -> None:
        await ctx.await_external("answer")

    async def main() -> RunOutcome:
        stores = WatchedStores(Stores(store, store.transcripts()), around=around)
        async with Engine(stores, [asks], clock=clock) as engine:
            await engine.run(asks, run_id="r")
            nonlocal kept
            kept = engine.runtime.renewer._kept
            return await engine.resume("r")

    outcome = asyncio.run(main())
    assert (outcome.status, outcome.epoch, outcome.segment) == ("suspended", 3, 8)
