"""What a journal says as a whole: pure functions over its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.errors import JournalCompatibilityError
from rulvar.core.journal.calls import CALL_KINDS, RETRY, SUSPENSION_KINDS, Calls
from rulvar.core.journal.entries import HASH_WINDOW
from rulvar.core.wire import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rulvar.core.journal.entries import JournalEntry

__all__ = [
    "CALL_KINDS",
    "RUN_CANCEL",
    "RUN_SETTLE",
    "RUN_START",
    "SUSPENSION_KINDS",
    "Settle",
    "Start",
    "cancel_begun",
    "check_window",
    "deadline_of",
    "hash_versions",
    "last_settle",
    "open_children",
    "open_suspensions",
    "run_start",
    "works_after",
]

RUN_START = "run_start"
RUN_SETTLE = "run_settle"
RUN_CANCEL = "run_cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run began."""

    seq: int
    workflow: str
    genesis: str
    args_provided: bool
    args: object
    args_hash: str | None
    workflow_hash: str | None
    parent_run_id: str | None
    parent_genesis: str | None
    started_at: str | None
    workflow_version: str | None = None
    limits_recoveries: bool = False
    """Whether whoever started it said how often it may be recovered."""
    max_recoveries: int | None = None
    deadline_ms: int | None = None
    """How long the run may take, in milliseconds, from its begin or its last retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """How a segment ended, as it was journalled."""

    seq: int
    status: str
    segment: int | None
    value: object
    error: Mapping[str, object] | None
    settled_at: str | None
    has_value: bool = True
    """Whether the journal keeps the result; the other engine's does not."""
    failed: tuple[int, ...] = ()
    """The seqs of the calls whose errors ended the run: what a retry makes again."""


def _decision(entry: JournalEntry, kind: str) -> dict[str, object] | None:
    value = entry.value
    if entry.kind == "decision" and isinstance(value, dict) and value.get("decisionType") == kind:
        return value
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _seqs(value: object) -> tuple[int, ...]:
    return tuple(seq for seq in value if isinstance(seq, int)) if isinstance(value, list) else ()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def run_start(entries: Iterable[JournalEntry]) -> Start | None:
    """Return how the run began, or None when it never did."""
    for entry in entries:
        value = _decision(entry, RUN_START)
        if value is not None:
            return Start(
                seq=entry.seq,
                workflow=_text(value.get("workflow")) or "",
                genesis=_text(value.get("genesis")) or "",
                args_provided=value.get("argsProvided") is True,
                args=value.get("args"),
                args_hash=_text(value.get("argsHash")),
                workflow_hash=_text(value.get("workflowHash")),
                parent_run_id=_text(value.get("parentRunId")),
                parent_genesis=_text(value.get("parentGenesis")),
                started_at=entry.started_at,
                workflow_version=_text(value.get("workflowVersion")),
                limits_recoveries="maxRecoveries" in value,
                max_recoveries=_count(value.get("maxRecoveries")),
                deadline_ms=_count(value.get("deadlineMs")),
            )
    return None


def deadline_of(start: Start | None, entries: Iterable[JournalEntry]) -> str | None:
    """Return when a run is to be over; its time counts from its begin, or its last retry."""
    if start is None or start.deadline_ms is None or start.started_at is None:
        return None
    since = start.started_at
    for entry in entries:
        if _decision(entry, RETRY) is not None and entry.ended_at is not None:
            since = entry.ended_at
    return format_time(parse_time(since) + start.deadline_ms)


def last_settle(entries: Sequence[JournalEntry]) -> Settle | None:
    """Return the last journalled settle, or None when there is none."""
    for entry in reversed(entries):
        value = _decision(entry, RUN_SETTLE)
        if value is not None:
            segment = value.get("segment")
            return Settle(
                seq=entry.seq,
                status=_text(value.get("runStatus")) or "",
                segment=segment if isinstance(segment, int) else None,
                value=value.get("result"),
                error=entry.error,
                settled_at=entry.ended_at,
                has_value="result" in value,
                failed=_seqs(value.get("failed")),
            )
    return None


def cancel_begun(entries: Sequence[JournalEntry]) -> bool:
    """Whether a cancellation was begun after the last settle: the run's children went first."""
    for entry in reversed(entries):
        if _decision(entry, RUN_SETTLE) is not None:
            return False
        if _decision(entry, RUN_CANCEL) is not None:
            return True
    return False


def works_after(entries: Iterable[JournalEntry], seq: int) -> bool:
    """Whether calls of a body were begun or answered, or a retry was asked for, after ``seq``."""
    later = (entry for entry in entries if entry.seq > seq)
    return any(
        entry.ref is not None or entry.kind in CALL_KINDS or _decision(entry, RETRY) is not None
        for entry in later
    )


def open_suspensions(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Return the suspensions that nothing has ended yet, in their order."""
    return [e for e in _open_calls(entries) if e.kind in SUSPENSION_KINDS]


def open_children(run_id: str, entries: Iterable[JournalEntry]) -> list[str]:
    """Return the run ids of the children whose calls nothing has ended yet."""
    return [f"{run_id}.{e.seq}" for e in _open_calls(entries) if e.kind == "child"]


def _open_calls(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    states = Calls.of(entries).by_seq.values()
    return [state.opening for state in states if state.is_open]


def hash_versions(entries: Iterable[JournalEntry]) -> tuple[int, ...]:
    """Return the distinct hash versions in a journal, lowest first."""
    return tuple(sorted({entry.hash_version for entry in entries}))


def check_window(run_id: str, entries: Iterable[JournalEntry]) -> None:
    """Refuse a journal that another generation of the engine wrote.

    Checked at every acquire, before any append. Raises `JournalCompatibilityError`.
    """
    low, high = HASH_WINDOW
    found = tuple(version for version in hash_versions(entries) if not low <= version <= high)
    if found:
        shown = ", ".join(map(str, found))
        message = (
            f"run {run_id!r}: its journal has entries of hash version {shown}; this library "
            f"continues {low} to {high} only: use the version that wrote it; nothing was appended"
        )
        raise JournalCompatibilityError(message, run_id=run_id, found=found, window=HASH_WINDOW)
