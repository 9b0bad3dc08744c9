"""Entries before they are written: everything but the seq, the epoch and the span.

Those three are the writer's: it takes the seq under its lock and the epoch from the present
lease. No other module makes an entry that has no number yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.journal.deaths import ATTEMPT
from rulvar.core.journal.entries import JournalEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["answer_draft", "attempt_draft", "decision_draft", "opening_draft"]

_UNNUMBERED = 0


def opening_draft(
    kind: str,
    identity: tuple[str, str, int],
    *,
    status: str,
    now: str,
    value: object = None,
    args_hash: str | None = None,
    call_key: str | None = None,
    deadline_at: str | None = None,
) -> JournalEntry:
    """Return what opens a call; ``identity`` is its scope, key and ordinal."""
    scope, key, ordinal = identity
    return JournalEntry(
        seq=_UNNUMBERED,
        kind=kind,
        status=status,
        scope=scope,
        key=key,
        ordinal=ordinal,
        value=value,
        args_hash=args_hash,
        call_key=call_key,
        deadline_at=deadline_at,
        started_at=now,
    )


def answer_draft(
    opening: JournalEntry,
    *,
    now: str,
    kind: str | None = None,
    status: str = "ok",
    value: object = None,
    error: Mapping[str, object] | None = None,
    started_at: str | None = None,
) -> JournalEntry:
    """Return what refers to an opening: its answer, a resolution, that it was given up.

    ``kind`` is the opening's where it is not given.
    """
    return JournalEntry(
        seq=_UNNUMBERED,
        kind=kind or opening.kind,
        status=status,
        scope=opening.scope,
        key=opening.key,
        ordinal=opening.ordinal,
        value=value,
        error=error,
        ref=opening.seq,
        started_at=started_at,
        ended_at=now,
    )


def attempt_draft(opening: JournalEntry, attempt: int, *, now: str) -> JournalEntry:
    """Return what says that an unanswered call is performed again, before it is."""
    return JournalEntry(
        seq=_UNNUMBERED,
        kind=ATTEMPT,
        status="ok",
        scope=opening.scope,
        key=opening.key,
        ordinal=opening.ordinal,
        value={"seq": opening.seq, "attempt": attempt},
        started_at=now,
    )


def decision_draft(
    facts: Mapping[str, object],
    *,
    now: str,
    error: Mapping[str, object] | None = None,
    started_at: str | None = None,
) -> JournalEntry:
    """Return a decision about the whole run; ``facts`` has its ``decisionType``."""
    return JournalEntry(
        seq=_UNNUMBERED,
        kind="decision",
        status="ok",
        value=dict(facts),
        error=error,
        started_at=started_at,
        ended_at=now,
    )
