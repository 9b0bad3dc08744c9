"""The reference store against the fence table: every mutation under every dead lease."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import (
    ConfigError,
    JournalOrderViolation,
    LeaseHeldError,
    StoreClosedError,
)
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.errors import RefusalReason

NOW = 1_700_000_000_000
TTL = 1_000
RUN = "run"


def record(seq: int, text: str = "") -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq},"v":"{text}"}}'.encode())


def row(run_id: str = RUN, status: str = "running") -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at="2024-01-01T00:00:00.000Z")


@dataclass(frozen=True)
class World:
    """A run with an entry, a row and a blob, and another run beside it."""

    clock: ManualClock
    store: ReferenceStore


@pytest.fixture
def world() -> World:
    clock = ManualClock(NOW)
    store = ReferenceStore(clock=clock, lease_ttl_ms=TTL)
    for run_id in (RUN, "other"):
        store.append(run_id, record(0))
        store.put_meta(row(run_id))
        store.transcripts().put(f"{run_id}/blob", b"old")
    return World(clock, store)


MUTATORS: dict[str, Callable[[World, Lease], object]] = {
    "append": lambda w, lease: w.store.append(RUN, record(7, "stale"), lease=lease),
    "put_meta": lambda w, lease: w.store.put_meta(row(status="ok"), lease=lease),
    "delete": lambda w, lease: w.store.delete(RUN, lease=lease),
    "delete_whole_run": lambda w, lease: w.store.delete_whole_run(RUN, lease=lease),
    "blob put": lambda w, lease: w.store.transcripts().put(f"{RUN}/blob", b"stale", lease=lease),
    "blob put anew": lambda w, lease: w.store.transcripts().put(f"{RUN}/n", b"", lease=lease),
    "blob delete": lambda w, lease: w.store.transcripts().delete(f"{RUN}/blob", lease=lease),
    "blob delete of none": lambda w, lease: w.store.transcripts().delete(f"{RUN}/n", lease=lease),
    "renew": lambda w, lease: w.store.renew(lease),
    "release": lambda w, lease: w.store.release(lease),
}
NAMED_BY_THE_LEASE = {"renew", "release"}


def superseded(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL)
    world.store.acquire(RUN, "b")
    return lease


def superseded_by_its_own_name(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL)
    world.store.acquire(RUN, "a")
    return lease


def superseded_and_its_successor_gone(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.release(world.store.seize(RUN, "b"))
    return lease


def seized_while_live(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.seize(RUN, "operator")
    return lease


def revived(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL)
    world.store.revive(lease)
    return lease


def of_a_deleted_incarnation(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.delete(RUN, lease=lease)
    world.store.append(RUN, record(0, "again"), lease=world.store.acquire(RUN, "a"))
    world.store.put_meta(row())
    return lease


def below_a_raised_epoch(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.raise_epoch(RUN, 50)
    return lease


def released(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.release(lease)
    return lease


def released_by_an_unleased_delete(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.delete(RUN)
    world.store.append(RUN, record(0, "again"))
    return lease


def ended_by_a_floor_below_it(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store.raise_epoch(RUN, 0)
    return lease


def whose_row_is_not_the_tombstones(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.store._epochs[RUN] = 5
    return replace(lease, epoch=5)


def expired(world: World) -> Lease:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL)
    return lease


def forged_epoch(world: World) -> Lease:
    return replace(world.store.acquire(RUN, "a"), epoch=2)


def forged_epoch_beside_an_expired(world: World) -> Lease:
    return replace(expired(world), epoch=2)


def forged_owner(world: World) -> Lease:
    return replace(world.store.acquire(RUN, "a"), owner="b")


def forged_owner_of_an_expired(world: World) -> Lease:
    return replace(expired(world), owner="b")


def never_granted(world: World) -> Lease:
    assert world.store.get_lease(RUN) is None
    return Lease(run_id=RUN, owner="a", epoch=1)


def epoch_zero(world: World) -> Lease:
    return replace(world.store.acquire(RUN, "a"), epoch=0)


DEAD: list[tuple[Callable[[World], Lease], RefusalReason]] = [
    (superseded, "superseded"),
    (superseded_by_its_own_name, "superseded"),
    (superseded_and_its_successor_gone, "superseded"),
    (seized_while_live, "superseded"),
    (revived, "superseded"),
    (of_a_deleted_incarnation, "superseded"),
    (below_a_raised_epoch, "superseded"),
    (epoch_zero, "superseded"),
    (released, "released"),
    (released_by_an_unleased_delete, "released"),
    (ended_by_a_floor_below_it, "released"),
    (whose_row_is_not_the_tombstones, "released"),
    (expired, "expired"),
    (forged_epoch, "unknown"),
    (forged_epoch_beside_an_expired, "unknown"),
    (forged_owner, "unknown"),
    (forged_owner_of_an_expired, "unknown"),
    (never_granted, "unknown"),
]
DEAD_IDS = [make.__name__ for make, _ in DEAD]


@pytest.mark.parametrize(("make", "reason"), DEAD, ids=DEAD_IDS)
@pytest.mark.parametrize("mutator", MUTATORS)
def test_a_dead_lease_changes_nothing(
    world: World, mutator: str, make: Callable[[World], Lease], reason: RefusalReason
) -> None:
    lease = make(world)
    before = world.store.snapshot()
    with pytest.raises(LeaseHeldError) as caught:
        MUTATORS[mutator](world, lease)
    assert world.store.snapshot() == before
    error = caught.value
    assert (error.reason, error.run_id, error.offered) == (reason, RUN, lease)
    assert not error.retryable
    present = world.store.get_lease(RUN)
    if present is None or not present.live:
        assert (error.holder, error.epoch, error.expires_at) == (None, None, None)
    else:
        assert (error.holder, error.epoch, error.expires_at) == (
            present.owner,
            present.epoch,
            present.expires_at,
        )


@pytest.mark.parametrize("mutator", sorted(MUTATORS.keys() - NAMED_BY_THE_LEASE))
@pytest.mark.parametrize("dead_too", [False, True])
def test_a_lease_of_another_run_changes_nothing(
    world: World, mutator: str, *, dead_too: bool
) -> None:
    foreign = world.store.acquire("other", "a")
    if dead_too:
        world.store.release(foreign)
    world.store.acquire(RUN, "a")
    before = world.store.snapshot()
    with pytest.raises(LeaseHeldError) as caught:
        MUTATORS[mutator](world, foreign)
    assert world.store.snapshot() == before
    assert (caught.value.reason, caught.value.run_id, caught.value.offered) == (
        "foreign-run",
        RUN,
        foreign,
    )


@pytest.mark.parametrize("mutator", MUTATORS)
def test_the_live_lease_lands(world: World, mutator: str) -> None:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(1)
    before = world.store.snapshot()
    MUTATORS[mutator](world, lease)
    if mutator == "blob delete of none":
        assert world.store.snapshot() == before
    else:
        assert world.store.snapshot() != before


@pytest.mark.parametrize("mutator", MUTATORS)
def test_a_lease_lives_until_its_expiry_and_not_at_it(world: World, mutator: str) -> None:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL)
    with pytest.raises(LeaseHeldError) as caught:
        MUTATORS[mutator](world, lease)
    assert caught.value.reason == "expired"
    world.clock.set(NOW + TTL - 1)
    MUTATORS[mutator](world, lease)


@pytest.mark.parametrize("mutator", sorted(MUTATORS.keys() - NAMED_BY_THE_LEASE))
def test_no_lease_is_the_single_writer_even_while_one_is_held(world: World, mutator: str) -> None:
    lease = world.store.acquire(RUN, "a")
    without = {
        "append": lambda: world.store.append(RUN, record(7)),
        "put_meta": lambda: world.store.put_meta(row(status="ok")),
        "delete": lambda: world.store.delete(RUN),
        "delete_whole_run": lambda: world.store.delete_whole_run(RUN),
        "blob put": lambda: world.store.transcripts().put(f"{RUN}/blob", b"new"),
        "blob put anew": lambda: world.store.transcripts().put(f"{RUN}/n", b"new"),
        "blob delete": lambda: world.store.transcripts().delete(f"{RUN}/blob"),
        "blob delete of none": lambda: world.store.transcripts().delete(f"{RUN}/n"),
    }
    without[mutator]()
    present = world.store.get_lease(RUN)
    if mutator.startswith("delete"):
        assert present is None
        with pytest.raises(LeaseHeldError, match="deleted"):
            world.store.renew(lease)
    else:
        assert present is not None
        assert present.live


# --- the order of the checks ----------------------------------------------------------------


def test_arguments_come_first_then_closed_then_foreign_then_dead_then_the_seq(world: World) -> None:
    store, dead = world.store, superseded(world)
    foreign = Lease(run_id="other", owner="a", epoch=99)
    bad = JournalRecord(seq=0, payload=b"nonsense")

    with pytest.raises(ConfigError):
        store.append(RUN, bad, lease=dead)
    with pytest.raises(LeaseHeldError, match="is for run 'other'"):
        store.append(RUN, record(0), lease=foreign)
    with pytest.raises(LeaseHeldError, match="superseded"):
        store.append(RUN, record(0), lease=dead)
    with pytest.raises(JournalOrderViolation) as caught:
        store.append(RUN, record(0))
    assert (caught.value.seq, caught.value.tail_seq) == (0, 0)

    store.close()
    with pytest.raises(ConfigError):
        store.append(RUN, bad, lease=dead)
    with pytest.raises(StoreClosedError):
        store.append(RUN, record(0), lease=foreign)


def test_the_seq_guard_still_holds_under_the_live_lease(world: World) -> None:
    lease = world.store.acquire(RUN, "a")
    world.store.append(RUN, record(5), lease=lease)
    before = world.store.snapshot()
    for seq in (5, 4, 0):
        with pytest.raises(JournalOrderViolation):
            world.store.append(RUN, record(seq), lease=lease)
    assert world.store.snapshot() == before
    world.store.append(RUN, record(9), lease=lease)
    assert [r.seq for r in world.store.load(RUN)] == [0, 5, 9]


def test_a_takeover_cannot_come_between_the_check_and_the_write(world: World) -> None:
    store, stalled = world.store, world.store.acquire(RUN, "stalled")
    taken_over = threading.Event()

    class Interrupting(ManualClock):
        """Lets a successor try to seize the run while the fence asks for the time."""

        def now_ms(self) -> int:
            if successor.ident is None:
                successor.start()
                # Nobody gets in while the fence is being asked, however long it takes.
                assert not taken_over.wait(0.2)
            return NOW

    def seize() -> None:
        store.seize(RUN, "successor")
        taken_over.set()

    successor = threading.Thread(target=seize)
    store._clock = Interrupting()
    store.append(RUN, record(1), lease=stalled)
    successor.join()
    assert taken_over.is_set()
    assert [r.seq for r in store.load(RUN)] == [0, 1]
    present = store.get_lease(RUN)
    assert present is not None
    assert present.owner == "successor"


@pytest.mark.parametrize(("make", "reason"), [d for d in DEAD if d[1] != "expired"])
def test_revive_refuses_every_other_with_its_reason(
    world: World, make: Callable[[World], Lease], reason: RefusalReason
) -> None:
    lease = make(world)
    before = world.store.snapshot()
    with pytest.raises(LeaseHeldError) as caught:
        world.store.revive(lease)
    assert caught.value.reason == reason
    assert world.store.snapshot() == before
