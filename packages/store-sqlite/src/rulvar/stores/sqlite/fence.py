"""The fence's verdict: why a lease was refused (contract.md#order-of-checks).

The check itself stands in the condition of every fenced statement (`schema.LIVE` and
`schema.MINE`). This module is asked only after such a statement changed nothing, in the same
transaction, and so under the same lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from rulvar.core.errors import LeaseHeldError, StoreCorruptError
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.errors import DefectError

if TYPE_CHECKING:
    import apsw

    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import Lease

__all__ = [
    "Standing",
    "refuse_foreign",
    "refuse_if_dead",
    "slip",
    "standing",
    "unreadable_lease",
    "verdict",
]


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
    """Read the run's tombstone and lease row. Raises `StoreCorruptError` for odd values."""
    try:
        mark, owner, epoch, expires_at = connection.execute(schema.JUDGE, (run_id,)).fetchall()[0]
    except UnicodeDecodeError as error:
        raise unreadable_lease(run_id, "its owner is no UTF-8") from error
    for what, number in (("mark", mark), ("epoch", epoch), ("expiry", expires_at)):
        if number is not None and type(number) is not int:
            raise unreadable_lease(run_id, f"its {what} is {number!r}, not an integer")
    if owner is not None and not isinstance(owner, str):
        raise unreadable_lease(run_id, f"its owner is {owner!r}, not text")
    return Standing(
        cast("int | None", mark),
        owner,
        cast("int | None", epoch),
        cast("int | None", expires_at),
    )


def unreadable_lease(run_id: str, why: str) -> StoreCorruptError:
    """Return the error for lease rows that another writer has left in no form of ours."""
    return StoreCorruptError(
        f"run {run_id!r}: its lease cannot be judged: {why}; nothing was changed: correct the "
        "run's rows in the tables 'leases' and 'epochs'",
        run_id=run_id,
    )


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
