"""Broken fences over the reference store: who is let through, and why others are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken, broken_twin

from rulvar.core.checks import (
    check_blob,
    check_lease,
    check_meta,
    check_record,
    check_ref,
    check_run_id,
    run_of_ref,
)
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError
from rulvar.core.testing import ReferenceStore, ReferenceTranscripts

if TYPE_CHECKING:
    from rulvar.core.errors import RefusalReason
    from rulvar.core.spi import JournalRecord, Lease, RunMeta


# --- what the verdict looks at --------------------------------------------------------------


@broken("fence-ignores-expiry", "an expired lease still writes", breaks="F-append-expired")
class _IgnoresExpiry(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        reason = super()._verdict(lease)
        return None if reason == "expired" else reason


@broken("fence-ignores-owner", "the fence compares epochs alone", breaks="F-append-forged-owner")
class _IgnoresOwner(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        return super()._verdict(lease if row is None else replace(lease, owner=row.owner))


@broken(
    "fence-ignores-epoch",
    "the fence compares owners alone, and an owner comes back",
    breaks="F-append-superseded-owner",
)
class _IgnoresEpoch(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        return super()._verdict(lease if row is None else replace(lease, epoch=row.epoch))


@broken(
    "fence-takes-higher-epochs",
    "any epoch that is not lower passes, one that was never granted too",
    breaks="F-append-forged-epoch",
)
class _TakesHigherEpochs(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        highest = self._epochs.get(lease.run_id)
        if highest is not None and lease.epoch > highest:
            lease = replace(lease, epoch=highest)
        return super()._verdict(lease)


@broken(
    "fence-asks-tombstone-alone",
    "the highest epoch passes, whether its lease row is still there or not",
    breaks="F-append-released",
)
class _AsksTombstoneAlone(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        reason = super()._verdict(lease)
        return None if reason == "released" else reason


@broken(
    "fence-lets-second-try-in",
    "a refused lease is let through when it comes again",
    breaks="F-put_meta-superseded",
)
class _LetsSecondTryIn(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._refused: set[Lease] = set()

    def _fence(self, run_id: str, lease: Lease | None) -> None:
        if lease in self._refused:
            return
        try:
            super()._fence(run_id, lease)
        except LeaseHeldError:
            if lease is not None:
                self._refused.add(lease)
            raise


@broken(
    "fence-open-on-free-runs",
    "whoever has some lease may write to a run that nobody holds",
    breaks="F-append-foreign-free",
)
class _OpenOnFreeRuns(ReferenceStore):
    def _fence(self, run_id: str, lease: Lease | None) -> None:
        free = run_id not in self._leases
        super()._fence(run_id, None if free and lease and lease.run_id != run_id else lease)


@broken(
    "fence-open-on-new-runs",
    "a run that never had a lease takes any",
    breaks="F-append-never-granted",
)
class _OpenOnNewRuns(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        return super()._verdict(lease) if lease.run_id in self._epochs else None


# --- reasons and order ----------------------------------------------------------------------


@broken(
    "fence-says-superseded",
    "every dead lease is called superseded",
    breaks="F-renew-released",
)
class _SaysSuperseded(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        return None if super()._verdict(lease) is None else "superseded"


@broken(
    "fence-looks-at-time-first",
    "a lease that has run out is called expired, though a successor has taken the run",
    breaks="F-append-expired-taken",
)
class _LooksAtTimeFirst(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ends: dict[Lease, int] = {}

    def _grant(self, run_id: str, owner: str) -> Lease:
        lease = super()._grant(run_id, owner)
        self._ends[lease] = self._leases[run_id].expires_at
        return lease

    def _verdict(self, lease: Lease) -> RefusalReason | None:
        if self._ends.get(lease, self._clock.now_ms() + 1) <= self._clock.now_ms():
            return "expired"
        return super()._verdict(lease)


@broken(
    "append-looks-at-seq-first",
    "a dead lease with a stale seq is refused as out of order",
    breaks="F-append-stale-superseded",
)
class _LooksAtSeqFirst(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        found = self.load(run_id)
        if found and record.seq <= found[-1].seq:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=found[-1].seq)
        super().append(run_id, record, lease=lease)


@broken(
    "fence-looks-at-lease-first",
    "a dead lease of another run is refused for what it is there, not as foreign",
    breaks="F-put_meta-foreign-dead",
)
class _LooksAtLeaseFirst(ReferenceStore):
    def _fence(self, run_id: str, lease: Lease | None) -> None:
        if lease is not None:
            super()._fence(lease.run_id, lease)
        super()._fence(run_id, lease)


@broken(
    "append-looks-at-lease-first",
    "a malformed record under a dead lease is refused for the lease",
    breaks="E-order",
)
class _LooksAtLeaseBeforeArguments(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        with self._gate.passing():
            self._fence(run_id, lease)
        super().append(run_id, record, lease=lease)


@broken(
    "append-refuses-untyped",
    "a dead lease is refused by a ValueError",
    breaks="F-append-superseded",
)
class _RefusesUntyped(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except LeaseHeldError as error:
            raise ValueError(str(error)) from error


@broken(
    "fence-names-dead-holder",
    "the refusal names the lease that was offered as the one that holds the run",
    breaks="L-dead-error",
)
class _NamesDeadHolder(ReferenceStore):
    def _fence(self, run_id: str, lease: Lease | None) -> None:
        try:
            super()._fence(run_id, lease)
        except LeaseHeldError as error:
            raise LeaseHeldError(
                run_id=run_id,
                reason=error.reason,
                offered=lease,
                holder=lease.owner if lease else None,
                epoch=lease.epoch if lease else None,
            ) from error


# --- mutations that do not ask the fence, or ask for another run -------------------------------


@broken("append-unfenced", "append takes the lease and does not look", breaks="F-append-deleted")
class _AppendsUnfenced(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        super().append(run_id, record)


@broken(
    "put-meta-unfenced", "put_meta takes the lease and does not look", breaks="F-put_meta-expired"
)
class _PutsUnfenced(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        super().put_meta(meta)


@broken("delete-unfenced", "delete takes the lease and does not look", breaks="F-delete-superseded")
class _DeletesUnfenced(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id)


@broken(
    "delete-whole-run-unfenced",
    "delete_whole_run takes the lease and does not look",
    breaks="F-delete_whole_run-recreated",
)
class _DeletesWholeUnfenced(ReferenceStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete_whole_run(run_id)


@broken_twin(
    "blob-put-unfenced", "put takes the lease and does not look", breaks="F-blob-new-superseded"
)
class _PutsBlobUnfenced(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        super().put(ref, blob)


@broken_twin(
    "blob-delete-unfenced",
    "a blob's delete takes the lease and does not look",
    breaks="F-blob-delete-superseded",
)
class _DeletesBlobUnfenced(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        super().delete(ref)


@broken_twin(
    "blob-delete-asks-only-if-there",
    "a dead lease may remove a blob that is not there",
    breaks="F-blob-delete-missing-superseded",
)
class _AsksOnlyIfThere(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        if self.get(ref) is not None:
            super().delete(ref, lease=lease)


@broken(
    "append-any-run",
    "a live lease of whatever run lets an append through",
    breaks="F-append-foreign",
)
class _AppendsAnyRun(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        with self._gate.passing():
            self._fence(lease.run_id if lease else run_id, lease)
            self._tables.append(run_id, record)


@broken(
    "put-meta-any-run",
    "a live lease of whatever run lets a row through",
    breaks="F-put_meta-foreign",
)
class _PutsAnyRun(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        with self._gate.passing():
            self._fence(lease.run_id if lease else meta.run_id, lease)
            self._tables.put_row(meta)


class _DeletesWithAnyLease(ReferenceStore):
    def _delete(self, run_id: str, lease: Lease | None, *, blobs: bool) -> None:
        check_run_id(run_id)
        with self._gate.passing():
            self._fence(lease.run_id if lease else run_id, lease)
            self._tables.drop(run_id, blobs=blobs)
            self._leases.pop(run_id, None)


@broken("delete-any-run", "a live lease of whatever run deletes", breaks="F-delete-foreign-twin")
class _DeletesAnyRun(_DeletesWithAnyLease):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        ReferenceStore._delete(self, run_id, lease, blobs=True)


@broken(
    "delete-whole-run-any-run",
    "a live lease of whatever run deletes with the blobs",
    breaks="F-delete_whole_run-foreign",
)
class _DeletesWholeAnyRun(_DeletesWithAnyLease):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        ReferenceStore._delete(self, run_id, lease, blobs=False)


@broken_twin(
    "blob-put-any-run",
    "a live lease of whatever run stores a blob",
    breaks="F-blob-put-foreign",
)
class _PutsBlobAnyRun(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        store = self._store
        with store._gate.passing():
            store._fence(lease.run_id if lease else run_of_ref(ref), lease)
            store._tables.put_blob(ref, blob, store._clock.now_ms())


@broken_twin(
    "blob-delete-any-run",
    "a live lease of whatever run removes a blob",
    breaks="F-blob-delete-foreign",
)
class _DeletesBlobAnyRun(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        with self._store._gate.passing():
            self._store._fence(lease.run_id if lease else run_of_ref(ref), lease)
            self._store._tables.drop_blob(ref)


# --- refusals that are none, and refusals too many -----------------------------------------------


@broken(
    "append-swallows-refusal",
    "an append under a dead lease is dropped without a word",
    breaks="F-append-recreated",
)
class _SwallowsRefusal(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except LeaseHeldError:
            return


@broken(
    "put-meta-writes-and-refuses",
    "a row is written before the fence refuses it",
    breaks="F-put_meta-forged-past",
)
class _WritesAndRefuses(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        super().put_meta(meta)
        with self._gate.passing():
            self._fence(meta.run_id, lease)


@broken_twin(
    "blob-delete-before-fence",
    "a blob is gone before the fence is asked",
    breaks="F-blob-delete-expired",
)
class _RemovesAndRefuses(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        super().delete(ref)
        if lease is not None:
            with self._store._gate.passing():
                self._store._fence(run_of_ref(ref), lease)


class _NeedsLease(ReferenceStore):
    """Refuses what carries no lease while somebody holds the run."""

    def _demand(self, run_id: str, lease: Lease | None) -> None:
        with self._gate.passing():
            row = self._live_row(run_id)
        if lease is None and row is not None:
            raise LeaseHeldError(run_id=run_id, reason="held", holder=row.owner)


@broken(
    "append-needs-lease",
    "an append without a lease is refused while somebody holds the run",
    breaks="F-append-unleased",
)
class _AppendNeedsLease(_NeedsLease):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        self._demand(run_id, lease)
        super().append(run_id, record, lease=lease)


@broken(
    "put-meta-needs-lease",
    "a row without a lease is refused while somebody holds the run",
    breaks="F-put_meta-unleased",
)
class _RowNeedsLease(_NeedsLease):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        self._demand(meta.run_id, lease)
        super().put_meta(meta, lease=lease)


@broken(
    "delete-needs-lease",
    "a deletion without a lease is refused while somebody holds the run",
    breaks="F-delete-unleased",
)
class _DeleteNeedsLease(_NeedsLease):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        self._demand(run_id, lease)
        super().delete(run_id, lease=lease)


@broken(
    "fence-refuses-everybody",
    "a run whose lease was passed once refuses the successor too",
    breaks="F-append-superseded-owner",
)
class _RefusesEverybody(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        reason = super()._verdict(lease)
        return "superseded" if reason is None and lease.epoch > 1 else reason


@broken(
    "renew-moves-expiry-and-refuses",
    "a renewal that is refused extends the lease all the same",
    breaks="F-renew-forged-owner",
)
class _ExtendsAndRefuses(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            row = self._leases.get(lease.run_id)
            if row is not None:
                # Longer than before even when no time has passed.
                until = max(row.expires_at, self._clock.now_ms() + self.lease_ttl_ms) + 1
                self._leases[lease.run_id] = replace(row, expires_at=until)
            self._fence(lease.run_id, lease)
