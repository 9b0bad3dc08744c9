"""The in-memory stores: for trying things out, and nothing that matters.

They live and die with the process, grant no leases and declare no fence; the first one that
a process opens warns of it, once. For tests that need the whole fenced contract in memory,
take `rulvar.core.testing.ReferenceStore`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rulvar.core._tables import Gate, Tables, page
from rulvar.core.checks import (
    check_after_seq,
    check_blob,
    check_filter,
    check_limit,
    check_meta,
    check_record,
    check_ref,
    check_run_id,
)
from rulvar.core.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from rulvar.core.records import BlobStat, JournalRecord, RunFilter, RunMeta

__all__ = [
    "EphemeralStoreWarning",
    "MemoryJournalStore",
    "MemoryStores",
    "MemoryTranscriptStore",
]


class EphemeralStoreWarning(UserWarning):
    """An in-memory store was opened: nothing survives the process, nothing is fenced."""


_warned = False


def _warn_once() -> None:
    global _warned  # noqa: PLW0603 - once in a process is what it means
    if _warned:
        return
    warnings.warn(
        "an in-memory store keeps nothing beyond this process and has no fence: open "
        "'sqlite:///<path>' for runs that must survive",
        EphemeralStoreWarning,
        stacklevel=3,
    )
    # After the call: where the warning is an error, every store that is opened says so.
    _warned = True


class _Home:
    """The tables and the gate that a journal store and its twin share."""

    def __init__(self) -> None:
        self.gate = Gate("the in-memory store")
        self.tables = Tables()


class MemoryJournalStore:
    """Journals and rows in this process's memory; a single writer, no leases.

    Keeps promises A2, A4, A5, M1, M2 and D1; nothing survives the process, so not A3.
    """

    def __init__(self) -> None:
        _warn_once()
        self._home = _Home()
        self._twin = MemoryTranscriptStore._of(self._home)  # noqa: SLF001 - its own twin

    def transcripts(self) -> MemoryTranscriptStore:
        """Return the twin: the blobs beside these journals, closed with them."""
        return self._twin

    def append(self, run_id: str, record: JournalRecord, /) -> None:
        """Add a record. Raises `JournalOrderViolation` when its seq is not above the tail."""
        check_run_id(run_id)
        check_record(record)
        with self._home.gate.passing():
            self._home.tables.append(run_id, record)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in order."""
        check_run_id(run_id)
        with self._home.gate.passing():
            return self._home.tables.records(run_id)

    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        """Return at most ``limit`` records whose seq is above ``after_seq``."""
        check_run_id(run_id)
        check_after_seq(after_seq)
        check_limit(limit)
        with self._home.gate.passing():
            records = self._home.tables.records(run_id)
        return [record for record in records if record.seq > after_seq][:limit]

    def put_meta(self, meta: RunMeta, /) -> None:
        """Replace the run's row."""
        check_meta(meta)
        with self._home.gate.passing():
            self._home.tables.put_row(meta)

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        """Return the run's row or None."""
        check_run_id(run_id)
        with self._home.gate.passing():
            return self._home.tables.row(run_id)

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return matching rows by run id."""
        wanted = check_filter(run_filter)
        with self._home.gate.passing():
            return self._home.tables.rows(wanted)

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        """Return at most ``limit`` ids with entries, a row or blobs of the twin."""
        if after_run_id is not None:
            check_run_id(after_run_id)
        check_limit(limit)
        with self._home.gate.passing():
            return page(self._home.tables.run_ids(), after_run_id, limit)

    def delete(self, run_id: str, /) -> None:
        """Remove journal and row; an unknown run is a no-op, and blobs stay."""
        check_run_id(run_id)
        with self._home.gate.passing():
            self._home.tables.drop(run_id, blobs=False)

    def close(self) -> None:
        """Refuse every later call, of the twin too; what was stored is gone. Idempotent."""
        self._home.gate.close()


class MemoryTranscriptStore:
    """Blobs in this process's memory; a single writer, no fence."""

    def __init__(self) -> None:
        _warn_once()
        self._home = _Home()

    @classmethod
    def _of(cls, home: _Home) -> MemoryTranscriptStore:
        twin = cls.__new__(cls)
        twin._home = home  # noqa: SLF001 - made here
        return twin

    def put(self, ref: str, blob: bytes, /) -> None:
        """Replace the blob at ``ref``."""
        check_ref(ref)
        check_blob(blob)
        with self._home.gate.passing():
            self._home.tables.put_blob(ref, blob, None)

    def get(self, ref: str, /) -> bytes | None:
        """Return the blob or None."""
        check_ref(ref)
        with self._home.gate.passing():
            return self._home.tables.blob(ref)

    def blob_info(self, ref: str, /) -> BlobStat | None:
        """Return the blob's size, or None when there is none."""
        check_ref(ref)
        with self._home.gate.passing():
            return self._home.tables.blob_stat(ref)

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the run's refs in order."""
        check_run_id(run_id)
        with self._home.gate.passing():
            return self._home.tables.refs(run_id)

    def delete(self, ref: str, /) -> None:
        """Remove the blob; a missing one is a no-op."""
        check_ref(ref)
        with self._home.gate.passing():
            self._home.tables.drop_blob(ref)

    def close(self) -> None:
        """Refuse every later call, of the journal store too; idempotent."""
        self._home.gate.close()


class MemoryStores(Stores):
    """A fresh pair of in-memory stores; see the module's warning."""

    __slots__ = ()

    def __init__(self) -> None:
        journal = MemoryJournalStore()
        super().__init__(journal, journal.transcripts())

    @classmethod
    def copy_of(
        cls,
        run_id: str,
        records: Iterable[JournalRecord],
        row: RunMeta | None,
        blobs: Mapping[str, bytes],
    ) -> Self:
        """Return a pair that has this one run, and says nothing of being in memory.

        For what reads a run as a store's caller does and may change no store: its records, its
        row if it has one, and its blobs by their refs.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EphemeralStoreWarning)
            stores = cls()
        for record in records:
            stores.journal.append(run_id, record)
        if row is not None:
            stores.journal.put_meta(row)
        for ref, blob in blobs.items():
            stores.transcripts.put(ref, blob)
        return stores
