"""Every mutation, each a function of one open transaction.

A function here is called by `rulvar.stores.sqlite.group_commit` between BEGIN IMMEDIATE and
COMMIT, perhaps together with other callers' functions. Three rules keep neighbours apart
without savepoints:

- whatever decides stands in the condition of the statement that changes;
- a refusal is raised only when every statement so far has changed nothing;
- a statement that *fails* (no room, a disk error) is not handled here: the whole batch is
  rolled back and its members run again one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from rulvar.core.checks import MAX_INTEGER
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError, StoreFullError
from rulvar.core.lease_status import lease_status, refusal
from rulvar.core.records import Lease
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.lease_status import raise_defect, read_lease_state, refuse_if_dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

__all__ = [
    "Transaction",
    "acquire",
    "append",
    "delete_blob",
    "delete_run",
    "put_blob",
    "put_meta",
    "raise_epoch",
    "release",
    "renew",
    "renew_all",
    "revive",
    "seize",
]


class Transaction(NamedTuple):
    """An open transaction that holds the write lock, and the time read under that lock."""

    connection: apsw.Connection
    now: int


def append(tx: Transaction, run_id: str, seq: int, text: str, lease: Lease | None) -> None:
    """Insert the record if the lease is live and its seq is above the tail."""
    if lease is None:
        tx.connection.execute(schema.APPEND, (run_id, text, seq))
    else:
        offer = (run_id, lease.owner, lease.epoch, tx.now, text, seq)
        tx.connection.execute(schema.APPEND_FENCED, offer)
    if tx.connection.changes() == 1:
        return
    if lease is not None:
        refuse_if_dead(tx.connection, run_id, lease, tx.now)
    tail = cast("int | None", tx.connection.execute(schema.TAIL, (run_id,)).get)
    if tail is None or tail < seq:
        raise_defect(f"seq {seq} was refused above the tail {tail}", run_id)
    landed = tail == seq and bool(tx.connection.execute(schema.LANDED, (run_id, text, seq)).get)
    raise JournalOrderViolation(run_id=run_id, seq=seq, tail_seq=tail, landed=landed)


def put_meta(tx: Transaction, run_id: str, text: str, lease: Lease | None) -> None:
    """Replace the row if the lease is live."""
    if lease is None:
        tx.connection.execute(schema.PUT_META, (run_id, text))
        return
    offer = (run_id, lease.owner, lease.epoch, tx.now, text)
    tx.connection.execute(schema.PUT_META_FENCED, offer)
    _landed_or_refused(tx, run_id, lease)


def put_blob(tx: Transaction, run_id: str, ref: str, blob: bytes, lease: Lease | None) -> None:
    """Replace the blob if the lease is live."""
    if lease is None:
        tx.connection.execute(schema.PUT_BLOB, (run_id, ref, blob))
        return
    offer = (run_id, lease.owner, lease.epoch, tx.now, ref, blob)
    tx.connection.execute(schema.PUT_BLOB_FENCED, offer)
    _landed_or_refused(tx, run_id, lease)


def delete_blob(tx: Transaction, run_id: str, ref: str, lease: Lease | None) -> None:
    """Remove the blob if the lease is live; one that is not there is a no-op."""
    if lease is None:
        tx.connection.execute(schema.DELETE_BLOB, (ref,))
        return
    offer = (run_id, lease.owner, lease.epoch, tx.now, ref)
    tx.connection.execute(schema.DELETE_BLOB_FENCED, offer)
    if tx.connection.changes() == 0:
        refuse_if_dead(tx.connection, run_id, lease, tx.now)


def delete_run(tx: Transaction, run_id: str, lease: Lease | None, *, blobs: bool) -> None:
    """Remove journal, row and lease, and blobs too where asked; the tombstone stays."""
    if lease is None:
        for statement in (*((schema.DELETE_BLOBS,) if blobs else ()), *schema.DELETE_RUN):
            tx.connection.execute(statement, (run_id,))
        return
    offer = (run_id, lease.owner, lease.epoch, tx.now)
    fenced = (*((schema.DELETE_BLOBS_FENCED,) if blobs else ()), *schema.DELETE_RUN_FENCED)
    for statement in fenced:
        tx.connection.execute(statement, offer)
    _landed_or_refused(tx, run_id, lease)


def renew(tx: Transaction, lease: Lease, ttl_ms: int) -> None:
    """Move a live lease's expiry."""
    offer = (lease.run_id, lease.owner, lease.epoch, tx.now, tx.now + ttl_ms)
    tx.connection.execute(schema.RENEW, offer)
    _landed_or_refused(tx, lease.run_id, lease)


def renew_all(tx: Transaction, leases: Sequence[Lease], ttl_ms: int) -> list[LeaseHeldError]:
    """Move the expiry of every live lease; return why each of the others was refused."""
    refusals: list[LeaseHeldError] = []
    for lease in leases:
        try:
            renew(tx, lease, ttl_ms)
        except LeaseHeldError as refused:
            refusals.append(refused.with_traceback(None))
    return refusals


def release(tx: Transaction, lease: Lease) -> None:
    """End a live lease."""
    tx.connection.execute(schema.RELEASE, (lease.run_id, lease.owner, lease.epoch, tx.now))
    _landed_or_refused(tx, lease.run_id, lease)


def acquire(tx: Transaction, run_id: str, owner: str, ttl_ms: int) -> Lease:
    """Grant the next epoch unless the run is held."""
    epoch = _next_epoch(tx, run_id)
    tx.connection.execute(schema.ACQUIRE, (run_id, owner, epoch, tx.now))
    if tx.connection.changes() != 1:
        raise refusal(read_lease_state(tx.connection, run_id), "held", tx.now)
    return _grant(tx, run_id, owner, epoch, ttl_ms)


def seize(tx: Transaction, run_id: str, owner: str, ttl_ms: int, over: Lease | None) -> Lease:
    """Grant the next epoch, also while the run is held; with ``over``, only over that lease."""
    epoch = _next_epoch(tx, run_id)
    if over is None:
        tx.connection.execute(schema.SEIZE, (run_id, owner, epoch))
    else:
        seized = (run_id, owner, epoch, tx.now, over.owner, over.epoch)
        tx.connection.execute(schema.SEIZE_OVER, seized)
        if tx.connection.changes() != 1:
            at = read_lease_state(tx.connection, run_id)
            raise refusal(at, "superseded", tx.now, offered=over)
    return _grant(tx, run_id, owner, epoch, ttl_ms)


def revive(tx: Transaction, lease: Lease, ttl_ms: int) -> Lease:
    """Grant the next epoch to the holder of an expired lease whose run was not taken since."""
    run_id = lease.run_id
    epoch = _next_epoch(tx, run_id)
    tx.connection.execute(schema.REVIVE, (run_id, lease.owner, lease.epoch, tx.now, epoch))
    if tx.connection.changes() == 1:
        return _grant(tx, run_id, lease.owner, epoch, ttl_ms)
    at = read_lease_state(tx.connection, run_id)
    reason = lease_status(at, lease, tx.now)
    if reason == "expired":
        raise_defect("an expired lease that was not taken was not revived", run_id)
    raise refusal(at, reason or "held", tx.now, offered=lease)


def raise_epoch(tx: Transaction, run_id: str, at_least: int) -> None:
    """Lift the tombstone and end the run's lease."""
    tx.connection.execute(schema.RAISE_EPOCH, (run_id, None, at_least))
    tx.connection.execute(schema.END_LEASE, (run_id,))


def _next_epoch(tx: Transaction, run_id: str) -> int:
    at = read_lease_state(tx.connection, run_id)
    # The highest number of either table: a row above its tombstone, which only damage or a
    # careless copy can make, must not be granted a second time.
    epoch = 1 + max(at.tombstone or 0, at.epoch or 0)
    if epoch > MAX_INTEGER:
        message = f"run {run_id!r} has used up its epochs: go on under another run id"
        raise StoreFullError(message, run_id=run_id)
    return epoch


def _grant(tx: Transaction, run_id: str, owner: str, epoch: int, ttl_ms: int) -> Lease:
    tx.connection.execute(schema.GRANT, (run_id, owner, epoch, tx.now + ttl_ms))
    return Lease(run_id=run_id, owner=owner, epoch=epoch)


def _landed_or_refused(tx: Transaction, run_id: str, lease: Lease) -> None:
    if tx.connection.changes() == 1:
        return
    refuse_if_dead(tx.connection, run_id, lease, tx.now)
    raise_defect("a live lease was refused", run_id)
