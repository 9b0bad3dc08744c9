"""A small fenced store over the standard library's sqlite3: one lock, one connection.

Check and write share one immediate transaction, so nothing comes between them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rulvar.core import (
    JournalOrderViolation,
    JournalRecord,
    Lease,
    LeaseHeldError,
    StoreBusyError,
    StoreClosedError,
    StoreForkedError,
    check_blob,
    check_filter,
    check_lease,
    check_meta,
    check_owner,
    check_record,
    check_ref,
    check_run_id,
    matches,
    run_of_ref,
)
from rulvar.core.wire import decode_meta

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rulvar.core import RefusalReason, RunFilter, RunMeta

_SCHEMA = """
CREATE TABLE IF NOT EXISTS token (run TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lease (run TEXT PRIMARY KEY, owner TEXT, epoch INTEGER, ends INTEGER);
CREATE TABLE IF NOT EXISTS record (run TEXT, seq INTEGER, payload BLOB, PRIMARY KEY (run, seq));
CREATE TABLE IF NOT EXISTS row (run TEXT PRIMARY KEY, meta TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blob (ref TEXT PRIMARY KEY, run TEXT NOT NULL, content BLOB NOT NULL);
"""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class AcmeStore:
    """Journals, rows and leases in one file."""

    fenced_writes: Literal[True] = True

    def __init__(self, path: str, *, lease_ttl_ms: int) -> None:
        self.lease_ttl_ms = lease_ttl_ms
        self.fencing_domain = f"acme:{path}:{id(self) if path == ':memory:' else ''}"
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._connection = sqlite3.connect(
            path, timeout=5, isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(_SCHEMA)

    def transcripts(self) -> AcmeTranscripts:
        """Return the blob store of the same file."""
        return AcmeTranscripts(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for one unit of work: all of it lands, or nothing."""
        self._refuse_child()
        with self._lock:
            if self._closed:
                message = "the store is closed: open it again"
                raise StoreClosedError(message)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                message = f"the file stayed locked: {error}: try again"
                raise StoreBusyError(message, waited_ms=5000) from error
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            message = "the store was opened by the parent process: open it anew in this one"
            raise StoreForkedError(message)

    def fence(self, run_id: str, lease: Lease | None) -> None:
        """Refuse a lease that is not the live one of the run; called in a transaction."""
        if lease is None:
            return
        if lease.run_id != run_id:
            raise LeaseHeldError(run_id=run_id, reason="foreign-run", offered=lease)
        reason = self._why_dead(lease)
        if reason is not None:
            raise self._refusal(run_id, reason, lease)

    def _why_dead(self, lease: Lease) -> RefusalReason | None:
        token = self._one("SELECT epoch FROM token WHERE run = ?", lease.run_id)
        if token is None or lease.epoch > token[0]:
            return "unknown"
        if lease.epoch < token[0]:
            return "superseded"
        row = self._one("SELECT owner, epoch, ends FROM lease WHERE run = ?", lease.run_id)
        if row is None or row[1] != token[0]:
            return "released"
        if row[0] != lease.owner:
            return "unknown"
        return "expired" if row[2] <= _now_ms() else None

    def _refusal(self, run_id: str, reason: RefusalReason, lease: Lease | None) -> LeaseHeldError:
        row = self._one("SELECT owner, epoch, ends FROM lease WHERE run = ?", run_id)
        if row is None or row[2] <= _now_ms():
            row = (None, None, None)
        owner, epoch, ends = row
        return LeaseHeldError(
            run_id=run_id,
            reason=reason,
            offered=lease,
            holder=owner,
            epoch=epoch,
            expires_at=ends,
        )

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
        return row

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        """Grant the run under its next epoch."""
        check_run_id(run_id)
        check_owner(owner)
        with self.transaction() as connection:
            live = "SELECT 1 FROM lease WHERE run = ? AND ends > ?"
            if self._one(live, run_id, _now_ms()) is not None:
                raise self._refusal(run_id, "held", None)
            (epoch,) = connection.execute(
                "INSERT INTO token VALUES (?, 1) "
                "ON CONFLICT (run) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                (run_id,),
            ).fetchone()
            ends = _now_ms() + self.lease_ttl_ms
            row = (run_id, owner, epoch, ends)
            connection.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?)", row)
        return Lease(run_id=run_id, owner=owner, epoch=epoch)

    def renew(self, lease: Lease, /) -> None:
        """Move a live lease's end."""
        check_lease(lease)
        with self.transaction() as connection:
            self.fence(lease.run_id, lease)
            ends = _now_ms() + self.lease_ttl_ms
            connection.execute("UPDATE lease SET ends = ? WHERE run = ?", (ends, lease.run_id))

    def release(self, lease: Lease, /) -> None:
        """End a live lease."""
        check_lease(lease)
        with self.transaction() as connection:
            self.fence(lease.run_id, lease)
            connection.execute("DELETE FROM lease WHERE run = ?", (lease.run_id,))

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        """Add a record behind the stored tail."""
        check_run_id(run_id)
        check_record(record)
        self.check_offered(lease)
        with self.transaction() as connection:
            self.fence(run_id, lease)
            tail = self._one("SELECT max(seq) FROM record WHERE run = ?", run_id)
            if tail is not None and tail[0] is not None and tail[0] >= record.seq:
                raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail[0])
            row = (run_id, record.seq, record.payload)
            connection.execute("INSERT INTO record VALUES (?, ?, ?)", row)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records."""
        check_run_id(run_id)
        with self.transaction() as connection:
            rows = connection.execute(
                "SELECT seq, payload FROM record WHERE run = ? ORDER BY seq", (run_id,)
            ).fetchall()
        return [JournalRecord(seq=seq, payload=payload) for seq, payload in rows]

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        """Replace the run's row."""
        text = check_meta(meta)
        self.check_offered(lease)
        with self.transaction() as connection:
            self.fence(meta.run_id, lease)
            connection.execute("INSERT OR REPLACE INTO row VALUES (?, ?)", (meta.run_id, text))

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return the rows that the filter wants."""
        wanted = check_filter(run_filter)
        with self.transaction() as connection:
            rows = connection.execute("SELECT run, meta FROM row ORDER BY run").fetchall()
        found = [meta for run, text in rows if matches(meta := decode_meta(run, text), wanted)]
        return found[: wanted.limit]

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row and lease; the token stays."""
        check_run_id(run_id)
        self.check_offered(lease)
        with self.transaction() as connection:
            self.fence(run_id, lease)
            connection.execute("DELETE FROM record WHERE run = ?", (run_id,))
            connection.execute("DELETE FROM row WHERE run = ?", (run_id,))
            connection.execute("DELETE FROM lease WHERE run = ?", (run_id,))

    @staticmethod
    def check_offered(lease: Lease | None) -> None:
        """Refuse what is no lease."""
        if lease is not None:
            check_lease(lease)

    def close(self) -> None:
        """Close the file."""
        self._refuse_child()
        with self._lock:
            self._closed = True
            self._connection.close()


class AcmeTranscripts:
    """The blobs of the same file, behind the same fence."""

    fenced_writes: Literal[True] = True

    def __init__(self, store: AcmeStore) -> None:
        self._store = store
        self.fencing_domain = store.fencing_domain

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        """Store a blob."""
        check_ref(ref)
        check_blob(blob)
        self._store.check_offered(lease)
        run_id = run_of_ref(ref)
        with self._store.transaction() as connection:
            self._store.fence(run_id, lease)
            connection.execute("INSERT OR REPLACE INTO blob VALUES (?, ?, ?)", (ref, run_id, blob))

    def get(self, ref: str, /) -> bytes | None:
        """Return a blob."""
        check_ref(ref)
        with self._store.transaction() as connection:
            row = connection.execute("SELECT content FROM blob WHERE ref = ?", (ref,)).fetchone()
        return None if row is None else bytes(row[0])

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the refs of a run."""
        check_run_id(run_id)
        with self._store.transaction() as connection:
            rows = connection.execute("SELECT ref FROM blob WHERE run = ? ORDER BY ref", (run_id,))
            return [ref for (ref,) in rows]

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        """Remove a blob."""
        check_ref(ref)
        self._store.check_offered(lease)
        with self._store.transaction() as connection:
            self._store.fence(run_of_ref(ref), lease)
            connection.execute("DELETE FROM blob WHERE ref = ?", (ref,))
