"""The second and every later attempt at a call: journalled before it is performed.

A call that was begun and never answered runs again, at least once. That it is about to is a
fact that survives a process which dies of it, and tells which call that was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.journal.drafts import attempt_draft

if TYPE_CHECKING:
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.journal import JournalEntry

__all__ = ["begin_again"]

_PERFORMED = frozenset({"step", "turns", "worktree"})
"""A child is a separate run, which counts for itself; a suspension performs nothing."""


async def begin_again(segment: Segment, opening: JournalEntry) -> None:
    """Journal the next attempt at an unanswered call. Raises `SegmentEnded`."""
    if opening.kind not in _PERFORMED:
        return
    number = segment.attempts.get(opening.seq, 1) + 1
    await segment.append(attempt_draft(opening, number, now=segment.now()))
    segment.attempts[opening.seq] = number
    segment.check()  # the run may have been lost while the attempt was journalled
