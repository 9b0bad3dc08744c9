"""Fences over the reference store that are asked outside the lock, on each mutation alone.

The check takes the lock, and the write takes it again: a successor comes in between.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken, broken_twin

from rulvar.core.checks import (
    check_blob,
    check_lease,
    check_meta,
    check_owner,
    check_record,
    check_ref,
    check_run_id,
    run_of_ref,
)
from rulvar.core.errors import LeaseHeldError
from rulvar.core.testing import ReferenceStore, ReferenceTranscripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import Clock, JournalRecord, Lease, RunMeta


class _ChecksFirst(ReferenceStore):
    def check_alone(self, run_id: str, lease: Lease | None) -> None:
        with self._gate.passing():
            self._fence(run_id, lease)


@broken(
    "append-checks-first",
    "the check of append and its write take the lock one after the other",
    breaks="F-append-atomic",
)
class _AppendChecksFirst(_ChecksFirst):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        self.check_alone(run_id, lease)
        super().append(run_id, record)


@broken(
    "put-meta-checks-first",
    "the check of put_meta and its write take the lock one after the other",
    breaks="F-put_meta-atomic",
)
class _PutMetaChecksFirst(_ChecksFirst):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        self.check_alone(meta.run_id, lease)
        super().put_meta(meta)


@broken(
    "delete-checks-first",
    "the check of delete and the deletion take the lock one after the other",
    breaks="F-delete-atomic",
)
class _DeleteChecksFirst(_ChecksFirst):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        self.check_alone(run_id, lease)
        super().delete(run_id)


@broken(
    "delete-whole-run-checks-first",
    "the check of delete_whole_run and the deletion take the lock one after the other",
    breaks="F-delete_whole_run-atomic",
)
class _DeleteWholeChecksFirst(_ChecksFirst):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        self.check_alone(run_id, lease)
        super().delete_whole_run(run_id)


@broken(
    "renew-checks-first",
    "the check of renew and the new expiry take the lock one after the other",
    breaks="F-renew-atomic",
)
class _RenewChecksFirst(_ChecksFirst):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        self.check_alone(lease.run_id, lease)
        with self._gate.passing():
            row = self._leases.get(lease.run_id)
            if row is not None:
                until = self._clock.now_ms() + self.lease_ttl_ms
                self._leases[lease.run_id] = replace(
                    row, owner=lease.owner, epoch=lease.epoch, expires_at=until
                )


@broken(
    "release-checks-first",
    "the check of release and the removal take the lock one after the other",
    breaks="F-release-atomic",
)
class _ReleaseChecksFirst(_ChecksFirst):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        self.check_alone(lease.run_id, lease)
        with self._gate.passing():
            self._leases.pop(lease.run_id, None)


@broken(
    "acquire-looks-first",
    "acquire looks whether the run is free, and grants it under the lock again",
    breaks="L-one-wins",
)
class _AcquireLooksFirst(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            free = self._live_row(run_id) is None
        return self.seize(run_id, owner) if free else super().acquire(run_id, owner)


@broken_twin(
    "blob-put-checks-first",
    "the check of a blob and its write take the lock one after the other",
    breaks="F-blob-put-atomic",
)
class _BlobPutChecksFirst(ReferenceTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        with self._store._gate.passing():
            self._store._fence(run_of_ref(ref), lease)
        super().put(ref, blob)


@broken_twin(
    "blob-delete-checks-first",
    "the check of a blob's removal and the removal take the lock one after the other",
    breaks="F-blob-delete-atomic",
)
class _BlobDeleteChecksFirst(ReferenceTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        with self._store._gate.passing():
            self._store._fence(run_of_ref(ref), lease)
        super().delete(ref)


@broken(
    "seize-numbers-first",
    "seize chooses the next epoch, and grants it under the lock again",
    breaks="L-grants-meet",
)
class _SeizeNumbersFirst(ReferenceStore):
    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        if over is not None:
            return super().seize(run_id, owner, over=over)
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            highest = self._epochs.get(run_id, 0)
        with self._gate.passing():
            self._epochs[run_id] = highest
            return self._grant(run_id, owner)


@broken(
    "seize-over-looks-first",
    "seize looks whether the lease is the present one, and grants the run under the lock again",
    breaks="L-seize-over-meets",
)
class _SeizeOverLooksFirst(ReferenceStore):
    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        if over is not None:
            check_lease(over)
            with self._gate.passing():
                self._check_present(run_id, over)
        return super().seize(run_id, owner)


@broken(
    "renew-all-checks-first",
    "the checks of a renewal of many and the new expiries take the lock one after the other",
    breaks="L-batch-atomic",
)
class _RenewAllChecksFirst(_ChecksFirst):
    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        refusals: list[LeaseHeldError] = []
        live: list[Lease] = []
        for lease in map(check_lease, leases):
            try:
                self.check_alone(lease.run_id, lease)
            except LeaseHeldError as refusal:
                refusals.append(refusal)
            else:
                live.append(lease)
        with self._gate.passing():
            until = self._clock.now_ms() + self.lease_ttl_ms
            for lease in live:
                row = self._leases.get(lease.run_id)
                if row is not None:
                    self._leases[lease.run_id] = replace(
                        row, owner=lease.owner, epoch=lease.epoch, expires_at=until
                    )
        return refusals


@broken(
    "revive-looks-first",
    "revive looks whether the run was taken, and grants it under the lock again",
    breaks="L-revive-meets",
)
class _ReviveLooksFirst(ReferenceStore):
    def revive(self, lease: Lease, /) -> Lease:
        check_lease(lease)
        with self._gate.passing():
            expired = self._verdict(lease) == "expired"
        if expired:
            return self.seize(lease.run_id, lease.owner)
        return super().revive(lease)


class _KeptTime:
    """A clock that shows each thread the time that it read first, until told otherwise."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept = threading.local()

    def keep(self) -> None:
        self._kept.now = self._clock.now_ms()

    def detach(self) -> None:
        self._kept.now = None

    def now_ms(self) -> int:
        kept: int | None = getattr(self._kept, "now", None)
        return self._clock.now_ms() if kept is None else kept

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()


@broken(
    "append-reads-time-early",
    "append reads the time, and then waits for the lock",
    breaks="F-time-in-lock",
)
class _ReadsTimeEarly(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._time = self._clock = _KeptTime(self._clock)

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        self._time.keep()
        try:
            super().append(run_id, record, lease=lease)
        finally:
            self._time.detach()
