"""An audit while a holder works on the run: an owner at work is not accused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audit_journals import (
    T2,
    WORKED,
    prepared,
    record,
    row,
    settle,
    start,
    step,
)

from rulvar.core.audit import audit_run
from rulvar.core.testing import ManualClock, WatchedStores, reference_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.stores import Stores
    from rulvar.core.testing import StoreCall


# --- who holds it -------------------------------------------------------------------------


def test_a_held_run_is_owned_whatever_its_row_says() -> None:
    clock = ManualClock()
    stores = reference_stores(clock=clock, lease_ttl_ms=1_000)
    for entry in [*WORKED, settle(3, "ok")]:
        stores.journal.append("r", record(entry))
    stores.journal.put_meta(row("running"))
    lease = stores.journal.acquire("r", "somebody")  # type: ignore[attr-defined]
    audit = audit_run(stores, "r", clock=clock)
    assert audit.verdict == "owned"
    assert audit.holder is not None
    assert (audit.holder.owner, audit.holder.epoch) == ("somebody", lease.epoch)
    assert audit.sound
    # A lease that has run out holds nothing.
    clock.advance(1_000)
    assert audit_run(stores, "r", clock=clock).verdict == "meta-behind"


def test_damage_is_no_moments_state_and_a_holder_does_not_excuse_it() -> None:
    stores = prepared([start(), step(1, epoch=2), step(2, epoch=1)], row("running"))
    stores.journal.acquire("r", "somebody")  # type: ignore[attr-defined]
    audit = audit_run(stores, "r")
    assert (audit.verdict, audit.holder is not None) == ("damaged", True)


def test_an_owner_caught_between_its_settle_and_its_row_is_not_accused() -> None:
    """Whatever the moment at which a whole segment settles, there is no false verdict."""
    for moment in range(1, 12):
        stores = prepared(WORKED, row("running"))
        calls = 0

        def around(
            call: StoreCall,  # noqa: ARG001
            perform: Callable[[], object],
            stores: Stores = stores,
            moment: int = moment,
        ) -> object:
            nonlocal calls
            calls += 1
            if calls == moment:
                stores.journal.append("r", record(settle(3, "ok")))
                stores.journal.put_meta(row("ok", updated_at=T2))
            return perform()

        audit = audit_run(WatchedStores(stores, around=around), "r")
        assert audit.verdict == "consistent", (moment, audit)


def test_an_owner_that_comes_and_goes_while_it_is_read_is_not_accused() -> None:
    """Whenever somebody takes the run, appends its settle, and then writes its row and lets go."""
    moments = [(a, b, c) for a in range(1, 8) for b in range(a, 8) for c in range(b, 8)]
    for takes_at, settles_at, ends_at in moments:
        stores = prepared(WORKED, row("running"))
        leases: list[object] = []
        calls = 0

        def around(
            call: StoreCall,  # noqa: ARG001
            perform: Callable[[], object],
            stores: Stores = stores,
            leases: list[object] = leases,
            moments: tuple[int, int, int] = (takes_at, settles_at, ends_at),
        ) -> object:
            nonlocal calls
            calls += 1
            if calls == moments[0]:
                leases.append(stores.journal.acquire("r", "o"))  # type: ignore[attr-defined]
            if calls == moments[1]:
                stores.journal.append("r", record(settle(3, "ok")))
            if calls == moments[2]:
                stores.journal.put_meta(row("ok", updated_at=T2))
                stores.journal.release(leases[0])  # type: ignore[attr-defined]
            return perform()

        audit = audit_run(WatchedStores(stores, around=around), "r")
        assert audit.verdict in {"consistent", "owned"}, (takes_at, settles_at, ends_at, audit)


def test_a_row_that_never_rests_is_somebodys_work() -> None:
    stores = prepared([*WORKED, settle(3, "ok")], row("running"))
    count = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal count
        if call.method == "get_meta":
            count += 1
            stores.journal.put_meta(row("running", updated_at=f"{count}"))
        return perform()

    audit = audit_run(WatchedStores(stores, around=around), "r")
    assert (audit.verdict, audit.change) == ("owned", None)
