"""Every mutation, each a function of one open transaction.

A function here is called by `rulvar.stores.sqlite.commits` between BEGIN IMMEDIATE and
COMMIT, perhaps together with other callers' functions. Three rules keep neighbours apart
without savepoints:

- whatever decides stands in the condition of the statement that changes;
- a refusal is raised only when every statement so far has changed nothing;
- a statement that *fails* (no room, a disk error) is not handled here: the whole batch is
  rolled back and its members run again one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rulvar.core.checks import MAX_INTEGER
from rulvar.core.errors import JournalOrderViolation, StoreError
from rulvar.core.records import Lease
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.fence import refusal, refuse_if_dead, slip, standing, verdict

if TYPE_CHECKING:
    import apsw

__all__ = [
    "acquire",
    "append",
    "delete_blob",
    "delete_run",
    "put_blob",
    "put_meta",
    "raise_epoch",
    "release",
    "renew",
    "revive",
    "seize",
]


def append(
    connection: apsw.Connection, now: int, run_id: str, seq: int, text: str, lease: Lease | None
) -> None:
    """Insert the record if the lease is live and its seq is above the tail."""
    if lease is None:
        connection.execute(schema.APPEND, (run_id, text, seq))
    else:
        offer = (run_id, lease.owner, lease.epoch, now, text, seq)
        connection.execute(schema.APPEND_FENCED, offer)
    if connection.changes() == 1:
        return
    if lease is not None:
        refuse_if_dead(connection, run_id, lease, now)
    tail = cast("int | None", connection.execute(schema.TAIL, (run_id,)).get)
    if tail is None or tail < seq:
        slip(f"seq {seq} was refused above the tail {tail}", run_id)
    raise JournalOrderViolation(run_id=run_id, seq=seq, tail_seq=tail)


def put_meta(
    connection: apsw.Connection, now: int, run_id: str, text: str, lease: Lease | None
) -> None:
    """Replace the row if the lease is live."""
    if lease is None:
        connection.execute(schema.PUT_META, (run_id, text))
        return
    offer = (run_id, lease.owner, lease.epoch, now, text)
    connection.execute(schema.PUT_META_FENCED, offer)
    _landed_or_refused(connection, now, run_id, lease)


def put_blob(
    connection: apsw.Connection, now: int, run_id: str, ref: str, blob: bytes, lease: Lease | None
) -> None:
    """Replace the blob if the lease is live."""
    if lease is None:
        connection.execute(schema.PUT_BLOB, (run_id, ref, blob))
        return
    offer = (run_id, lease.owner, lease.epoch, now, ref, blob)
    connection.execute(schema.PUT_BLOB_FENCED, offer)
    _landed_or_refused(connection, now, run_id, lease)


def delete_blob(
    connection: apsw.Connection, now: int, run_id: str, ref: str, lease: Lease | None
) -> None:
    """Remove the blob if the lease is live; one that is not there is a no-op."""
    if lease is None:
        connection.execute(schema.DELETE_BLOB, (ref,))
        return
    offer = (run_id, lease.owner, lease.epoch, now, ref)
    connection.execute(schema.DELETE_BLOB_FENCED, offer)
    if connection.changes() == 0:
        refuse_if_dead(connection, run_id, lease, now)


def delete_run(
    connection: apsw.Connection, now: int, run_id: str, lease: Lease | None, *, blobs: bool
) -> None:
    """Remove journal, row and lease, and blobs too where asked; the tombstone stays."""
    if lease is None:
        for statement in (*((schema.DELETE_BLOBS,) if blobs else ()), *schema.DELETE_RUN):
            connection.execute(statement, (run_id,))
        return
    offer = (run_id, lease.owner, lease.epoch, now)
    fenced = (*((schema.DELETE_BLOBS_FENCED,) if blobs else ()), *schema.DELETE_RUN_FENCED)
    for statement in fenced:
        connection.execute(statement, offer)
    _landed_or_refused(connection, now, run_id, lease)


def renew(connection: apsw.Connection, now: int, lease: Lease, ttl_ms: int) -> None:
    """Move a live lease's expiry."""
    offer = (lease.run_id, lease.owner, lease.epoch, now, now + ttl_ms)
    connection.execute(schema.RENEW, offer)
    _landed_or_refused(connection, now, lease.run_id, lease)


def release(connection: apsw.Connection, now: int, lease: Lease) -> None:
    """End a live lease."""
    connection.execute(schema.RELEASE, (lease.run_id, lease.owner, lease.epoch, now))
    _landed_or_refused(connection, now, lease.run_id, lease)


def acquire(connection: apsw.Connection, now: int, run_id: str, owner: str, ttl_ms: int) -> Lease:
    """Grant the next epoch unless somebody has the run."""
    epoch = _next_epoch(connection, run_id)
    connection.execute(schema.ACQUIRE, (run_id, owner, epoch, now))
    if connection.changes() != 1:
        raise refusal(standing(connection, run_id), run_id, "held", now, offered=None)
    return _grant(connection, now, run_id, owner, epoch, ttl_ms)


def seize(connection: apsw.Connection, now: int, run_id: str, owner: str, ttl_ms: int) -> Lease:
    """Grant the next epoch, whoever has the run."""
    epoch = _next_epoch(connection, run_id)
    connection.execute(schema.SEIZE, (run_id, owner, epoch))
    return _grant(connection, now, run_id, owner, epoch, ttl_ms)


def revive(connection: apsw.Connection, now: int, lease: Lease, ttl_ms: int) -> Lease:
    """Grant the next epoch to the holder of an expired lease that nobody has taken."""
    run_id = lease.run_id
    epoch = _next_epoch(connection, run_id)
    connection.execute(schema.REVIVE, (run_id, lease.owner, lease.epoch, now, epoch))
    if connection.changes() == 1:
        return _grant(connection, now, run_id, lease.owner, epoch, ttl_ms)
    at = standing(connection, run_id)
    reason = verdict(at, lease, now)
    if reason == "expired":
        slip("an expired lease that nobody has taken was not revived", run_id)
    raise refusal(at, run_id, reason or "held", now, offered=lease)


def raise_epoch(connection: apsw.Connection, run_id: str, at_least: int) -> None:
    """Lift the tombstone and end the run's lease."""
    connection.execute(schema.RAISE_EPOCH, (run_id, None, at_least))
    connection.execute(schema.END_LEASE, (run_id,))


def _next_epoch(connection: apsw.Connection, run_id: str) -> int:
    epoch = cast("int", connection.execute(schema.NEXT_EPOCH, (run_id,)).get)
    if epoch > MAX_INTEGER:
        message = f"run {run_id!r} has used up its epochs (2^53-1): start the work under another id"
        raise StoreError(message, run_id=run_id)
    return epoch


def _grant(
    connection: apsw.Connection, now: int, run_id: str, owner: str, epoch: int, ttl_ms: int
) -> Lease:
    connection.execute(schema.GRANT, (run_id, owner, epoch, now + ttl_ms))
    return Lease(run_id=run_id, owner=owner, epoch=epoch)


def _landed_or_refused(connection: apsw.Connection, now: int, run_id: str, lease: Lease) -> None:
    if connection.changes() == 1:
        return
    refuse_if_dead(connection, run_id, lease, now)
    slip("a live lease was refused", run_id)
