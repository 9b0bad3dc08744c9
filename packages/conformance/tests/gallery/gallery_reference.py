"""Broken stores over the in-memory reference store."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from gallery_defects import defect, reference

from rulvar.core.checks import check_lease, check_meta, check_owner, check_record, check_run_id
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from rulvar.core import JournalRecord, Lease, RunMeta
    from rulvar.core.errors import RefusalReason


class _IgnoresExpiry(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        reason = super()._verdict(lease)
        return None if reason == "expired" else reason


defect(
    "reference-fence-ignores-expiry",
    "an expired lease that nobody took still writes",
    breaks="F-append-expired",
    build=lambda home: reference(home, _IgnoresExpiry),
)


class _IgnoresOwner(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        return super()._verdict(lease if row is None else replace(lease, owner=row.owner))


defect(
    "reference-fence-ignores-owner",
    "the fence compares epochs alone",
    breaks="F-append-forged-owner",
    build=lambda home: reference(home, _IgnoresOwner),
)


class _ReleasesByRun(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._leases.pop(lease.run_id, None)


defect(
    "reference-release-by-run",
    "a release ends whatever lease the run has",
    breaks="F-release-superseded",
    build=lambda home: reference(home, _ReleasesByRun),
)


class _RenewsNothing(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)


defect(
    "reference-renew-does-nothing",
    "a renewal is accepted and extends nothing",
    breaks="L-renew",
    build=lambda home: reference(home, _RenewsNothing),
)


class _LosesTombstone(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        with self._gate.passing():
            self._epochs.pop(run_id, None)


defect(
    "reference-delete-loses-tombstone",
    "a deleted run begins at epoch 1 again",
    breaks="L-epoch",
    build=lambda home: reference(home, _LosesTombstone),
)


class _DemandsContiguity(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        found = self.load(run_id)
        if found and record.seq > found[-1].seq + 1:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=found[-1].seq)
        super().append(run_id, record, lease=lease)


defect(
    "reference-append-demands-contiguity",
    "a gap in the seqs is refused",
    breaks="A5-guard",
    build=lambda home: reference(home, _DemandsContiguity),
)


class _MergesRows(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        before = self.get_meta(meta.run_id)
        if before is not None:
            kept = {
                field.name: getattr(before, field.name)
                for field in fields(meta)
                if getattr(meta, field.name) is None
            }
            meta = replace(meta, **kept)
        super().put_meta(meta, lease=lease)


defect(
    "reference-put-meta-merges",
    "a row is merged into the one before",
    breaks="M2-replace",
    build=lambda home: reference(home, _MergesRows),
)


class _ChecksAppendFirst(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        with self._gate.passing():
            self._fence(run_id, lease)
        super().append(run_id, record)


defect(
    "reference-append-checks-first",
    "the check of append and its write take the lock one after the other",
    breaks="F-append-atomic",
    build=lambda home: reference(home, _ChecksAppendFirst),
)


class _LetsOwnerIn(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            row = self._live_row(run_id)
            if row is not None and row.owner == owner:
                return self._grant(run_id, owner)
        return super().acquire(run_id, owner)


defect(
    "reference-acquire-reentrant",
    "the holder is granted its run again",
    breaks="L-no-reentry",
    build=lambda home: reference(home, _LetsOwnerIn),
)
