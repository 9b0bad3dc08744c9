"""What a journal says of deaths: segments that ended neither settled nor stopped in order.

Two entries tell of them, and neither is work of a body:

============ ====================================================================================
``decision`` of type ``recovered``: a segment begins over such a predecessor, and says so before
             its body is entered: how many in a row, which segment, who had it, what was under way
``attempt``  a call that was begun and never answered is about to be performed again; ``value``
             names the seq of its opening and the number of the attempt, the first being 1
============ ====================================================================================

What counts is deaths in a row: whatever a body got done in between (an answer, a recorded value,
an outcome) begins the count anew. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.journal.calls import RETRY
from rulvar.core.records import TERMINAL_STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.core.journal.entries import JournalEntry

__all__ = [
    "ATTEMPT",
    "RECOVERED",
    "SUSPECTED",
    "Recovered",
    "attempts",
    "makes_progress",
    "recovered_of",
    "recoveries",
    "segment_of",
    "witnesses",
]

ATTEMPT = "attempt"
RECOVERED = "recovered"
SUSPECTED = 2
"""From so many deaths in a row on, a run may be what kills its processes."""

_RECORDED_KINDS = frozenset({"patched", "rand"})
"""Calls whose opening is their answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """One death, as the segment that began after it journalled it.

    ``segment`` is the number of the one that died, ``owner`` whose it was, where that is known;
    ``ended`` says how it is known; ``last_seen_at`` is when it was last heard of, and
    ``under_way`` what it had begun and not answered.
    """

    seq: int
    count: int
    segment: int | None
    owner: str | None
    ended: str
    last_seen_at: str | None
    under_way: tuple[str, ...]


def recovered_of(entry: JournalEntry) -> Recovered | None:
    """Read an entry that tells of a death; None for any other."""
    value = entry.value
    if entry.kind != "decision" or not isinstance(value, dict):
        return None
    return _read(entry.seq, value) if value.get("decisionType") == RECOVERED else None


def witnesses(entry: JournalEntry) -> list[Recovered]:
    """Read the deaths that a settle as ``exhausted`` names, the oldest first."""
    data = (entry.error or {}).get("data")
    told = data.get("witnesses") if isinstance(data, dict) else None
    if entry.kind != "decision" or not isinstance(told, list):
        return []
    return [_read(entry.seq, each) for each in told if isinstance(each, dict)]


def _read(seq: int, value: dict[str, object]) -> Recovered:
    count, segment, owner = value.get("count"), value.get("segment"), value.get("owner")
    ended, seen, under_way = value.get("ended"), value.get("lastSeenAt"), value.get("underWay")
    return Recovered(
        seq=seq,
        count=count if isinstance(count, int) else 0,
        segment=segment if isinstance(segment, int) else None,
        owner=owner if isinstance(owner, str) else None,
        ended=ended if isinstance(ended, str) else "unknown",
        last_seen_at=seen if isinstance(seen, str) else None,
        under_way=tuple(map(str, under_way)) if isinstance(under_way, list) else (),
    )


def makes_progress(entry: JournalEntry) -> bool:
    """Whether an entry tells of something that got done: the deaths before it count no more."""
    if entry.ref is not None or entry.kind in _RECORDED_KINDS:
        return True
    value = entry.value
    if entry.kind != "decision" or not isinstance(value, dict):
        return False
    return value.get("runStatus") in TERMINAL_STATUSES or value.get("decisionType") == RETRY


def recoveries(entries: Iterable[JournalEntry]) -> list[Recovered]:
    """Return the deaths in a row that the journal ends with, the oldest first."""
    found: list[Recovered] = []
    for entry in entries:
        if makes_progress(entry):
            found.clear()
        elif (death := recovered_of(entry)) is not None:
            found.append(death)
    return found


def attempts(entries: Iterable[JournalEntry]) -> dict[int, int]:
    """Return how often calls were begun that were begun more than once, by their opening's seq."""
    made: dict[int, int] = {}
    for entry in entries:
        value = entry.value
        if entry.kind != ATTEMPT or not isinstance(value, dict):
            continue
        seq, number = value.get("seq"), value.get("attempt")
        if isinstance(seq, int) and isinstance(number, int):
            made[seq] = max(number, made.get(seq, 1))
    return made


def segment_of(entry: JournalEntry) -> int | None:
    """Return the number of the segment that wrote an entry; None where it does not say."""
    number = (entry.span_id or "").partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else None
