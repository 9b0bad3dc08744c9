"""Journals, rows and leases in one SQLite file.

Every call is one exclusive transaction: from its beginning to its end nobody else reads or writes.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from rulvar.core import spi
from rulvar.core.spi import JournalRecord, Lease, LeaseState, RunFilter, RunMeta

Execute = Callable[..., sqlite3.Cursor]
now_ms = spi.SystemClock().now_ms

TABLES = (
    "record (run TEXT, seq INTEGER, payload BLOB NOT NULL, PRIMARY KEY (run, seq))",
    "row (run TEXT PRIMARY KEY, meta TEXT NOT NULL)",
    "blob (ref TEXT PRIMARY KEY, run TEXT NOT NULL, content BLOB NOT NULL)",
    # Nothing is ever deleted from this one: a run that nobody owns keeps its highest epoch.
    "lease (run TEXT PRIMARY KEY, epoch INTEGER NOT NULL, owner TEXT, expires_at INTEGER)",
)
ERRORS: dict[int, type[spi.StoreError]] = {
    sqlite3.SQLITE_BUSY: spi.StoreBusyError,
    sqlite3.SQLITE_FULL: spi.StoreFullError,
    sqlite3.SQLITE_CORRUPT: spi.StoreCorruptError,
}


@contextmanager
def _typed_errors(place: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        kind = ERRORS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, spi.StoreError)
        raise kind(f"{place}: {error}") from error


class AcmeStore:
    """Journals, rows and leases in the file at ``path``, or in memory without one."""

    def __init__(self, path: os.PathLike[str] | None, *, lease_ttl_ms: int) -> None:
        self.lease_ttl_ms = lease_ttl_ms
        self.busy_timeout_ms = min(5_000, lease_ttl_ms // 4)  # a renewal must not come too late
        self.fencing_domain = f"acme:{path or id(self)}"
        self._lock = threading.Lock()
        self._life = spi.StoreLife(f"the store {self.fencing_domain}")
        with _typed_errors(self.fencing_domain):
            self._connection = sqlite3.connect(
                path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
            )
        with self.unit() as execute:
            for table in TABLES:
                execute(f"CREATE TABLE IF NOT EXISTS {table}")
        self._connection.execute("PRAGMA synchronous = EXTRA")  # what returned survives power loss

    @contextmanager
    def unit(self, run_id: str = "", lease: Lease | None = None) -> Iterator[Execute]:
        """Hold the file for one unit of work: all of it lands, or nothing."""
        if lease is not None:
            spi.check_lease(lease)
        self._life.check()
        with self._lock, _typed_errors(self.fencing_domain):
            self._life.check()
            with self._connection:  # commits, or rolls back
                self._begin()
                if lease is not None:
                    self._fence(run_id, lease)
                yield self._connection.execute

    def _begin(self) -> None:
        """Wait for other processes by short random times; SQLite's own waits are unfair."""
        deadline = time.monotonic() + self.busy_timeout_ms / 1000
        while not self._connection.in_transaction:
            try:
                self._connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.0003, 0.002))

    def close(self) -> None:
        """Refuse every later call, and wait for the one in flight."""
        self._life.close()
        with self._lock:
            self._connection.close()

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        """Add a record behind the stored tail."""
        spi.check_run_id(run_id)
        spi.check_record(record)
        with self.unit(run_id, lease) as execute:
            (tail,) = execute("SELECT max(seq) FROM record WHERE run = ?", (run_id,)).fetchone()
            if tail is not None and tail >= record.seq:
                raise spi.JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail)
            execute("INSERT INTO record VALUES (?, ?, ?)", (run_id, record.seq, record.payload))

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in their order."""
        spi.check_run_id(run_id)
        with self.unit() as execute:
            rows = execute("SELECT seq, payload FROM record WHERE run = ? ORDER BY seq", (run_id,))
            return [JournalRecord(seq=seq, payload=payload) for seq, payload in rows]

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        """Replace the run's row, with the fields that nobody here knows."""
        text = spi.check_meta(meta)
        with self.unit(meta.run_id, lease) as execute:
            execute("INSERT OR REPLACE INTO row VALUES (?, ?)", (meta.run_id, text))

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return the rows that the filter wants, by run id."""
        wanted = spi.check_filter(run_filter)
        with self.unit() as execute:
            rows = execute("SELECT run, meta FROM row ORDER BY run").fetchall()
        metas = [spi.decode_meta(run_id, text) for run_id, text in rows]
        return [meta for meta in metas if spi.matches(meta, wanted)][: wanted.limit]

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal and row, and end the lease; the epoch and the blobs stay."""
        spi.check_run_id(run_id)
        with self.unit(run_id, lease) as execute:
            execute("DELETE FROM record WHERE run = ?", (run_id,))
            execute("DELETE FROM row WHERE run = ?", (run_id,))
            execute("UPDATE lease SET owner = NULL, expires_at = 0 WHERE run = ?", (run_id,))

    def _state(self, run_id: str) -> LeaseState:
        """Return the run's highest epoch, and who holds it until when; inside a unit."""
        sql = "SELECT epoch, owner, expires_at FROM lease WHERE run = ?"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        if row is None:
            return LeaseState(run_id)
        epoch, owner, ends = row
        return LeaseState(run_id, epoch, owner, None if owner is None else epoch, ends)

    def _fence(self, run_id: str, lease: Lease) -> None:
        """Refuse every lease but the run's live one."""
        state, now = self._state(run_id), now_ms()
        reason = spi.lease_status(state, lease, now)
        if reason is not None:
            raise spi.refusal(state, reason, now, offered=lease)

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        """Grant the run under its next epoch, unless a lease is live."""
        spi.check_run_id(run_id)
        spi.check_owner(owner)
        with self.unit() as execute:
            state, now = self._state(run_id), now_ms()
            if state.live_at(now):
                raise spi.refusal(state, "held", now)
            epoch = (state.tombstone or 0) + 1
            row = (run_id, epoch, owner, now + self.lease_ttl_ms)
            execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?)", row)
        return Lease(run_id=run_id, owner=owner, epoch=epoch)

    def renew(self, lease: Lease, /) -> None:
        """Move a live lease's end."""
        with self.unit(spi.check_lease(lease).run_id, lease) as execute:
            ends = now_ms() + self.lease_ttl_ms
            execute("UPDATE lease SET expires_at = ? WHERE run = ?", (ends, lease.run_id))

    def release(self, lease: Lease, /) -> None:
        """End a live lease."""
        with self.unit(spi.check_lease(lease).run_id, lease) as execute:
            execute("UPDATE lease SET owner = NULL, expires_at = 0 WHERE run = ?", (lease.run_id,))

    fenced_writes: Literal[True] = True
