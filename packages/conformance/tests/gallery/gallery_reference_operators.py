"""Broken operators' calls over the reference store: looking at leases, seizing, reviving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gallery_over_reference import broken

from rulvar.core.checks import check_lease, check_owner, check_run_id
from rulvar.core.errors import LeaseHeldError
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import Lease, LeaseInfo


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
    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            if over is not None:
                self._check_present(run_id, over)
            if self._live_row(run_id) is not None:
                self._epochs[run_id] -= 1
            return self._grant(run_id, owner)


@broken(
    "seize-ignores-over",
    "seize takes the run from whoever has it by now",
    breaks="L-seize-over",
)
class _SeizesFromAnybody(ReferenceStore):
    def _check_present(self, run_id: str, over: Lease) -> None:
        """Look at nothing."""


@broken(
    "seize-over-dead-lease",
    "seize takes the run over a lease that was given back",
    breaks="L-seize-over",
)
class _SeizesOverReleased(ReferenceStore):
    def _check_present(self, run_id: str, over: Lease) -> None:
        if self._verdict(over) != "released":
            super()._check_present(run_id, over)


@broken(
    "seize-over-any-owner",
    "seize asks whether the epoch is the present one, and not whose",
    breaks="L-seize-over",
)
class _SeizesOverForged(ReferenceStore):
    def _check_present(self, run_id: str, over: Lease) -> None:
        row = self._leases.get(run_id)
        super()._check_present(run_id, over if row is None else replace(over, owner=row.owner))


@broken(
    "seize-over-live-alone",
    "seize refuses the run of a lease that has expired and that nobody has taken",
    breaks="L-seize-over",
)
class _SeizesLiveAlone(ReferenceStore):
    def _check_present(self, run_id: str, over: Lease) -> None:
        super()._check_present(run_id, over)
        if self._live_row(run_id) is None:
            raise LeaseHeldError(run_id=run_id, reason="superseded", offered=over)


@broken(
    "renew-all-stops",
    "a renewal of many stops at the first dead lease",
    breaks="L-batch",
)
class _StopsAtTheFirst(ReferenceStore):
    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        for lease in leases:
            check_lease(lease)
        for number, lease in enumerate(leases, 1):
            if super().renew_all([lease]):
                refused = [super(_StopsAtTheFirst, self).renew_all([each]) for each in leases]
                return [refusal for found in refused[:number] for refusal in found]
        return []


@broken(
    "renew-all-raises",
    "a renewal of many raises the first refusal",
    breaks="L-batch",
)
class _RaisesTheFirst(ReferenceStore):
    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        for refusal in super().renew_all(leases):
            raise refusal
        return []


@broken(
    "renew-all-renews-nothing",
    "a renewal of many judges the leases and extends none",
    breaks="L-batch",
)
class _RenewsNoneOfMany(ReferenceStore):
    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        with self._gate.passing():
            before = dict(self._leases)
        try:
            return super().renew_all(leases)
        finally:
            with self._gate.passing():
                self._leases |= before


@broken(
    "renew-all-hides-refusals",
    "a renewal of many leaves the dead leases unmentioned",
    breaks="L-batch",
)
class _HidesRefusals(ReferenceStore):
    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        super().renew_all(leases)
        return []


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
    "what ends a lease, by release or by raise_epoch, removes the catalogue row with it",
    breaks="X-model",
)
class _TakesRow(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        super().release(lease)
        with self._gate.passing():
            self._tables._run(lease.run_id).row = None

    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        super().raise_epoch(run_id, at_least)
        with self._gate.passing():
            self._tables._run(run_id).row = None
