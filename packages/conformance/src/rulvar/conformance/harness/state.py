"""The whole visible state of a few runs, read through the SPI, as a comparable value.

Two snapshots are equal exactly when nothing that a caller can read has changed: journals byte
for byte, rows as their JSON text, lease rows where the store shows them, blobs byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rulvar.conformance.harness.failure import shown
from rulvar.core.capabilities import has_lease_admin, has_meta_lookup
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.core.stores import StorePair

__all__ = ["Part", "RunState", "Snapshot", "differences", "read_run", "read_state"]

Part = Literal["journal", "row", "lease", "blobs"]
"""What can be read of a run in one go."""


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


def read_run(
    stores: StorePair,
    run_id: str,
    *,
    blobs: bool = True,
    journal: bool = True,
    first: Part = "journal",
) -> RunState:
    """Read one run, ``first`` of all that part of it.

    ``blobs`` and ``journal`` say which halves the subject has.
    """
    parts: dict[Part, Callable[[], dict[str, Any]]] = {}
    if journal:
        parts["journal"] = lambda: {"journal": _journal_of(stores, run_id)}
        parts["row"] = lambda: {"row": _row_of(stores, run_id)}
        parts["lease"] = lambda: {"lease": _lease_of(stores, run_id)}
    if blobs:
        parts["blobs"] = lambda: {"blobs": _blobs_of(stores, run_id)}
    found: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: part != first):
        found |= parts[part]()
    return RunState(**found)


def _journal_of(stores: StorePair, run_id: str) -> tuple[tuple[int, bytes], ...]:
    return tuple((record.seq, bytes(record.payload)) for record in stores.journal.load(run_id))


def _row_of(stores: StorePair, run_id: str) -> str | None:
    if has_meta_lookup(stores.journal):
        row = stores.journal.get_meta(run_id)
    else:
        row = next((r for r in stores.journal.list_runs(None) if r.run_id == run_id), None)
    return None if row is None else encode_meta(row)


def _lease_of(stores: StorePair, run_id: str) -> tuple[str, int, int] | None:
    if not has_lease_admin(stores.journal):
        return None
    info = stores.journal.get_lease(run_id)
    return None if info is None else (info.owner, info.epoch, info.expires_at)


def _blobs_of(stores: StorePair, run_id: str) -> tuple[tuple[str, bytes | None], ...]:
    refs = stores.transcripts.list_refs(run_id)
    return tuple((ref, stores.transcripts.get(ref)) for ref in refs)


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
