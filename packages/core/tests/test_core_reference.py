"""The reference store beyond the fence: leases, epochs, journals, rows, blobs, its end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    StoreClosedError,
    StoreFullError,
)
from rulvar.core.records import BlobStat, JournalRecord, Lease, LeaseInfo, RunFilter, RunMeta
from rulvar.core.testing import ManualClock, ReferenceStore
from rulvar.core.values import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Callable


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


# --- leases ---------------------------------------------------------------------------------


def test_a_live_lease_refuses_everybody_its_own_owner_too(world: World) -> None:
    world.store.acquire(RUN, "a")
    before = world.store.snapshot()
    for owner in ("b", "a"):
        with pytest.raises(LeaseHeldError) as caught:
            world.store.acquire(RUN, owner)
        error = caught.value
        assert (error.reason, error.offered, error.retryable) == ("held", None, True)
        assert (error.holder, error.epoch, error.expires_at) == ("a", 1, NOW + TTL)
    assert world.store.snapshot() == before


def test_epochs_never_come_back(world: World) -> None:
    store, clock = world.store, world.clock
    seen: list[int] = []

    def take() -> Lease:
        lease = store.acquire(RUN, "a")
        seen.append(lease.epoch)
        return lease

    store.release(take())
    store.delete(RUN, lease=take())
    store.delete_whole_run(RUN, lease=take())
    take()
    store.delete(RUN)
    lease = take()
    clock.advance(TTL)
    seen.append(store.revive(lease).epoch)
    seen.append(store.seize(RUN, "b").epoch)
    store.raise_epoch(RUN, 100)
    assert store.get_lease(RUN) is None
    take()
    assert seen == [1, 2, 3, 4, 5, 6, 7, 101]
    assert store.list_run_ids(None, 10) == ["other", RUN]


def test_the_last_epoch_is_the_last(world: World) -> None:
    world.store.raise_epoch(RUN, MAX_INTEGER - 1)
    last = world.store.acquire(RUN, "a")
    assert last.epoch == MAX_INTEGER
    world.store.append(RUN, record(1), lease=last)
    before = world.store.snapshot()
    with pytest.raises(StoreFullError):
        world.store.seize(RUN, "b")
    assert world.store.snapshot() == before
    with pytest.raises(ConfigError):
        world.store.raise_epoch(RUN, MAX_INTEGER + 1)


def test_a_renewal_moves_the_expiry_from_now(world: World) -> None:
    lease = world.store.acquire(RUN, "a")
    world.clock.advance(TTL - 1)
    world.store.renew(lease)
    assert world.store.get_lease(RUN) == LeaseInfo(
        run_id=RUN, owner="a", epoch=1, expires_at=NOW + 2 * TTL - 1, live=True
    )


def test_a_late_release_or_renewal_leaves_the_successor_alone(world: World) -> None:
    for late in (world.store.release, world.store.renew):
        stalled = world.store.acquire(RUN, "same-name")
        world.clock.advance(TTL)
        world.store.acquire(RUN, "same-name")
        before = world.store.snapshot()
        with pytest.raises(LeaseHeldError, match="superseded"):
            late(stalled)
        assert world.store.snapshot() == before
        world.clock.advance(TTL)


def test_revive_is_for_an_expired_lease_that_nobody_took(world: World) -> None:
    lease = world.store.acquire(RUN, "a")
    before = world.store.snapshot()
    with pytest.raises(LeaseHeldError) as caught:
        world.store.revive(lease)
    assert (caught.value.reason, caught.value.holder, caught.value.epoch) == ("held", "a", 1)
    assert world.store.snapshot() == before
    world.clock.advance(TTL)
    assert world.store.revive(lease) == replace(lease, epoch=2)
    present = world.store.get_lease(RUN)
    assert present is not None
    assert (present.live, present.expires_at) == (True, NOW + 2 * TTL)


def test_leases_are_listed_live_or_not(world: World) -> None:
    world.store.acquire("b", "x")
    world.clock.advance(TTL)
    world.store.acquire("a", "y")
    listed = world.store.list_leases(None, 10)
    assert [(i.run_id, i.owner, i.live) for i in listed] == [("a", "y", True), ("b", "x", False)]
    assert world.store.list_leases(None, 1) == listed[:1]
    assert world.store.list_leases("a", 10) == listed[1:]
    assert world.store.get_lease("none") is None


def test_one_of_many_first_starts_owns_the_run() -> None:
    store = ReferenceStore()
    barrier = threading.Barrier(8)
    granted: list[Lease] = []
    refused: list[LeaseHeldError] = []

    def start(owner: str) -> None:
        barrier.wait()
        try:
            granted.append(store.acquire(RUN, owner))
        except LeaseHeldError as error:
            refused.append(error)

    threads = [threading.Thread(target=start, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), len(refused)) == (1, 7)
    assert {(e.reason, e.holder, e.epoch) for e in refused} == {("held", granted[0].owner, 1)}


STEPS = st.lists(
    st.sampled_from(["acquire", "seize", "release", "revive", "delete", "floor", "wait", "renew"]),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_no_earlier_lease_ever_lands_whatever_happens(steps: list[str]) -> None:
    clock = ManualClock(NOW)
    store = ReferenceStore(clock=clock, lease_ttl_ms=TTL)
    granted: list[Lease] = []
    for step in steps:
        last = granted[-1] if granted else Lease(run_id=RUN, owner="same", epoch=1)
        take: dict[str, Callable[[], object]] = {
            "acquire": lambda: store.acquire(RUN, "same"),
            "seize": lambda: store.seize(RUN, "same"),
            "revive": lambda last=last: store.revive(last),  # type: ignore[misc]
            "release": lambda last=last: store.release(last),  # type: ignore[misc]
            "renew": lambda last=last: store.renew(last),  # type: ignore[misc]
            "delete": lambda: store.delete(RUN),
            "floor": lambda: store.raise_epoch(RUN, 3),
            "wait": lambda: clock.advance(TTL),
        }
        with contextlib.suppress(LeaseHeldError):
            answer = take[step]()
            granted += [answer] if isinstance(answer, Lease) else []
        epochs = [lease.epoch for lease in granted]
        assert epochs == sorted(set(epochs))
        before = store.snapshot()
        for stale in granted[:-1]:
            with pytest.raises(LeaseHeldError):
                store.put_meta(row(), lease=stale)
        assert store.snapshot() == before


# --- journals, rows and blobs ---------------------------------------------------------------


def test_journals_are_read_in_order_whole_or_from_a_seq(world: World) -> None:
    records = [record(0), record(3), record(4)]
    for one in records[1:]:
        world.store.append(RUN, one)
    assert world.store.load(RUN) == tuple(records)
    assert world.store.load_after(RUN, -1, 2) == records[:2]
    assert world.store.load_after(RUN, 1, 9) == records[1:]
    assert world.store.load_after(RUN, 4, 9) == []
    assert world.store.load("none") == ()


def test_rows_are_listed_by_the_bytes_of_their_ids() -> None:
    store = ReferenceStore()
    ids = ["b", "a", "B", "é", "\uffff", "😀", "a.b", "a-b", "aa"]
    for run_id in ids:
        store.put_meta(row(run_id))
    ordered = sorted(ids, key=lambda run_id: run_id.encode())
    assert [m.run_id for m in store.list_runs()] == ordered
    assert store.list_run_ids(None, 100) == ordered
    pages: list[str] = []
    while found := store.list_runs(RunFilter(limit=2, after_run_id=pages[-1] if pages else None)):
        pages += [m.run_id for m in found]
    assert pages == ordered


def test_a_row_is_replaced_as_a_whole(world: World) -> None:
    world.store.put_meta(replace(row(), name="n", tags=("t",)))
    world.store.put_meta(row(status="ok"))
    assert world.store.get_meta(RUN) == row(status="ok")
    assert world.store.get_meta("none") is None


def test_deletion_keeps_blobs_and_the_whole_one_does_not(world: World) -> None:
    store, twin = world.store, world.store.transcripts()
    store.delete(RUN)
    assert store.load(RUN) == ()
    assert store.get_meta(RUN) is None
    assert twin.list_refs(RUN) == (f"{RUN}/blob",)
    assert store.list_run_ids(None, 9) == ["other", RUN]
    store.delete_whole_run(RUN)
    assert twin.list_refs(RUN) == ()
    assert store.list_run_ids(None, 9) == ["other"]
    before = store.snapshot()
    store.delete("none")
    store.delete_whole_run("none")
    assert store.snapshot() == before


def test_blobs_are_listed_for_their_run_alone(world: World) -> None:
    twin = world.store.transcripts()
    for ref in ("run2/x", "run/b/c", "run/a", "ru/n"):
        twin.put(ref, ref.encode())
    assert twin.list_refs(RUN) == ("run/a", "run/b/c", "run/blob")
    assert twin.get("run/b/c") == b"run/b/c"
    assert twin.get("run/none") is None
    assert twin.blob_info("run/a") == BlobStat(ref="run/a", size_bytes=5, stored_at=NOW)
    assert twin.blob_info("run/none") is None
    twin.delete("run/none")


# --- the end of a store ---------------------------------------------------------------------


def test_a_closed_store_refuses_every_call_and_so_does_its_twin(world: World) -> None:
    store, twin = world.store, world.store.transcripts()
    lease = store.acquire(RUN, "a")
    twin.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.append(RUN, record(9), lease=lease),
        lambda: store.load(RUN),
        lambda: store.load_after(RUN, -1, 1),
        lambda: store.put_meta(row(), lease=lease),
        lambda: store.get_meta(RUN),
        store.list_runs,
        lambda: store.list_run_ids(None, 1),
        lambda: store.delete(RUN, lease=lease),
        lambda: store.delete_whole_run(RUN, lease=lease),
        lambda: store.acquire(RUN, "a"),
        lambda: store.renew(lease),
        lambda: store.release(lease),
        lambda: store.revive(lease),
        lambda: store.seize(RUN, "a"),
        lambda: store.raise_epoch(RUN, 1),
        lambda: store.get_lease(RUN),
        lambda: store.list_leases(None, 1),
        lambda: twin.put(f"{RUN}/x", b"", lease=lease),
        lambda: twin.get(f"{RUN}/x"),
        lambda: twin.blob_info(f"{RUN}/x"),
        lambda: twin.list_refs(RUN),
        lambda: twin.delete(f"{RUN}/x", lease=lease),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


FORK = """
import os
from rulvar.core.errors import StoreForkedError
from rulvar.core.testing import ReferenceStore

store = ReferenceStore()
lease = store.acquire("r", "a")
store._gate._lock.acquire()  # as a thread of the parent would hold it at the fork
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: store.load("r"), lambda: store.renew(lease), store.close,
                 lambda: store.transcripts().get("r/x"), store.transcripts().close):
        try:
            call()
        except StoreForkedError:
            refused += 1
    os._exit(0 if refused == 5 else 1)
_, status = os.waitpid(child, 0)
store._gate._lock.release()
store.renew(lease)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_a_forked_child_is_refused_without_waiting_for_a_lock_of_the_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("ttl", [0, -1, 2**31, True, "1", 1.0])
def test_a_lease_ttl_out_of_bounds_is_refused(ttl: object) -> None:
    with pytest.raises(ConfigError, match="lease_ttl_ms"):
        ReferenceStore(lease_ttl_ms=ttl)  # type: ignore[arg-type]


def test_a_manual_clock_moves_only_when_it_is_told_to() -> None:
    clock = ManualClock(5)
    clock.advance(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (15, 10)
    clock.set(3)
    assert (clock.now_ms(), clock.monotonic_ms()) == (3, 10)
    with pytest.raises(ConfigError, match="set"):
        clock.advance(-1)
