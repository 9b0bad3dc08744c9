"""Broken operators' calls over the reference store: looking at leases, seizing, reviving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gallery_over_reference import broken

from rulvar.core.checks import check_lease, check_owner, check_run_id
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core import Lease, LeaseInfo


@broken(
    "get-lease-hides-lease",
    "get_lease is None while a lease is live",
    breaks="L-admin",
)
class _HidesLease(ReferenceStore):
    def get_lease(self, run_id: str, /) -> LeaseInfo | None:
        super().get_lease(run_id)
        return None


@broken(
    "get-lease-calls-dead-live",
    "the row of an expired lease is shown as live",
    breaks="L-boundary",
)
class _CallsDeadLive(ReferenceStore):
    def _lease_info(self, run_id: str) -> LeaseInfo:
        return replace(super()._lease_info(run_id), live=True)


@broken(
    "list-leases-skips",
    "the first lease of every page but the first is left out",
    breaks="L-admin",
)
class _SkipsLeases(ReferenceStore):
    def list_leases(self, after_run_id: str | None, limit: int, /) -> Sequence[LeaseInfo]:
        found = super().list_leases(after_run_id, limit + 1)
        there = self.get_lease(after_run_id) if after_run_id is not None else None
        return found[1:] if there is not None else found[:limit]


@broken(
    "seize-keeps-epoch",
    "a seized run goes on under the epoch of its holder",
    breaks="L-seize",
)
class _SeizesUnderOldEpoch(ReferenceStore):
    def seize(self, run_id: str, owner: str, /) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            if self._live_row(run_id) is not None:
                self._epochs[run_id] -= 1
            return self._grant(run_id, owner)


@broken(
    "raise-epoch-keeps-lease",
    "raise_epoch leaves the run held by a lease row that is dead",
    breaks="L-floor",
)
class _RaisesUnderLease(ReferenceStore):
    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        with self._gate.passing():
            row = self._leases.get(run_id)
        super().raise_epoch(run_id, at_least)
        if row is not None:
            with self._gate.passing():
                self._leases[run_id] = replace(row, epoch=self._epochs[run_id])


@broken(
    "raise-epoch-lowers",
    "a lower floor than there is lowers the epoch",
    breaks="L-floor",
)
class _LowersEpoch(ReferenceStore):
    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        super().raise_epoch(run_id, at_least)
        with self._gate.passing():
            self._epochs[run_id] = at_least


@broken(
    "revive-takes-taken",
    "the holder of an expired lease gets the run back though a successor has it",
    breaks="L-revive-refused",
)
class _RevivesTaken(ReferenceStore):
    def revive(self, lease: Lease, /) -> Lease:
        with self._gate.passing():
            taken = self._verdict(lease) == "superseded"
        return self.seize(lease.run_id, lease.owner) if taken else super().revive(lease)


@broken(
    "revive-keeps-epoch",
    "revive gives the expired lease back as it was",
    breaks="L-revive",
)
class _RevivesSameEpoch(ReferenceStore):
    def revive(self, lease: Lease, /) -> Lease:
        check_lease(lease)
        with self._gate.passing():
            if self._verdict(lease) == "expired":
                self._epochs[lease.run_id] -= 1
        return super().revive(lease)


@broken(
    "raise-epoch-takes-row",
    "raise_epoch removes the catalogue row along with the lease",
    breaks="X-model",
)
class _TakesRow(ReferenceStore):
    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        super().raise_epoch(run_id, at_least)
        with self._gate.passing():
            self._tables._run(run_id).row = None
