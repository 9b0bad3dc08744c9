"""A retry: the decision that reopens a run which ended in an error.

It names the calls whose errors ended the run, as the settle has them; they and what the body
did because of them become void (`journal.calls`), and the body goes on over the rest of its
journal. Nothing that completed is paid again. Whoever asks for it journals it; no code of the
workflow is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.journal import RETRY, Calls
from rulvar.core.journal.drafts import decision_draft

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.core.journal import JournalEntry, Settle

__all__ = ["RETRIED_STATUSES", "retry_draft", "was_retried_by"]

RETRIED_STATUSES = frozenset({"error", "exhausted"})
"""The outcomes that a retry reopens."""


def retry_draft(
    entries: Iterable[JournalEntry], last: Settle, *, now: str, by: int | None = None
) -> JournalEntry:
    """Return the decision; ``by`` is the seq of the parent's retry that asks a child for it."""
    calls = Calls.of(entries)
    named: list[int] = []
    for seq in last.failed:
        named += [each for each in calls.failed_beside(seq) if each not in named]
    value: dict[str, object] = {"decisionType": RETRY, "calls": named}
    if by is not None:
        value["by"] = by
    return decision_draft(value, now=now)


def was_retried_by(entries: Iterable[JournalEntry], by: int) -> bool:
    """Whether a child has been retried for this retry of its parent already."""
    for entry in entries:
        value = entry.value if entry.kind == "decision" else None
        facts = value if isinstance(value, dict) else {}
        if (facts.get("decisionType"), facts.get("by")) == (RETRY, by):
            return True
    return False
