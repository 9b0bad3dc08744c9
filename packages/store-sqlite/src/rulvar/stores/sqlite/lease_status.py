"""Why a lease was refused, read from the rows of this database (contract.md#the-fence).

The check itself stands in the condition of every fenced statement (`schema.LIVE` and
`schema.MINE`). This module is asked only after such a statement changed nothing, in the same
transaction, and so under the same lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, cast

from rulvar.core.errors import StoreCorruptError
from rulvar.core.lease_status import LeaseState, lease_status, refusal
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.errors import DefectError

if TYPE_CHECKING:
    import apsw

    from rulvar.core.records import Lease

__all__ = ["raise_defect", "read_lease_state", "refuse_if_dead", "unreadable_lease"]


def read_lease_state(connection: apsw.Connection, run_id: str) -> LeaseState:
    """Read the run's tombstone and lease row. Raises `StoreCorruptError` for odd values."""
    try:
        mark, owner, epoch, expires_at = connection.execute(schema.JUDGE, (run_id,)).fetchall()[0]
    except UnicodeDecodeError as error:
        raise unreadable_lease(run_id, "its owner is not UTF-8") from error
    for what, number in (("mark", mark), ("epoch", epoch), ("expiry", expires_at)):
        if number is not None and type(number) is not int:
            raise unreadable_lease(run_id, f"its {what} is {number!r}, not an integer")
    if owner is not None and not isinstance(owner, str):
        raise unreadable_lease(run_id, f"its owner is {owner!r}, not text")
    return LeaseState(
        run_id,
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


def refuse_if_dead(connection: apsw.Connection, run_id: str, lease: Lease, now: int) -> None:
    """Raise `LeaseHeldError` with its reason unless the lease is live."""
    state = read_lease_state(connection, run_id)
    reason = lease_status(state, lease, now)
    if reason is not None:
        raise refusal(state, reason, now, offered=lease)


def raise_defect(what: str, run_id: str) -> NoReturn:
    """Report a state that cannot be: two checks of one fact disagree inside a transaction."""
    message = f"run {run_id!r}: {what}; this is a defect of the store, please report it"
    raise DefectError(message, run_id=run_id)
