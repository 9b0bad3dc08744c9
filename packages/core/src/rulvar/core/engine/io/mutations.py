"""The store calls that change something, with the lease threaded into each that takes one.

Called by the writer and by the ownership object alone, and made by the engine: a linter
contract keeps every other module away.
Which calls take a lease is decided once per pair: ``append`` where acquire, renew and
release are there, ``put_meta``, ``delete`` and the blob calls where the marker is
(contract.md#stores-with-fewer-arguments). An old store is called without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.capabilities import (
    fencing_domain_of,
    has_fenced_journal,
    has_fenced_transcripts,
    has_lease_admin,
    has_lease_batch,
    has_lease_revival,
    has_leases,
    has_whole_run_delete,
)
from rulvar.core.engine.kernel.authority import UNLEASED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.engine.kernel.authority import Authority
    from rulvar.core.errors import LeaseHeldError
    from rulvar.core.records import JournalRecord, Lease, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["FencedCalls", "LeaseApi"]


class FencedCalls:
    """The calls that change a run's state, each under an authority."""

    def __init__(self, stores: StorePair) -> None:
        journal, transcripts = stores.journal, stores.transcripts
        self._journal = journal
        self._transcripts = transcripts
        self._leasable = journal if has_leases(journal) else None
        self._fenced = journal if has_fenced_journal(journal) else None
        self._fenced_blobs = transcripts if has_fenced_transcripts(transcripts) else None
        domain = fencing_domain_of(journal)
        one_domain = domain is not None and domain == fencing_domain_of(transcripts)
        self._whole = journal if one_domain and has_whole_run_delete(journal) else None

    def append(self, authority: Authority, run_id: str, record: JournalRecord) -> None:
        """Append a record."""
        if self._leasable is not None and authority is not UNLEASED:
            self._leasable.append(run_id, record, lease=authority)
        else:
            self._journal.append(run_id, record)

    def put_meta(self, authority: Authority, meta: RunMeta) -> None:
        """Replace the row."""
        if self._fenced is not None and authority is not UNLEASED:
            self._fenced.put_meta(meta, lease=authority)
        else:
            self._journal.put_meta(meta)

    def put_blob(self, authority: Authority, ref: str, blob: bytes) -> None:
        """Replace a blob."""
        if self._fenced_blobs is not None and authority is not UNLEASED:
            self._fenced_blobs.put(ref, blob, lease=authority)
        else:
            self._transcripts.put(ref, blob)

    def delete_blob(self, authority: Authority, ref: str) -> None:
        """Remove a blob."""
        if self._fenced_blobs is not None and authority is not UNLEASED:
            self._fenced_blobs.delete(ref, lease=authority)
        else:
            self._transcripts.delete(ref)

    def delete_run(self, authority: Authority, run_id: str) -> None:
        """Remove the run: blobs first, journal last, in one transaction where that works."""
        if self._whole is not None:
            lease = None if authority is UNLEASED else authority
            self._whole.delete_whole_run(run_id, lease=lease)
            return
        for ref in self._transcripts.list_refs(run_id):
            self.delete_blob(authority, ref)
        if self._fenced is not None and authority is not UNLEASED:
            self._fenced.delete(run_id, lease=authority)
        else:
            self._journal.delete(run_id)


class LeaseApi:
    """The calls that grant, renew and end ownership."""

    def __init__(self, stores: StorePair) -> None:
        journal = stores.journal
        self._store = journal if has_leases(journal) else None
        self._admin = journal if has_lease_admin(journal) else None
        self._batch = journal if has_lease_batch(journal) else None
        self._revival = journal if has_lease_revival(journal) else None

    @property
    def available(self) -> bool:
        """Whether the store grants leases."""
        return self._store is not None

    def acquire(self, run_id: str, owner: str) -> Lease:
        """Take the run. Raises `LeaseHeldError` (``held``)."""
        if self._store is None:
            message = "this store grants no leases"
            raise AssertionError(message)
        return self._store.acquire(run_id, owner)

    @property
    def seizes(self) -> bool:
        """Whether a run can be taken from its holder."""
        return self._admin is not None

    def seize(self, owner: str, over: Lease) -> Lease:
        """Take a run from exactly this lease.

        Raises `LeaseHeldError` (``superseded``) when it is not the present one any more.
        """
        if self._admin is None:
            message = "this store cannot seize"
            raise AssertionError(message)
        return self._admin.seize(over.run_id, owner, over=over)

    @property
    def revives(self) -> bool:
        """Whether a lease that has expired is taken again in one unit, under its own owner."""
        return self._revival is not None

    def revive(self, lease: Lease, owner: str) -> Lease:
        """Take the run again after an expiry: in one unit where the store can.

        ``owner`` is for the grant of a store that cannot: a string that was never used.
        """
        if self._revival is not None:
            return self._revival.revive(lease)
        return self.acquire(lease.run_id, owner)

    def renew(self, lease: Lease) -> None:
        """Extend a lease."""
        if self._store is not None:
            self._store.renew(lease)

    @property
    def renews_many(self) -> bool:
        """Whether many leases are renewed in one unit."""
        return self._batch is not None

    def renew_all(self, leases: Sequence[Lease]) -> Sequence[LeaseHeldError]:
        """Extend many leases in one unit; return the refusals."""
        return () if self._batch is None else self._batch.renew_all(leases)

    def release(self, lease: Lease) -> None:
        """End a lease."""
        if self._store is not None:
            self._store.release(lease)
