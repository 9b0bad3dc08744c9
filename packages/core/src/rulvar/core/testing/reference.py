"""The fenced store pair in memory: the contract in the simplest code (contract.md#the-fence).

Read it from the top. A run has at most one lease row, and for ever an epoch, the highest
number that was granted for its id. Three rules make the fence:

1. A lease is *live* when it names the run, its epoch is the run's highest, the row is still
   there under its owner, and the row's expiry lies ahead. `lease_status` says which of these
   fails first; nothing else judges a lease.
2. The verdict and the change that depends on it happen under one lock, so that no other call comes
   between them. A store on disk does both in one transaction.
3. Epochs are kept apart from everything that can be deleted.

Every method has the same three lines: check the arguments, pass the gate (closed? forked?),
ask the fence; then it changes something or does not. That order is part of the contract. The
file is as long as the contract: two dozen calls with their promises, and no other logic.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rulvar.core._tables import Gate, Tables, page
from rulvar.core.checks import (
    MAX_INTEGER,
    check_after_seq,
    check_blob,
    check_epoch,
    check_filter,
    check_lease,
    check_limit,
    check_meta,
    check_owner,
    check_record,
    check_ref,
    check_run_id,
    check_ttl_ms,
    run_of_ref,
)
from rulvar.core.clock import SystemClock
from rulvar.core.errors import LeaseHeldError, StoreFullError
from rulvar.core.lease_status import LeaseState, lease_status, refusal, refuse_foreign
from rulvar.core.records import Lease, LeaseInfo
from rulvar.core.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.clock import Clock
    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import BlobStat, JournalRecord, RunFilter, RunMeta

__all__ = ["ReferenceStore", "ReferenceTranscripts", "StoreSnapshot", "reference_stores"]


@dataclass(frozen=True, slots=True)
class _LeaseRow:
    owner: str
    epoch: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Everything that a store holds, as a value: equal exactly when nothing changed.

    Each field maps run ids (refs for blobs) to what is stored there; a lease is
    ``(owner, epoch, expires_at)``.
    """

    journals: dict[str, tuple[JournalRecord, ...]]
    rows: dict[str, RunMeta]
    leases: dict[str, tuple[str, int, int]]
    epochs: dict[str, int]
    blobs: dict[str, bytes]


class ReferenceStore:
    """Journals, rows and leases in memory, fenced on every mutation.

    ``clock`` gives the time (the system's by default) and ``lease_ttl_ms`` how long a lease
    lives without a renewal. Raises `ConfigError` for a ttl that is not 1 to 2147483647.
    """

    fenced_writes: Literal[True] = True
    busy_timeout_ms: int = 0
    """No call waits for another process, so none is ever refused as busy."""

    def __init__(self, *, clock: Clock | None = None, lease_ttl_ms: int = 60_000) -> None:
        self.lease_ttl_ms = check_ttl_ms(lease_ttl_ms)
        self.fencing_domain = f"reference:{uuid.uuid4().hex}"
        self._clock = clock if clock is not None else SystemClock()
        self._gate = Gate("the reference store")
        self._tables = Tables()
        self._leases: dict[str, _LeaseRow] = {}
        self._epochs: dict[str, int] = {}
        self._twin = ReferenceTranscripts(self)

    def transcripts(self) -> ReferenceTranscripts:
        """Return the twin: blobs fenced by these leases, under the same lock and life."""
        return self._twin

    # --- the fence --------------------------------------------------------------------------

    def _verdict(self, lease: Lease) -> RefusalReason | None:
        """Return why the lease is dead, or None when it is the live one."""
        return lease_status(self._state(lease.run_id), lease, self._clock.now_ms())

    def _state(self, run_id: str) -> LeaseState:
        """Return what there is of a run's leases: its highest epoch, and its row if any."""
        highest, row = self._epochs.get(run_id), self._leases.get(run_id)
        if row is None:
            return LeaseState(run_id, highest)
        return LeaseState(run_id, highest, row.owner, row.epoch, row.expires_at)

    def _fence(self, run_id: str, lease: Lease | None) -> None:
        """Let a mutation of ``run_id`` through, or raise `LeaseHeldError`."""
        if lease is None:
            return  # the unfenced write of a single writer
        refuse_foreign(run_id, lease)
        reason = self._verdict(lease)
        if reason is not None:
            raise self._refusal(run_id, reason, lease)

    def _refusal(self, run_id: str, reason: RefusalReason, offered: Lease | None) -> LeaseHeldError:
        return refusal(self._state(run_id), reason, self._clock.now_ms(), offered=offered)

    def _live_row(self, run_id: str) -> _LeaseRow | None:
        row = self._leases.get(run_id)
        if row is None or self._verdict(Lease(run_id=run_id, owner=row.owner, epoch=row.epoch)):
            return None
        return row

    # --- leases -----------------------------------------------------------------------------

    def _grant(self, run_id: str, owner: str) -> Lease:
        epoch = self._epochs.get(run_id, 0) + 1
        if epoch > MAX_INTEGER:
            message = f"run {run_id!r} has used up its epochs: go on under another run id"
            raise StoreFullError(message, run_id=run_id)
        self._epochs[run_id] = epoch
        self._leases[run_id] = _LeaseRow(owner, epoch, self._clock.now_ms() + self.lease_ttl_ms)
        return Lease(run_id=run_id, owner=owner, epoch=epoch)

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        """Grant the run under its next epoch.

        Raises `LeaseHeldError` (``held``) while a lease is live, the same owner too.
        """
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            if self._live_row(run_id) is not None:
                raise self._refusal(run_id, "held", None)
            return self._grant(run_id, owner)

    def renew(self, lease: Lease, /) -> None:
        """Move a live lease's expiry to now plus the ttl. Raises `LeaseHeldError`."""
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)
            expires_at = self._clock.now_ms() + self.lease_ttl_ms
            self._leases[lease.run_id] = _LeaseRow(lease.owner, lease.epoch, expires_at)

    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        """Renew every live lease in one unit; return a refusal for each dead one, in order."""
        for lease in leases:
            check_lease(lease)
        refusals: list[LeaseHeldError] = []
        with self._gate.passing():
            for lease in leases:
                try:
                    self._fence(lease.run_id, lease)
                except LeaseHeldError as refusal:
                    refusals.append(refusal.with_traceback(None))
                else:
                    expires_at = self._clock.now_ms() + self.lease_ttl_ms
                    self._leases[lease.run_id] = _LeaseRow(lease.owner, lease.epoch, expires_at)
        return refusals

    def release(self, lease: Lease, /) -> None:
        """End a live lease. Raises `LeaseHeldError`."""
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)
            del self._leases[lease.run_id]

    def revive(self, lease: Lease, /) -> Lease:
        """Grant the next epoch to the holder of an expired lease whose run was not taken since.

        Raises `LeaseHeldError` for every other lease; a live one is ``held`` by itself.
        """
        check_lease(lease)
        with self._gate.passing():
            reason = self._verdict(lease)
            if reason is None:
                raise self._refusal(lease.run_id, "held", lease)
            if reason != "expired":
                raise self._refusal(lease.run_id, reason, lease)
            return self._grant(lease.run_id, lease.owner)

    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        """Grant the next epoch even while a lease is live: its holder is fenced from now on.

        With ``over``, only while that lease is the run's present one, live or expired.
        Raises `LeaseHeldError` (``superseded``) when it is not.
        """
        check_run_id(run_id)
        check_owner(owner)
        _check_lease(over)
        with self._gate.passing():
            if over is not None:
                self._check_present(run_id, over)
            return self._grant(run_id, owner)

    def _check_present(self, run_id: str, over: Lease) -> None:
        refuse_foreign(run_id, over)
        if self._verdict(over) not in {None, "expired"}:
            raise self._refusal(run_id, "superseded", over)

    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        """Make the run's highest epoch at least ``at_least``, and end its lease."""
        check_run_id(run_id)
        check_epoch(at_least)
        with self._gate.passing():
            self._leases.pop(run_id, None)
            if at_least > self._epochs.get(run_id, 0):
                self._epochs[run_id] = at_least

    def get_lease(self, run_id: str, /) -> LeaseInfo | None:
        """Return the run's lease row, live or not, or None."""
        check_run_id(run_id)
        with self._gate.passing():
            return self._lease_info(run_id) if run_id in self._leases else None

    def list_leases(self, after_run_id: str | None, limit: int, /) -> Sequence[LeaseInfo]:
        """Return at most ``limit`` lease rows after a run id."""
        _check_page(after_run_id, limit)
        with self._gate.passing():
            return [self._lease_info(r) for r in page(self._leases, after_run_id, limit)]

    def _lease_info(self, run_id: str) -> LeaseInfo:
        row = self._leases[run_id]
        return LeaseInfo(
            run_id=run_id,
            owner=row.owner,
            epoch=row.epoch,
            expires_at=row.expires_at,
            live=self._live_row(run_id) is not None,
        )

    # --- journals and rows ------------------------------------------------------------------

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        """Add a record.

        Raises `LeaseHeldError` for a dead lease, and only then `JournalOrderViolation`.
        """
        check_run_id(run_id)
        check_record(record)
        _check_lease(lease)
        with self._gate.passing():
            self._fence(run_id, lease)
            self._tables.append(run_id, record)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in order."""
        check_run_id(run_id)
        with self._gate.passing():
            return self._tables.records(run_id)

    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        """Return at most ``limit`` records whose seq is above ``after_seq``."""
        check_run_id(run_id)
        check_after_seq(after_seq)
        check_limit(limit)
        with self._gate.passing():
            return [r for r in self._tables.records(run_id) if r.seq > after_seq][:limit]

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        """Replace the run's row. Raises `LeaseHeldError`."""
        check_meta(meta)
        _check_lease(lease)
        with self._gate.passing():
            self._fence(meta.run_id, lease)
            self._tables.put_row(meta)

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        """Return the run's row or None."""
        check_run_id(run_id)
        with self._gate.passing():
            return self._tables.row(run_id)

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return matching rows by run id."""
        wanted = check_filter(run_filter)
        with self._gate.passing():
            return self._tables.rows(wanted)

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        """Return at most ``limit`` ids with entries, row, lease or blobs."""
        _check_page(after_run_id, limit)
        with self._gate.passing():
            return page(self._tables.run_ids() | self._leases.keys(), after_run_id, limit)

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row and lease; the epoch and the blobs stay.

        Raises `LeaseHeldError`; an unknown run is a no-op.
        """
        self._delete(run_id, lease, blobs=False)

    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row, lease and blobs; the epoch stays. Raises `LeaseHeldError`."""
        self._delete(run_id, lease, blobs=True)

    def _delete(self, run_id: str, lease: Lease | None, *, blobs: bool) -> None:
        check_run_id(run_id)
        _check_lease(lease)
        with self._gate.passing():
            self._fence(run_id, lease)
            try:
                self._remove(run_id, blobs=blobs)
            except BaseException:
                # An interrupt between the two leaves no half of a deletion (D1).
                self._remove(run_id, blobs=blobs)
                raise

    def _remove(self, run_id: str, *, blobs: bool) -> None:
        self._tables.drop(run_id, blobs=blobs)
        self._leases.pop(run_id, None)

    # --- the store itself -------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the calls in flight, then refuse every later one; idempotent."""
        self._gate.close()

    def snapshot(self) -> StoreSnapshot:
        """Return everything stored, for a comparison of before and after."""
        with self._gate.passing():
            runs = sorted(self._tables.run_ids())
            rows = {r: row for r in runs if (row := self._tables.row(r)) is not None}
            refs = [ref for r in runs for ref in self._tables.refs(r)]
            return StoreSnapshot(
                journals={r: found for r in runs if (found := self._tables.records(r))},
                rows=rows,
                leases={r: (w.owner, w.epoch, w.expires_at) for r, w in self._leases.items()},
                epochs=dict(self._epochs),
                blobs={ref: self._tables.blob(ref) or b"" for ref in refs},
            )


class ReferenceTranscripts:
    """The twin of a `ReferenceStore`: blobs under the same lock, fence and life."""

    fenced_writes: Literal[True] = True
    busy_timeout_ms: int = 0

    # It is the other half of one store: what it shares with `ReferenceStore` is private to both.
    # ruff: noqa: SLF001

    def __init__(self, store: ReferenceStore, /) -> None:
        self.fencing_domain = store.fencing_domain
        self._store = store

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        """Replace the blob at ``ref``; its run is the first segment. Raises `LeaseHeldError`."""
        check_ref(ref)
        check_blob(blob)
        _check_lease(lease)
        with self._store._gate.passing():
            self._store._fence(run_of_ref(ref), lease)
            self._store._tables.put_blob(ref, blob, self._store._clock.now_ms())

    def get(self, ref: str, /) -> bytes | None:
        """Return the blob or None."""
        check_ref(ref)
        with self._store._gate.passing():
            return self._store._tables.blob(ref)

    def blob_info(self, ref: str, /) -> BlobStat | None:
        """Return the blob's size and when it was stored, or None when there is none."""
        check_ref(ref)
        with self._store._gate.passing():
            return self._store._tables.blob_stat(ref)

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the run's refs in order."""
        check_run_id(run_id)
        with self._store._gate.passing():
            return self._store._tables.refs(run_id)

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        """Remove the blob; a missing one is a no-op. Raises `LeaseHeldError`."""
        check_ref(ref)
        _check_lease(lease)
        with self._store._gate.passing():
            self._store._fence(run_of_ref(ref), lease)
            self._store._tables.drop_blob(ref)

    def close(self) -> None:
        """Close the store that this is the twin of; idempotent."""
        self._store.close()


def reference_stores(*, clock: Clock | None = None, lease_ttl_ms: int = 60_000) -> Stores:
    """Return a fresh `ReferenceStore` and its twin as a pair."""
    store = ReferenceStore(clock=clock, lease_ttl_ms=lease_ttl_ms)
    return Stores(store, store.transcripts())


def _check_lease(lease: Lease | None) -> None:
    if lease is not None:
        check_lease(lease)


def _check_page(after_run_id: str | None, limit: int) -> None:
    if after_run_id is not None:
        check_run_id(after_run_id)
    check_limit(limit)
