"""A gallery of stores that declare the fence and do not keep it: the probe finds each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from rulvar.core.errors import (
    LeaseHeldError,
)
from rulvar.core.fencing import (
    probe_fencing,
)
from rulvar.core.records import Lease
from rulvar.core.stores import Stores
from rulvar.core.testing import (
    ManualClock,
    ReferenceStore,
    ReferenceTranscripts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.core.fencing import (
        ProbeLease,
        ProbeOutcome,
    )
    from rulvar.core.mutations import Mutation
    from rulvar.core.records import JournalRecord, RunMeta

pytestmark = pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")

MUTATIONS = {"append", "put_meta", "delete", "put_blob", "delete_blob", "renew", "release"}


def pair(store: ReferenceStore) -> Stores:
    return Stores(store, store.transcripts())


def hide(store: ReferenceStore, *names: str) -> Any:
    """Return a view of a store without some of its methods."""

    class View:
        def __getattr__(self, name: str) -> object:
            if name in names:
                raise AttributeError(name)
            return getattr(store, name)

    return View()


SEIZE = ("seize", "get_lease", "list_leases")


class UnfencedMeta(ReferenceStore):
    """Takes the lease of put_meta and does not look at it."""

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        del lease
        super().put_meta(meta)


class UnfencedAppend(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        del lease
        super().append(run_id, record)


class DropsRows(ReferenceStore):
    """Takes a row under a live lease, says nothing, and keeps nothing."""

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        if lease is not None:
            self._fence(meta.run_id, lease)


class UnfencedDelete(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        del lease
        super().delete(run_id)


class UnfencedWholeDelete(ReferenceStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        del lease
        super().delete_whole_run(run_id)


class ReleaseByRun(ReferenceStore):
    """Releases whatever lease the run has."""

    def release(self, lease: Lease, /) -> None:
        self._leases.pop(lease.run_id, None)


class ReleaseByOwner(ReferenceStore):
    """Ends the lease of that owner, whichever epoch it has."""

    def release(self, lease: Lease, /) -> None:
        row = self._leases.get(lease.run_id)
        if row is None or row.owner != lease.owner:
            super().release(lease)
        self._leases.pop(lease.run_id, None)


class RenewByRun(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        row = self._leases.get(lease.run_id)
        if row is None:
            super().renew(lease)
        else:
            super().renew(Lease(run_id=lease.run_id, owner=row.owner, epoch=row.epoch))


class ForgetsTheOwner(ReferenceStore):
    """Judges by the epoch alone."""

    def _verdict(self, lease: Lease) -> Any:
        verdict = super()._verdict(lease)
        row = self._leases.get(lease.run_id)
        return None if row is not None and row.epoch == lease.epoch else verdict


class TakesAnyHigherEpoch(ReferenceStore):
    def _verdict(self, lease: Lease) -> Any:
        highest = self._epochs.get(lease.run_id, 0)
        return None if lease.epoch > highest else super()._verdict(lease)


class TakesAnyRunsLease(ReferenceStore):
    """Asks whether the lease is live, and not whether it is this run's."""

    def _fence(self, run_id: str, lease: Lease | None) -> None:
        super()._fence(lease.run_id if lease is not None else run_id, lease)


class SilentlyIgnores(ReferenceStore):
    """Changes nothing for a dead lease, and does not say so."""

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except LeaseHeldError:
            return


class WritesThenChecks(ReferenceStore):
    """Refuses, after the write has landed."""

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        super().put_meta(meta)
        super().put_meta(meta, lease=lease)


class TakesNoLease(ReferenceStore):
    """Declares the marker over a method that was never changed."""

    def delete(self, run_id: str, /) -> None:  # type: ignore[override]
        super().delete(run_id)


class RepeatsEpochs(ReferenceStore):
    """Counts from the lease row, which a release removes."""

    def _grant(self, run_id: str, owner: str) -> Lease:
        row = self._leases.get(run_id)
        self._epochs[run_id] = row.epoch if row is not None else 0
        return super()._grant(run_id, owner)


class GrantsTwice(ReferenceStore):
    """Lets the same owner in again while its lease is live."""

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        row = self._leases.get(run_id)
        return (
            self._grant(run_id, owner)
            if row and row.owner == owner
            else super().acquire(run_id, owner)
        )


class WrongError(ReferenceStore):
    """Refuses with something that is no refusal of the fence."""

    def renew(self, lease: Lease, /) -> None:
        try:
            super().renew(lease)
        except LeaseHeldError as error:
            raise PermissionError(lease.epoch) from error


class BlobsUnfenced(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        del lease
        super().put(ref, blob)


class BlobDeletesUnfenced(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        del lease
        super().delete(ref)


class BlobsOfAnyRun(ReferenceTranscripts):
    """Asks for a live lease, not for the lease of the blob's run."""

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        if lease is not None:
            self._store.renew(lease)
        super().put(ref, blob)


def with_twin(twin: type[ReferenceTranscripts]) -> Stores:
    store = ReferenceStore()
    return Stores(store, twin(store))


def blobs_elsewhere() -> Stores:
    """Blobs that are fenced, in a database where nobody ever takes a lease."""
    return Stores(ReferenceStore(), ReferenceStore().transcripts())


def blobs_elsewhere_where_a_probe_was() -> Stores:
    other = ReferenceStore()
    assert probe_fencing(pair(other)).fenced
    return Stores(ReferenceStore(), other.transcripts())


class Ticking(ManualClock):
    """Time passes between any two looks at it, as it does for a store on a disk."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


def blobs_elsewhere_while_time_passes() -> Stores:
    return Stores(ReferenceStore(clock=Ticking()), ReferenceStore().transcripts())


class RefusesWhatLands(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        super().put(ref, blob, lease=lease)
        if lease is not None:
            raise LeaseHeldError(run_id=lease.run_id, reason="superseded", offered=lease)


LIARS: list[tuple[Callable[[], Stores], Mutation, ProbeLease, ProbeOutcome]] = [
    (lambda: pair(UnfencedAppend()), "append", "superseded", "landed"),
    (lambda: pair(UnfencedMeta()), "put_meta", "superseded", "landed"),
    (lambda: pair(UnfencedMeta()), "put_meta", "released", "landed"),
    (lambda: pair(DropsRows()), "put_meta", "live", "failed"),
    (lambda: pair(UnfencedDelete()), "delete", "superseded", "landed"),
    (lambda: pair(UnfencedDelete()), "delete", "forged owner", "landed"),
    (lambda: pair(UnfencedWholeDelete()), "delete_whole_run", "superseded", "landed"),
    (lambda: pair(ReleaseByRun()), "release", "superseded", "landed"),
    (lambda: pair(ReleaseByOwner()), "release", "superseded", "landed"),
    (lambda: pair(RenewByRun()), "renew", "superseded", "landed"),
    (lambda: pair(RenewByRun()), "renew", "forged epoch", "landed"),
    (lambda: pair(ForgetsTheOwner()), "append", "forged owner", "landed"),
    (lambda: pair(TakesAnyHigherEpoch()), "put_blob", "forged epoch", "landed"),
    (lambda: pair(TakesAnyRunsLease()), "append", "foreign-run", "landed"),
    (lambda: pair(TakesAnyRunsLease()), "delete", "foreign-run", "landed"),
    (lambda: pair(SilentlyIgnores()), "append", "superseded", "landed"),
    (lambda: pair(WritesThenChecks()), "put_meta", "superseded", "landed"),
    (lambda: pair(TakesNoLease()), "delete", "superseded", "failed"),
    (lambda: pair(GrantsTwice()), "acquire", "live", "landed"),
    (lambda: pair(WrongError()), "renew", "superseded", "failed"),
    (lambda: with_twin(BlobsUnfenced), "put_blob", "superseded", "landed"),
    (lambda: with_twin(BlobDeletesUnfenced), "delete_blob", "superseded", "landed"),
    (lambda: with_twin(BlobsOfAnyRun), "put_blob", "foreign-run", "landed"),
    (blobs_elsewhere, "put_blob", "live", "refused"),
    (blobs_elsewhere_where_a_probe_was, "put_blob", "live", "refused"),
    (blobs_elsewhere_while_time_passes, "put_blob", "live", "refused"),
    (lambda: with_twin(RefusesWhatLands), "put_blob", "live", "failed"),
]


@pytest.mark.parametrize(("make", "mutation", "lease", "outcome"), LIARS)
def test_a_liar_is_found_where_it_lies(
    make: Callable[[], Stores], mutation: Mutation, lease: ProbeLease, outcome: ProbeOutcome
) -> None:
    stores = make()
    report = probe_fencing(stores)
    assert not report.fenced
    found = {(f.mutation, f.lease): f.outcome for f in report.problems}
    assert found[mutation, lease] == outcome
    # Nothing of it stays but tombstones, even here.
    journal = cast("ReferenceStore", stores.journal)
    twin = cast("ReferenceTranscripts", stores.transcripts)
    for after in (journal.snapshot(), twin._store.snapshot()):
        assert (after.journals, after.rows, after.leases, after.blobs) == ({}, {}, {}, {})


def test_every_mutation_of_a_liar_is_still_tried() -> None:
    report = probe_fencing(pair(UnfencedMeta()))
    assert set(report.mutations) >= MUTATIONS
    assert {s for s, outcome in report.mutations.items() if outcome != "refused"} == {"put_meta"}


def test_a_seizure_of_a_lease_that_was_passed_is_found() -> None:
    class IgnoresOver(ReferenceStore):
        def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
            del over
            return super().seize(run_id, owner)

    report = probe_fencing(pair(IgnoresOver()))
    assert {s for s, outcome in report.mutations.items() if outcome != "refused"} == {"seize"}


def test_a_renewal_of_many_that_takes_a_dead_lease_is_found() -> None:
    class RenewsAnything(ReferenceStore):
        def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
            super().renew_all(leases)
            return []

    report = probe_fencing(pair(RenewsAnything()))
    assert {s for s, outcome in report.mutations.items() if outcome != "refused"} == {"renew_all"}


def test_epochs_that_come_back_are_found() -> None:
    class Counted(RepeatsEpochs):
        def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
            self._leases.pop(run_id, None)
            return super().seize(run_id, owner, over=over)

    report = probe_fencing(pair(Counted()))
    assert any(f.mutation == "acquire" and "before" in f.detail for f in report.problems)


def test_a_release_that_releases_nothing_is_found() -> None:
    class Sticky(ReferenceStore):
        def release(self, lease: Lease, /) -> None:
            with self._gate.passing():
                self._fence(lease.run_id, lease)

    store = Sticky()
    report = probe_fencing(Stores(hide(store, *SEIZE), store.transcripts()))
    assert any(f.mutation == "release" and not f.ok for f in report.problems)
