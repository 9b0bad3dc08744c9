"""Which leases are dead, and why: the fence's decision, for every store (contract.md#the-fence).

A store reads what it has of a run (`LeaseState`) inside the transaction that would change the
run, asks `lease_status` for the reason to refuse, and raises `refusal` with it. Nothing here
reads or writes: the same rows, the same lease and the same moment give the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rulvar.core.errors import LeaseHeldError

if TYPE_CHECKING:
    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import Lease

__all__ = ["LeaseState", "lease_status", "refusal", "refuse_foreign"]


class LeaseState(NamedTuple):
    """What a store's own rows say of a run.

    ``tombstone`` is the highest epoch that was ever granted for the run id, None when there was
    no grant. ``owner``, ``epoch`` and ``expires_at`` (Unix milliseconds) are those of the lease
    row, None when there is none.
    """

    run_id: str
    tombstone: int | None = None
    owner: str | None = None
    epoch: int | None = None
    expires_at: int | None = None

    def live_at(self, now_ms: int) -> bool:
        """Whether the run is held: a row under the highest epoch that has not expired."""
        return (
            self.epoch is not None
            and self.epoch == self.tombstone
            and self.expires_at is not None
            and self.expires_at > now_ms
        )


def lease_status(state: LeaseState, lease: Lease, now_ms: int) -> RefusalReason | None:
    """Return why the lease is dead, or None for the live lease of the run.

    ``now_ms`` is the store's clock, read after the write lock is held. The first line that is
    true decides; the order is part of the contract.
    """
    highest = -1 if state.tombstone is None else state.tombstone
    reasons: tuple[tuple[RefusalReason, bool], ...] = (
        ("foreign-run", lease.run_id != state.run_id),
        ("unknown", lease.epoch > highest),
        ("superseded", lease.epoch < highest),
        ("released", state.epoch != highest),
        ("unknown", lease.owner != state.owner),
        ("expired", not state.live_at(now_ms)),
    )
    return next((reason for reason, applies in reasons if applies), None)


def refusal(
    state: LeaseState, reason: RefusalReason, now_ms: int, *, offered: Lease | None = None
) -> LeaseHeldError:
    """Return the error for a refused call: it names the present holder where there is one.

    ``offered`` is the lease that was refused; `acquire`, which refuses as ``held``, has none.
    """
    live = reason != "foreign-run" and state.live_at(now_ms)
    return LeaseHeldError(
        run_id=state.run_id,
        reason=reason,
        offered=offered,
        holder=state.owner if live else None,
        epoch=state.epoch if live else None,
        expires_at=state.expires_at if live else None,
    )


def refuse_foreign(run_id: str, lease: Lease | None) -> None:
    """Raise `LeaseHeldError` when a lease names another run, live or dead: needs no I/O."""
    if lease is not None and lease.run_id != run_id:
        raise LeaseHeldError(run_id=run_id, reason="foreign-run", offered=lease)
