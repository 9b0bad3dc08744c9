"""The fence's verdict: why a lease was refused (design section 5).

The check itself stands in the condition of every fenced statement (`schema.LIVE` and
`schema.MINE`). This module is asked only after such a statement changed nothing, in the same
transaction, and so under the same lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from rulvar.core.errors import LeaseHeldError
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.errors import DefectError

if TYPE_CHECKING:
    import apsw

    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import Lease

__all__ = ["Standing", "refuse_foreign", "refuse_if_dead", "slip", "standing", "verdict"]


class Standing(NamedTuple):
    """What the store's own rows say of a run: its tombstone and its lease row."""

    mark: int | None
    owner: str | None
    epoch: int | None
    expires_at: int | None

    def live_at(self, now: int) -> bool:
        """Whether there is a lease, of the tombstone's epoch, that has not run out."""
        return (
            self.epoch is not None
            and self.epoch == self.mark
            and self.expires_at is not None
            and self.expires_at > now
        )


def standing(connection: apsw.Connection, run_id: str) -> Standing:
    """Read the run's tombstone and lease row."""
    row = connection.execute(schema.JUDGE, (run_id,)).fetchall()[0]
    return Standing(*cast("tuple[int | None, str | None, int | None, int | None]", row))


def verdict(at: Standing, lease: Lease, now: int) -> RefusalReason | None:
    """Return why the lease is dead, or None for a live one; the order is the contract's."""
    if at.mark is None or lease.epoch > at.mark:
        return "unknown"
    if lease.epoch < at.mark:
        return "superseded"
    if at.epoch is None or at.epoch != at.mark:
        return "released"
    if at.owner != lease.owner:
        return "unknown"
    if not at.live_at(now):
        return "expired"
    return None


def refusal(
    at: Standing, run_id: str, reason: RefusalReason, now: int, *, offered: Lease | None
) -> LeaseHeldError:
    """Return the typed refusal; it names the present holder where there is a live one."""
    live = at.live_at(now)
    return LeaseHeldError(
        run_id=run_id,
        reason=reason,
        offered=offered,
        holder=at.owner if live else None,
        epoch=at.epoch if live else None,
        expires_at=at.expires_at if live else None,
    )


def refuse_if_dead(connection: apsw.Connection, run_id: str, lease: Lease, now: int) -> None:
    """Raise `LeaseHeldError` with its reason unless the lease is live."""
    at = standing(connection, run_id)
    reason = verdict(at, lease, now)
    if reason is not None:
        raise refusal(at, run_id, reason, now, offered=lease)


def refuse_foreign(run_id: str, lease: Lease | None) -> None:
    """Raise `LeaseHeldError` when the lease names another run, live or dead: needs no SQL."""
    if lease is not None and lease.run_id != run_id:
        raise LeaseHeldError(run_id=run_id, reason="foreign-run", offered=lease)


def slip(what: str, run_id: str) -> NoReturn:
    """Report a state that cannot be: two checks of one fact disagree inside a transaction."""
    message = f"run {run_id!r}: {what}; this is a defect of the store, please report it"
    raise DefectError(message, run_id=run_id)
