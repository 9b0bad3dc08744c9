"""Broken leases over the reference store: granting, renewing, ending, numbering, telling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken

from rulvar.core.checks import check_lease, check_owner, check_run_id
from rulvar.core.errors import LeaseHeldError
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.errors import RefusalReason
    from rulvar.core.spi import JournalRecord, Lease, RunMeta


# --- who gets the run -----------------------------------------------------------------------


@broken("acquire-reentrant", "the holder is granted its run again", breaks="L-no-reentry")
class _LetsOwnerIn(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            row = self._live_row(run_id)
            if row is not None and row.owner == owner:
                return self._grant(run_id, owner)
        return super().acquire(run_id, owner)


@broken(
    "acquire-takes-held-runs",
    "a run is granted though somebody else holds it",
    breaks="L-exclusive",
)
class _TakesHeldRuns(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            row = self._live_row(run_id)
        return (
            super().acquire(run_id, owner)
            if row and row.owner == owner
            else self.seize(run_id, owner)
        )


@broken(
    "acquire-refuses-expired",
    "a run stays held by a lease that has run out",
    breaks="L-expiry",
)
class _RefusesExpired(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        with self._gate.passing():
            if run_id in self._leases:
                raise LeaseHeldError(run_id=run_id, reason="held")
            return self._grant(run_id, owner)


@broken(
    "acquire-one-run-each",
    "who acquires a second run loses the first",
    breaks="L-runs-apart",
)
class _OneRunEach(ReferenceStore):
    def _grant(self, run_id: str, owner: str) -> Lease:
        for other in [r for r, row in self._leases.items() if row.owner == owner]:
            del self._leases[other]
        return super()._grant(run_id, owner)


@broken(
    "acquire-names-wrong-holder",
    "the refusal names who asked as the one that holds the run",
    breaks="L-held-error",
)
class _NamesWrongHolder(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        try:
            return super().acquire(run_id, owner)
        except LeaseHeldError as error:
            raise LeaseHeldError(run_id=run_id, reason="held", holder=owner) from error


@broken(
    "acquire-returns-nothing",
    "a lease is granted and not returned",
    breaks="L-grant",
)
class _ReturnsNothing(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        super().acquire(run_id, owner)
        return None  # type: ignore[return-value] # this is the defect


# --- epochs ---------------------------------------------------------------------------------


@broken("delete-loses-tombstone", "a deleted run begins at epoch 1 again", breaks="L-epoch")
class _LosesTombstone(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        with self._gate.passing():
            self._epochs.pop(run_id, None)


@broken(
    "release-loses-epoch",
    "a released epoch is granted once more",
    breaks="L-epoch",
)
class _LosesEpoch(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        super().release(lease)
        with self._gate.passing():
            self._epochs[lease.run_id] -= 1


@broken(
    "acquire-keeps-expired-epoch",
    "an expired lease is passed on under its old epoch",
    breaks="L-epoch-expiry",
)
class _KeepsExpiredEpoch(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            row = self._leases.get(run_id)
            if row is not None and row.expires_at <= self._clock.now_ms():
                self._epochs[run_id] -= 1
        return super().acquire(run_id, owner)


# --- the end of a lease ---------------------------------------------------------------------


@broken(
    "release-by-run",
    "a release ends whatever lease the run has",
    breaks="F-release-superseded",
)
class _ReleasesByRun(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._leases.pop(lease.run_id, None)


@broken(
    "release-by-owner",
    "a release ends the lease of that owner, whatever its epoch",
    breaks="F-release-superseded-owner",
)
class _ReleasesByOwner(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            row = self._leases.get(lease.run_id)
            if row is None or row.owner != lease.owner:
                self._fence(lease.run_id, lease)
            self._leases.pop(lease.run_id, None)


@broken(
    "release-forgives",
    "the release of a dead lease returns as if it had ended something",
    breaks="F-release-released",
)
class _ForgivesRelease(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        try:
            super().release(lease)
        except LeaseHeldError as error:
            if error.reason != "released":
                raise


@broken("release-does-nothing", "a released run stays held until it expires", breaks="L-release")
class _ReleasesNothing(ReferenceStore):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)


@broken(
    "put-meta-ends-lease-at-settle",
    "a row with a terminal status ends the lease that wrote it",
    breaks="L-lives-on",
)
class _EndsLeaseAtSettle(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        super().put_meta(meta, lease=lease)
        if lease is not None and meta.status == "exhausted":
            self.release(lease)


# --- time -----------------------------------------------------------------------------------


@broken("renew-does-nothing", "a renewal is accepted and extends nothing", breaks="L-renew")
class _RenewsNothing(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)


@broken(
    "renew-by-run",
    "a renewal extends whatever lease the run has",
    breaks="F-renew-superseded",
)
class _RenewsByRun(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            row = self._leases.get(lease.run_id)
            if row is None:
                self._fence(lease.run_id, lease)
            else:
                until = self._clock.now_ms() + self.lease_ttl_ms
                self._leases[lease.run_id] = replace(row, expires_at=until)


@broken(
    "renew-revives-expired",
    "a lease that has run out is renewed as long as nobody took the run",
    breaks="F-renew-expired",
)
class _RenewsExpired(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            if self._verdict(lease) != "expired":
                self._fence(lease.run_id, lease)
            until = self._clock.now_ms() + self.lease_ttl_ms
            self._leases[lease.run_id] = replace(self._leases[lease.run_id], expires_at=until)


@broken(
    "renew-adds-up",
    "a renewal adds the ttl to the expiry instead of counting from now",
    breaks="L-renew-exact",
)
class _AddsUp(ReferenceStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        with self._gate.passing():
            self._fence(lease.run_id, lease)
            row = self._leases[lease.run_id]
            self._leases[lease.run_id] = replace(row, expires_at=row.expires_at + self.lease_ttl_ms)


@broken(
    "append-renews",
    "an append extends its lease",
    breaks="L-only-renewal",
)
class _AppendRenews(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        super().append(run_id, record, lease=lease)
        if lease is not None:
            self.renew(lease)


@broken(
    "fence-live-at-expiry",
    "a lease still writes in the millisecond of its expiry: < where <= belongs",
    breaks="L-boundary",
)
class _LiveAtExpiry(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        reason = super()._verdict(lease)
        at_expiry = row is not None and row.expires_at == self._clock.now_ms()
        return None if reason == "expired" and at_expiry else reason


@broken(
    "acquire-late-by-one",
    "a run is not free yet in the millisecond of its lease's expiry",
    breaks="L-boundary",
)
class _FreeTooLate(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            row = self._leases.get(run_id)
            if row is not None and row.expires_at == self._clock.now_ms():
                raise LeaseHeldError(run_id=run_id, reason="held", holder=row.owner)
        return super().acquire(run_id, owner)


@broken(
    "fence-dead-before-expiry",
    "a lease dies a millisecond too early",
    breaks="L-boundary",
)
class _DeadTooEarly(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        reason = super()._verdict(lease)
        last = row is not None and row.expires_at == self._clock.now_ms() + 1
        return "expired" if reason is None and last else reason


@broken(
    "lease-ttl-in-seconds",
    "leases live a tenth longer than lease_ttl_ms says",
    breaks="C-ttl",
)
class _LivesLonger(ReferenceStore):
    def _grant(self, run_id: str, owner: str) -> Lease:
        lease = super()._grant(run_id, owner)
        row = self._leases[run_id]
        self._leases[run_id] = replace(row, expires_at=row.expires_at + self.lease_ttl_ms // 10)
        return lease


# --- a lease as a value ---------------------------------------------------------------------


@broken(
    "fence-compares-objects",
    "only the very object that acquire returned is the live lease",
    breaks="L-value",
)
class _ComparesObjects(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._granted: dict[str, Lease] = {}

    def _grant(self, run_id: str, owner: str) -> Lease:
        lease = self._granted[run_id] = super()._grant(run_id, owner)
        return lease

    def _fence(self, run_id: str, lease: Lease | None) -> None:
        super()._fence(run_id, lease)
        if lease is not None and lease is not self._granted[run_id]:
            raise LeaseHeldError(run_id=run_id, reason="unknown", offered=lease)


@broken(
    "owner-folds-case",
    "owners that differ by case are one",
    breaks="I-owners",
)
class _FoldsOwners(ReferenceStore):
    def _verdict(self, lease: Lease) -> RefusalReason | None:
        row = self._leases.get(lease.run_id)
        if row is not None and row.owner.casefold() == lease.owner.casefold():
            lease = replace(lease, owner=row.owner)
        return super()._verdict(lease)


@broken(
    "lease-run-folds-case",
    "runs that differ by case share one lease",
    breaks="I-leases-apart",
)
class _FoldsLeases(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            for other in self._leases:
                if other != run_id and other.casefold() == run_id.casefold():
                    raise LeaseHeldError(run_id=run_id, reason="held")
        return super().acquire(run_id, owner)


@broken(
    "owner-unchecked",
    "an owner of any length and type is taken",
    breaks="I-leases-refused",
)
class _TakesAnyOwner(ReferenceStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        with self._gate.passing():
            if self._live_row(run_id) is None:
                return self._grant(run_id, owner)
        return super().acquire(run_id, owner)
