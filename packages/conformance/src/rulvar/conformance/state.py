"""The whole visible state of a few runs, read through the SPI, as a comparable value.

Two snapshots are equal exactly when nothing that a caller can read has changed: journals byte
for byte, rows as their JSON text, lease rows where the store shows them, blobs byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.failure import shown
from rulvar.core.capabilities import has_lease_admin, has_meta_lookup
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.core.records import RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["RunState", "Snapshot", "differences", "read_run", "read_state"]


@dataclass(frozen=True, slots=True)
class RunState:
    """What can be read of one run; ``lease`` is ``(owner, epoch, expires_at)``."""

    journal: tuple[tuple[int, bytes], ...] = ()
    row: str | None = None
    lease: tuple[str, int, int] | None = None
    blobs: tuple[tuple[str, bytes | None], ...] = ()

    def lines(self) -> list[str]:
        """Return the state in words, a line for each part that is there."""
        found = [f"seq {seq}: {shown(payload)}" for seq, payload in self.journal[-4:]]
        if len(self.journal) > len(found):
            found.insert(0, f"({len(self.journal)} records)")
        if self.row is not None:
            found.append(f"row: {shown(self.row)}")
        if self.lease is not None:
            owner, epoch, expires_at = self.lease
            found.append(f"lease: {owner!r}, epoch {epoch}, expires at {expires_at}")
        found += [f"blob {ref!r}: {shown(blob)}" for ref, blob in self.blobs]
        return found or ["nothing"]


Snapshot = dict[str, RunState]
"""Run ids to what can be read of them."""


def _row_of(stores: StorePair, run_id: str) -> RunMeta | None:
    if has_meta_lookup(stores.journal):
        return stores.journal.get_meta(run_id)
    return next((row for row in stores.journal.list_runs(None) if row.run_id == run_id), None)


def read_run(
    stores: StorePair, run_id: str, *, blobs: bool = True, journal: bool = True
) -> RunState:
    """Read one run; ``blobs`` and ``journal`` say which halves the subject has."""
    row = _row_of(stores, run_id) if journal else None
    lease = None
    if journal and has_lease_admin(stores.journal):
        info = stores.journal.get_lease(run_id)
        lease = None if info is None else (info.owner, info.epoch, info.expires_at)
    refs = stores.transcripts.list_refs(run_id) if blobs else ()
    records = stores.journal.load(run_id) if journal else ()
    return RunState(
        journal=tuple((record.seq, bytes(record.payload)) for record in records),
        row=None if row is None else encode_meta(row),
        lease=lease,
        blobs=tuple((ref, stores.transcripts.get(ref)) for ref in refs),
    )


def read_state(
    stores: StorePair, run_ids: Iterable[str], *, blobs: bool = True, journal: bool = True
) -> Snapshot:
    """Read several runs, one after the other: nobody may be writing meanwhile."""
    return {r: read_run(stores, r, blobs=blobs, journal=journal) for r in sorted(run_ids)}


def differences(before: Snapshot, after: Snapshot) -> tuple[list[str], list[str]]:
    """Return what the runs that differ looked like before and after, in words.

    Lines that stand on one side only come first, under a mark.
    """
    was: list[str] = []
    now: list[str] = []
    for run_id in sorted(before.keys() | after.keys()):
        old, new = before.get(run_id, RunState()), after.get(run_id, RunState())
        if old == new:
            continue
        had, has = old.lines(), new.lines()
        was += [f"{'-' if line not in has else ' '} {run_id!r}: {line}" for line in had]
        now += [f"{'+' if line not in had else ' '} {run_id!r}: {line}" for line in has]
    was.sort(key=_unmarked)
    now.sort(key=_unmarked)
    return was, now


def _unmarked(line: str) -> bool:
    return line.startswith(" ")
