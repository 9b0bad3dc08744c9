"""A grant is adopted only by the object whose own call for it ended in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine.io.mutations import LeaseApi
from rulvar.core.engine.lease.ownership import OwnedLease
from rulvar.core.errors import LeaseHeldError, OutcomeUnknownError, StoreBusyError, SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.records import Lease
    from rulvar.core.testing import StoreCall

WITHOUT: list[tuple[str, ...]] = [(), ("revive",)]
IDS = ["revive", "acquire"]


class Bench:
    """One owned run whose lease has run out, and what happens at the call that takes it again."""

    def __init__(self, without: tuple[str, ...]) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock, lease_ttl_ms=300)
        self.call = "acquire" if without else "revive"
        self.at: list[Callable[[Callable[[], object]], object]] = []
        self.owners: list[str] = []
        stores = WatchedStores(
            Stores(self.store, self.store.transcripts()), around=self.around, without=without
        )
        self.calls = LeaseApi(stores)
        self.owned = self.take("me")
        self.clock.advance(self.store.lease_ttl_ms)

    def take(self, owner: str) -> OwnedLease:
        return OwnedLease.take(
            self.calls, "r", owner, lease_ttl_ms=self.store.lease_ttl_ms, clock=self.clock
        )

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "acquire":
            self.owners.append(str(call.arguments[1]))
        if call.method == self.call and self.at:
            return self.at.pop(0)(perform)
        return perform()

    def refused(self) -> Lease:
        """Have the owned run learn that its lease has run out; return what it goes on under."""
        lease = self.owned.lease
        with pytest.raises(LeaseHeldError) as expired:
            self.store.renew(lease)
        self.owned.refused(lease, expired.value)
        return self.owned.lease


def in_doubt(perform: Callable[[], object]) -> object:
    perform()
    message = "the commit was not confirmed"
    raise OutcomeUnknownError(message, run_id="r")


@pytest.mark.parametrize("without", WITHOUT, ids=IDS)
def test_a_grant_of_the_same_owner_string_to_another_object_is_not_adopted(
    without: tuple[str, ...],
) -> None:
    """Two segments would go on under one lease, and neither would notice."""
    bench = Bench(without)
    others: list[OwnedLease] = []

    def another_first(perform: Callable[[], object]) -> object:
        others.append(bench.take("me"))
        return perform()

    bench.at = [another_first]
    with pytest.raises(SupersededError):
        bench.refused()
    [other] = others
    bench.store.renew(other.lease)


@pytest.mark.parametrize("without", WITHOUT, ids=IDS)
def test_a_grant_whose_own_call_ended_in_doubt_is_adopted(without: tuple[str, ...]) -> None:
    bench = Bench(without)
    bench.at = [in_doubt]
    lease = bench.refused()
    assert lease.epoch == 2
    bench.store.renew(lease)


@pytest.mark.parametrize("without", WITHOUT, ids=IDS)
def test_a_call_that_was_refused_leaves_no_doubt(without: tuple[str, ...]) -> None:
    bench = Bench(without)

    def busy(_perform: Callable[[], object]) -> object:
        bench.take("me")
        message = "somebody else writes just now"
        raise StoreBusyError(message)

    bench.at = [busy]
    with pytest.raises(SupersededError):
        bench.refused()


def test_every_grant_has_an_owner_string_of_its_own() -> None:
    bench = Bench(("revive",))
    for _ in range(3):
        bench.refused()
        bench.clock.advance(bench.store.lease_ttl_ms)
    assert len(bench.owners) == len(set(bench.owners)) == 4
