"""What the in-memory stores keep, and how long: plain tables, and a gate before them.

Private to `rulvar.core.memory` and `rulvar.core.testing`. The tables know nothing of
leases or threads; their callers stand inside `Gate.passing`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.checks import check_meta, run_of_ref
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.filters import matches
from rulvar.core.records import BlobStat
from rulvar.core.store_life import StoreLife
from rulvar.core.wire import decode_meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.core.records import JournalRecord, RunFilter, RunMeta

__all__ = ["Gate", "RunState", "Tables", "page"]


class Gate:
    """One lock around every call, and the life of the store."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._life = StoreLife(name, remedy="open one in this process")

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Hold the lock for one call. Raises `StoreForkedError`, `StoreClosedError`."""
        # Before the lock: a thread of the parent may have held it at the fork, for ever.
        self._life.check()
        with self._lock:
            self._life.check()
            yield

    def close(self) -> None:
        """Wait for the call in flight, then let no other pass; idempotent."""
        self._life.check_process()
        with self._lock:
            self._life.close()


@dataclass(slots=True)
class RunState:
    """Everything of one run, in one object: so that removing it is one step."""

    records: list[JournalRecord] = field(default_factory=list)
    row: RunMeta | None = None
    blobs: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)


class Tables:
    """Journals, rows and blobs by run id."""

    def __init__(self) -> None:
        self._runs: dict[str, RunState] = {}

    def _run(self, run_id: str) -> RunState:
        return self._runs.get(run_id) or RunState()

    def _run_to_change(self, run_id: str) -> RunState:
        return self._runs.setdefault(run_id, RunState())

    # --- journals and rows ---

    def append(self, run_id: str, record: JournalRecord) -> None:
        """Add a record. Raises `JournalOrderViolation` (A5)."""
        records = self._run(run_id).records
        if records and record.seq <= records[-1].seq:
            tail = records[-1]
            raise JournalOrderViolation(
                run_id=run_id, seq=record.seq, tail_seq=tail.seq, landed=tail == record
            )
        self._run_to_change(run_id).records.append(record)

    def records(self, run_id: str) -> tuple[JournalRecord, ...]:
        """Return the journal as it is now."""
        return tuple(self._run(run_id).records)

    def put_row(self, meta: RunMeta) -> None:
        """Replace the row by what a store on disk would read back."""
        self._run_to_change(meta.run_id).row = decode_meta(meta.run_id, check_meta(meta))

    def row(self, run_id: str) -> RunMeta | None:
        """Return the row."""
        return self._run(run_id).row

    def rows(self, wanted: RunFilter) -> tuple[RunMeta, ...]:
        """Return the page of matching rows."""
        found = (state.row for _, state in sorted(self._runs.items()) if state.row is not None)
        return tuple(row for row in found if matches(row, wanted))[: wanted.limit]

    def drop(self, run_id: str, *, blobs: bool) -> None:
        """Remove journal and row, and the blobs where asked, in one step (D1)."""
        kept = {} if blobs else self._run(run_id).blobs
        if kept:
            self._runs[run_id] = RunState(blobs=kept)
        else:
            self._runs.pop(run_id, None)

    def run_ids(self) -> set[str]:
        """Return the ids that have entries, a row or blobs."""
        return {
            run_id
            for run_id, state in self._runs.items()
            if state.records or state.row is not None or state.blobs
        }

    # --- blobs ---

    def put_blob(self, ref: str, blob: bytes, stored_at: int | None) -> None:
        """Replace a blob."""
        self._run_to_change(run_of_ref(ref)).blobs[ref] = (blob, stored_at)

    def blob(self, ref: str) -> bytes | None:
        """Return a blob."""
        found = self._run(run_of_ref(ref)).blobs.get(ref)
        return None if found is None else found[0]

    def blob_stat(self, ref: str) -> BlobStat | None:
        """Return a blob's size and age."""
        found = self._run(run_of_ref(ref)).blobs.get(ref)
        if found is None:
            return None
        return BlobStat(ref=ref, size_bytes=len(found[0]), stored_at=found[1])

    def refs(self, run_id: str) -> tuple[str, ...]:
        """Return the run's refs in order."""
        return tuple(sorted(self._run(run_id).blobs))

    def drop_blob(self, ref: str) -> None:
        """Remove a blob; a missing one is a no-op."""
        self._run(run_of_ref(ref)).blobs.pop(ref, None)


def page(run_ids: Iterable[str], after_run_id: str | None, limit: int) -> list[str]:
    """Return the first ``limit`` ids after one, by their UTF-8 bytes."""
    # Code point order is UTF-8 byte order, for every string without lone surrogates.
    later = (r for r in run_ids if after_run_id is None or r > after_run_id)
    return sorted(later)[:limit]
