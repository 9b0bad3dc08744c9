"""What a journal's shape says of the work in it: begun and not answered, waited for, given up.

Pure functions over entries of any writer and any hash version: they go by an entry's status
and ``ref``, not by its kind alone, so that a journal whose kinds are unknown here is judged too.

A call that a retry made void is closed (`calls`). An entry of kind ``abandon`` gives up the
call that its ``ref`` names, and everything that was begun inside it: those branches are
closed, whether or not they were ever answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.journal.calls import CALL_KINDS, SUSPENSION_KINDS, Calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rulvar.core.journal.entries import JournalEntry

__all__ = ["Structure", "first_epoch_fall", "last_moment", "structure"]

ABANDON = "abandon"
_WAITING_KINDS = SUSPENSION_KINDS | {"approval"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The calls of a journal that are open, abandoned branches apart.

    ``dangling`` were begun and never answered; ``waiting`` are suspensions that nothing has
    answered. A later opening of the same call stands for the earlier one.
    """

    dangling: tuple[JournalEntry, ...]
    waiting: tuple[JournalEntry, ...]
    abandoned: frozenset[int]

    def moved_on(self, entries: Iterable[JournalEntry], after_seq: int) -> bool:
        """Whether calls were begun or answered after a seq, outside abandoned branches."""
        return any(
            _is_work(entry) and not {entry.seq, entry.ref} & self.abandoned
            for entry in entries
            if entry.seq > after_seq
        )


def structure(entries: Sequence[JournalEntry]) -> Structure:
    """Find what is open in a journal. No I/O."""
    by_seq = {entry.seq: entry for entry in entries}
    calls = Calls.of(entries)
    answered = {entry.ref for entry in entries if entry.ref is not None}
    for seq, state in calls.by_seq.items():
        if state.is_open:
            answered.discard(seq)  # a retry has taken its answer away
        else:
            answered.add(seq)
    abandoned = _abandoned(entries, by_seq) | _void(entries, calls)
    latest = {entry.identity: entry.seq for entry in entries if entry.ref is None and _opens(entry)}
    still_open = [
        entry
        for entry in entries
        if entry.ref is None
        and _opens(entry)
        and entry.seq not in answered
        and entry.seq not in abandoned
        and latest[entry.identity] == entry.seq
    ]
    return Structure(
        dangling=tuple(entry for entry in still_open if not _waits(entry)),
        waiting=tuple(entry for entry in still_open if _waits(entry)),
        abandoned=frozenset(abandoned),
    )


def _void(entries: Iterable[JournalEntry], calls: Calls) -> set[int]:
    """Return the seqs of the calls that a retry has made void."""
    opened = {entry.seq for entry in entries if entry.ref is None and entry.kind in CALL_KINDS}
    return opened - calls.by_seq.keys()


def _opens(entry: JournalEntry) -> bool:
    return entry.status == "running" or _waits(entry)


def _waits(entry: JournalEntry) -> bool:
    return entry.status == "suspended" or entry.kind in _WAITING_KINDS


def _is_work(entry: JournalEntry) -> bool:
    if entry.kind == ABANDON:
        return False
    return entry.ref is not None or entry.kind in CALL_KINDS or _opens(entry)


def _abandoned(entries: Iterable[JournalEntry], by_seq: dict[int, JournalEntry]) -> set[int]:
    """Return the seqs of every call that was given up, by itself or with the one around it."""
    covered: set[int] = set()
    scopes: list[str] = []
    for entry in entries:
        target = by_seq.get(entry.ref) if entry.kind == ABANDON and entry.ref is not None else None
        if target is not None:
            covered.add(target.seq)
            scopes.append(_inner_scope(target))
    if scopes:
        covered.update(
            entry.seq
            for entry in entries
            if any(entry.scope == scope or entry.scope.startswith(f"{scope}/") for scope in scopes)
        )
    return covered


def _inner_scope(target: JournalEntry) -> str:
    """Return the scope of what a call began inside itself."""
    value = target.value
    named = value.get("childScope") if isinstance(value, dict) else None
    if isinstance(named, str) and named:
        return named
    return f"{target.scope}/agent:{target.seq}" if target.scope else f"agent:{target.seq}"


def first_epoch_fall(entries: Iterable[JournalEntry]) -> JournalEntry | None:
    """Return the first entry whose epoch is lower than an earlier one's; None is as it must be.

    A fence lets no such entry in. An entry without an epoch proves nothing.
    """
    highest = -1
    for entry in entries:
        if entry.epoch is None:
            continue
        if entry.epoch < highest:
            return entry
        highest = entry.epoch
    return None


def last_moment(entries: Sequence[JournalEntry]) -> str | None:
    """Return when the journal was last written, as its last entry with a time says it."""
    for entry in reversed(entries):
        moment = entry.ended_at or entry.started_at
        if moment is not None:
            return moment
    return None
