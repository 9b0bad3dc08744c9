"""What a journal shows of records that were lost from its middle, or from its beginning.

Stores allow gaps between seqs, and other writers may make them. This engine makes none: it
begins a run at seq 0, and whoever holds the run appends under the last seq plus one, in every
tenure, after a takeover, a revival or an append in doubt too (that one has landed, and is the
last, or has not, and its seq is used again). So in what this engine wrote, which is what carries
an epoch or a hash version that is this engine's (over a store without leases there is no epoch),
three things are losses:

- the first record of the journal has a seq above 0;
- between two neighbours that it wrote, seqs are missing;
- an answer (``ref``) names an opening that is not there.

What such a record said is not known: a payment that it answered would be made again, and so no
segment continues what is left. Other writers' entries prove nothing, and neither does a gap
beside one. The loss of the *last* records leaves nothing that this could find. No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.core.journal.entries import JournalEntry

__all__ = ["FIRST_HASH_VERSION", "Loss", "first_loss", "is_ours"]

FIRST_HASH_VERSION = 101
"""This engine's versions begin here, outside the window of the other one."""


class Loss(NamedTuple):
    """Where records are missing: before the entry at ``position``, counted from 0."""

    seq: int
    position: int
    message: str


def is_ours(entry: JournalEntry) -> bool:
    """Whether this engine, or an earlier generation of it, wrote an entry."""
    return entry.epoch is not None or entry.hash_version >= FIRST_HASH_VERSION


def first_loss(entries: Iterable[JournalEntry]) -> Loss | None:
    """Return the first place where records of this engine are missing, or None."""
    before: JournalEntry | None = None
    seen: set[int] = set()
    for position, entry in enumerate(entries):
        if is_ours(entry):
            message = _missing_before(entry, before, position, seen)
            if message is not None:
                return Loss(entry.seq, position, message)
        seen.add(entry.seq)
        before = entry
    return None


def _missing_before(
    entry: JournalEntry, before: JournalEntry | None, position: int, seen: set[int]
) -> str | None:
    if position == 0 and entry.seq > 0:
        return f"the journal begins with seq {entry.seq}: what came before it is lost"
    if before is not None and is_ours(before) and entry.seq > before.seq + 1:
        lost = _span(before.seq + 1, entry.seq - 1)
        return f"seq {entry.seq} comes after seq {before.seq}: {lost} lost"
    if entry.ref is not None and entry.ref < entry.seq and entry.ref not in seen:
        return f"seq {entry.seq} answers seq {entry.ref}, which is lost"
    return None


def _span(first: int, last: int) -> str:
    return f"seq {first} is" if first == last else f"seqs {first} to {last} are"
