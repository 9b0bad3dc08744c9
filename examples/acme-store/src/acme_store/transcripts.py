"""The blobs of the same file, behind the same fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from acme_store.store import AcmeStore
from rulvar.core.spi import Lease, check_blob, check_ref, check_run_id, run_of_ref


class AcmeTranscripts:
    """Blobs; each belongs to the run that the first segment of its ref names."""

    def __init__(self, store: AcmeStore) -> None:
        self.fencing_domain = store.fencing_domain
        self._unit = store.unit

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        """Store a blob, or replace it."""
        run_id = run_of_ref(check_ref(ref))
        check_blob(blob)
        with self._unit(run_id, lease) as execute:
            execute("INSERT OR REPLACE INTO blob VALUES (?, ?, ?)", (ref, run_id, blob))

    def get(self, ref: str, /) -> bytes | None:
        """Return a blob, or None."""
        check_ref(ref)
        with self._unit() as execute:
            row = execute("SELECT content FROM blob WHERE ref = ?", (ref,)).fetchone()
        return None if row is None else row[0]

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the refs of a run, by their UTF-8 bytes."""
        check_run_id(run_id)
        with self._unit() as execute:
            sql = "SELECT ref FROM blob WHERE run = ? ORDER BY ref"
            return [ref for (ref,) in execute(sql, (run_id,)).fetchall()]

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        """Remove a blob; a missing one is not an error."""
        run_id = run_of_ref(check_ref(ref))
        with self._unit(run_id, lease) as execute:
            execute("DELETE FROM blob WHERE ref = ?", (ref,))

    fenced_writes: Literal[True] = True
