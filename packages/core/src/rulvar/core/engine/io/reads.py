"""The store calls that change nothing: what any module of the engine may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.capabilities import (
    fencing_domain_of,
    has_journal_tail,
    has_lease_admin,
    has_meta_lookup,
)
from rulvar.core.errors import LeaseHeldError
from rulvar.core.process_identity import is_provably_gone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import JournalRecord, Lease, LeaseInfo, RunFilter, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["Reads", "holds"]

_PAGE = 500


class Reads:
    """A pair of stores, read only."""

    def __init__(self, stores: StorePair) -> None:
        self._journal = stores.journal
        self._transcripts = stores.transcripts

    def shares_stores(self, other: Reads) -> bool:
        """Whether a run id means the same run over ``other``."""
        mine, others = fencing_domain_of(self._journal), fencing_domain_of(other._journal)
        return self._journal is other._journal or (mine is not None and mine == others)

    def load(self, run_id: str) -> Sequence[JournalRecord]:
        """Return the whole journal."""
        return self._journal.load(run_id)

    def meta(self, run_id: str) -> RunMeta | None:
        """Return the run's row, by a point look-up where the store has one."""
        if has_meta_lookup(self._journal):
            return self._journal.get_meta(run_id)
        for meta in self._journal.list_runs():
            if meta.run_id == run_id:
                return meta
        return None

    def list_runs(self, run_filter: RunFilter) -> Sequence[RunMeta]:
        """Return a page of rows."""
        return self._journal.list_runs(run_filter)

    def grown(self, run_id: str, after_seq: int) -> bool:
        """Whether the journal has a record after a known seq, by its tail where that works."""
        if has_journal_tail(self._journal):
            return bool(self._journal.load_after(run_id, after_seq, 1))
        records = self._journal.load(run_id)
        return bool(records) and records[-1].seq > after_seq

    def refusal_of(self, lease: Lease) -> LeaseHeldError | None:
        """Return how the fence would refuse a lease now, if it would and the store can tell."""
        if not has_lease_admin(self._journal):
            return None
        info = self._journal.get_lease(lease.run_id)
        reason: RefusalReason
        if info is None:
            reason = "released"
        elif (info.owner, info.epoch) != (lease.owner, lease.epoch):
            reason = "superseded"
        elif not info.live:
            reason = "expired"
        else:
            return None
        return LeaseHeldError(
            run_id=lease.run_id,
            reason=reason,
            offered=lease,
            holder=None if info is None else info.owner,
            epoch=None if info is None else info.epoch,
        )

    def is_live(self, run_id: str) -> bool:
        """Whether is being executed the run now: by its lease, or by its row alone.

        A holder whose process is provably gone does not.
        """
        if has_lease_admin(self._journal):
            lease = self._journal.get_lease(run_id)
            return lease is not None and holds(lease)
        meta = self.meta(run_id)
        return meta is not None and meta.status == "running"

    def holder(self, run_id: str) -> LeaseInfo | None:
        """Return who holds the run now; None too where the store does not tell."""
        if not has_lease_admin(self._journal):
            return None
        lease = self._journal.get_lease(run_id)
        return lease if lease is not None and holds(lease) else None

    def lease_rows(self) -> dict[str, LeaseInfo]:
        """Return every lease row by its run, live or not; none where the store does not tell."""
        if not has_lease_admin(self._journal):
            return {}
        found: dict[str, LeaseInfo] = {}
        after: str | None = None
        while page := self._journal.list_leases(after, _PAGE):
            found.update((info.run_id, info) for info in page)
            after = page[-1].run_id
        return found

    def live_leases(self) -> frozenset[str]:
        """Return the runs that are held now; none where the store does not tell.

        A holder whose process is provably gone holds nothing.
        """
        return frozenset(run_id for run_id, info in self.lease_rows().items() if holds(info))

    def refs(self, run_id: str) -> Sequence[str]:
        """Return the run's blob refs."""
        return self._transcripts.list_refs(run_id)

    def blob(self, ref: str) -> bytes | None:
        """Return a blob."""
        return self._transcripts.get(ref)


def holds(lease: LeaseInfo) -> bool:
    """Whether the lease is live, and its holder not provably gone."""
    return lease.live and not is_provably_gone(lease.owner)
