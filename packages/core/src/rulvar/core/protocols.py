"""What a store is: small, synchronous protocols, frozen at 1.0 (contract.md#protocols).

Each call is one bounded transaction that runs to completion on the calling thread; it has
taken effect when it returns. A store object may be called from any number of threads at
once. No import of rulvar is needed to satisfy a protocol; the promises A1 to A5, M1, M2, D1
(contract.md#promises-of-every-store) and the fence table (contract.md#fence-table) are what
the conformance kit checks.

Every method of every protocol here may raise, besides what its own docstring says:
`ConfigError` (an argument, before any I/O), `StoreClosedError`, `StoreForkedError`,
`StoreBusyError` (nothing happened), `StoreFullError` (nothing happened),
`OutcomeUnknownError` (may have landed; final by the next read), `StoreCorruptError`.

``lease=None`` is the unfenced write of a single writer. Whoever owns a run passes a `Lease`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.errors import LeaseHeldError
    from rulvar.core.records import BlobStat, JournalRecord, Lease, LeaseInfo, RunFilter, RunMeta

__all__ = [
    "BlobInfo",
    "Closable",
    "EpochFloor",
    "FencedJournalStore",
    "FencedTranscriptStore",
    "JournalStore",
    "JournalTail",
    "LeasableStore",
    "LeaseAdmin",
    "LeaseBatch",
    "LeaseRevival",
    "MetaLookup",
    "RunInventory",
    "TranscriptStore",
    "WholeRunDelete",
]


class JournalStore(Protocol):
    """Journals and their catalogue rows: the seam that every store keeps."""

    def append(self, run_id: str, record: JournalRecord, /) -> None:
        """Add a record; the next `load` has it, whole, and it survives power loss (A1, A3).

        Raises: `JournalOrderViolation` when ``record.seq`` is not above the stored tail (A5).
        """
        ...

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in the order of their appends; none when unknown (A2).

        Raises: `StoreCorruptError` with run and position when a record cannot be decoded.
        """
        ...

    def put_meta(self, meta: RunMeta, /) -> None:
        """Replace the run's row as a whole; every field round-trips (M1, M2)."""
        ...

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return matching rows by the run id's UTF-8 bytes; reads no payload (M1, M2)."""
        ...

    def delete(self, run_id: str, /) -> None:
        """Remove journal, row and lease, all or nothing; keep the tombstone and blobs (D1)."""
        ...


class LeasableStore(JournalStore, Protocol):
    """A store that grants leases and fences appends with them (contract.md#the-fence)."""

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        """Add a record if the lease is live: the check and the write are one unit.

        Raises: `LeaseHeldError` for any dead lease, before the seq guard is asked;
        `JournalOrderViolation` as in `JournalStore`.
        """
        ...

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        """Grant the run under an epoch higher than it has ever had.

        Raises: `LeaseHeldError` (``held``) while a lease is live, the same owner's too.
        """
        ...

    def renew(self, lease: Lease, /) -> None:
        """Move the expiry of a live lease to now plus the time to live.

        Raises: `LeaseHeldError` for any dead lease; the successor's is never touched.
        """
        ...

    def release(self, lease: Lease, /) -> None:
        """End a live lease.

        Raises: `LeaseHeldError` for any dead lease; the successor's is never touched.
        """
        ...


class FencedJournalStore(LeasableStore, Protocol):
    """A leasable store that promises the fence on every mutation."""

    @property
    def fenced_writes(self) -> Literal[True]:
        """The marker: declared only when it is ``True`` itself."""
        ...

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        """Replace the row if the lease is live. Raises: `LeaseHeldError` for any dead one."""
        ...

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Delete if the lease is live, and end it. Raises: `LeaseHeldError` for a dead one."""
        ...


class TranscriptStore(Protocol):
    """Blobs beside the journal, by ref ``<run_id>/<name>``."""

    def put(self, ref: str, blob: bytes, /) -> None:
        """Replace the blob at ``ref``."""
        ...

    def get(self, ref: str, /) -> bytes | None:
        """Return the blob, or None when there is none."""
        ...

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the run's refs, and no other run's, ordered by their UTF-8 bytes."""
        ...

    def delete(self, ref: str, /) -> None:
        """Remove the blob; a missing one is a no-op."""
        ...


class FencedTranscriptStore(TranscriptStore, Protocol):
    """A transcript store that fences per run: the ref's first segment names the run."""

    @property
    def fenced_writes(self) -> Literal[True]:
        """The marker: declared only when it is ``True`` itself."""
        ...

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        """Replace the blob if the lease is live. Raises: `LeaseHeldError` for a dead one."""
        ...

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        """Remove the blob if the lease is live. Raises: `LeaseHeldError` for a dead one."""
        ...


# --- optional capabilities, each by itself ------------------------------------------------


class Closable(Protocol):
    """A store that holds resources."""

    def close(self) -> None:
        """Wait for the calls in flight, then refuse every later one; idempotent."""
        ...


class MetaLookup(Protocol):
    """Point look-up of a row; without it, a scan of `list_runs`."""

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        """Return the row or None. Raises: `StoreCorruptError` for an unreadable row (M2)."""
        ...


class JournalTail(Protocol):
    """Reading what came after a known seq."""

    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        """Return at most ``limit`` records whose seq is above ``after_seq`` (-1: all)."""
        ...


class LeaseAdmin(Protocol):
    """What operators need of leases."""

    def get_lease(self, run_id: str, /) -> LeaseInfo | None:
        """Return the run's lease row, live or not, or None."""
        ...

    def list_leases(self, after_run_id: str | None, limit: int, /) -> Sequence[LeaseInfo]:
        """Return at most ``limit`` lease rows after a run id, by the id's UTF-8 bytes."""
        ...

    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        """Grant a new, higher epoch even while a lease is live: safe because of the fence.

        With ``over``, only while exactly that lease, live or expired, is the run's present
        one: of several that have judged the same lease, one is granted the run.

        Raises: `LeaseHeldError` (``superseded``) when ``over`` is not the present lease, and
        nothing changes; ``foreign-run`` when it names another run.
        """
        ...


class LeaseBatch(Protocol):
    """For a process that holds many runs: one unit renews all of their leases."""

    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        """Renew every live lease as `LeasableStore.renew` does, in one unit.

        Returns a refusal for each dead lease, which is its ``offered``, in the order given;
        a dead one hinders no other. Raises only what every store call may.
        """
        ...


class EpochFloor(Protocol):
    """For copy and restore: no number that was ever granted may be granted again."""

    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        """Make the run's high-water mark at least ``at_least``, and end the run's lease."""
        ...


class LeaseRevival(Protocol):
    """For the holder of an expired lease whose run was not taken since."""

    def revive(self, lease: Lease, /) -> Lease:
        """Grant the next epoch to the holder of an expired lease, in one unit.

        Raises: `LeaseHeldError` for every other lease, with its reason, changing nothing; a
        live one is refused as ``held`` naming its own owner and epoch.
        """
        ...


class RunInventory(Protocol):
    """Every run id of which there is any trace."""

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        """Return at most ``limit`` ids with entries, row, lease or blobs, by UTF-8 bytes."""
        ...


class WholeRunDelete(Protocol):
    """Deleting a run and its blobs in one transaction."""

    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row, lease and blobs. Raises: `LeaseHeldError` for a dead lease."""
        ...


class BlobInfo(Protocol):
    """The size and age of a blob without its bytes."""

    def blob_info(self, ref: str, /) -> BlobStat | None:
        """Return what is known of the blob, or None when there is none."""
        ...
