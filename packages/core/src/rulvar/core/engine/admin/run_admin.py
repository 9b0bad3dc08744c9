"""What an engine does to a run that is not live here: each under one brief lease.

A brief lease taken while an owner sleeps ends that owner: that is what the fence is for.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.engine.io.ancestors import check_no_unfinished_parent
from rulvar.core.engine.kernel.outcome import RunOutcome
from rulvar.core.engine.kernel.run_retries import RETRIED_STATUSES
from rulvar.core.engine.kernel.schemas import answered_already, check_resolution, choose_wait
from rulvar.core.engine.lease.ownership import NoLease
from rulvar.core.engine.segment.begin import over, read_run, reopen
from rulvar.core.engine.segment.requests import child_is_live
from rulvar.core.errors import (
    ConfigError,
    InvalidResolutionError,
    LeaseHeldError,
    StoreCorruptError,
    StoreError,
)
from rulvar.core.journal import (
    RUN_CANCEL,
    RUN_SETTLE,
    cancel_begun,
    decode_entry,
    open_children,
    open_suspensions,
    read_journal,
    run_start,
)
from rulvar.core.journal.drafts import answer_draft, decision_draft
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.begin import RunState
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.journal import (
        JournalEntry,
    )
    from rulvar.core.records import JournalRecord

__all__ = [
    "cancel",
    "cancel_child",
    "delete",
    "reopen_run",
    "resolve",
    "retry",
    "with_short_lease",
    "would_reopen",
]

T = TypeVar("T")

_log = logging.getLogger("rulvar.engine")


def with_short_lease(
    runtime: Runtime,
    take: Callable[[], Ownership],
    act: Callable[[Runtime, RunWriter], T],
) -> T:
    """Take a run, act under that lease, give it back.

    Raises `LeaseHeldError` (``held``) while it is held, and what ``act`` raises.
    """
    ownership = take()
    try:
        return act(runtime, runtime.writer(ownership.run_id, ownership))
    finally:
        try:
            runtime.give_back(ownership)
        except StoreError as error:
            # What was done stands; the lease runs out by itself.
            _log.warning("run %r: its lease could not be released: %s", ownership.run_id, error)


def _begun(writer: RunWriter) -> RunState:
    state = read_run(writer)
    if state.start is None:
        message = f"run {writer.run_id!r} is not in this store, or never began: check the id"
        raise ConfigError(message)
    return state


def cancel(runtime: Runtime, writer: RunWriter) -> RunOutcome:
    """Settle the run as ``cancelled``, or return the outcome that it has already.

    As a resume does, it repairs the row of a run that is over, where that lags.
    """
    state = _begun(writer)
    if state.outcome is not None:
        return over(runtime, writer, state, state.outcome)
    if state.meta is None:
        message = f"run {writer.run_id!r} has a journal and no row: resume it, then cancel it"
        raise ConfigError(message)
    cancel_children(runtime, writer)
    now, number = format_time(runtime.clock.now_ms()), state.meta.segments or 0
    draft = _decision(RUN_SETTLE, now, runStatus="cancelled", segment=number)
    writer.settle(draft, replace(state.meta, status="cancelled", updated_at=now, wake_at=None))
    return RunOutcome(run_id=writer.run_id, status="cancelled", segment=number, epoch=writer.epoch)


def cancel_children(runtime: Runtime, writer: RunWriter) -> None:
    """Cancel the children that the run waits for; before the run itself is settled.

    That it was begun is journalled first, while the first child is held: from then on the
    run can only be cancelled, and whoever resumes it after a crash does that. Raises
    `LeaseHeldError` (``held``) for a child that another process works on; where that is the
    first one, nothing has changed.
    """
    run_id = writer.run_id
    entries = read_journal(run_id, runtime.reads.load(run_id))
    start = run_start(entries)
    begun = cancel_begun(entries)

    def begin() -> None:
        nonlocal begun
        if not begun:
            writer.append(_decision(RUN_CANCEL, format_time(runtime.clock.now_ms())))
            begun = True

    for child_id in open_children(run_id, entries):
        # Looked at under its lease: a predecessor may be about to begin it.
        parent = (run_id, start.genesis if start else None)
        act = partial(_cancel_child, parent=parent, begin=begin)
        with_short_lease(runtime, partial(runtime.own, child_id), act)


def _decision(kind: str, now: str, **facts: object) -> JournalEntry:
    return decision_draft({"decisionType": kind} | facts, now=now)


def retry(runtime: Runtime, writer: RunWriter) -> RunOutcome | None:
    """Reopen a run that failed, without executing it; None when it is reopened.

    The row says so, and workers continue the run. Returns the outcome of a run that did
    not fail, and changes nothing then. Raises `ConfigError` for a child whose parent has not
    ended.
    """
    state = _begun(writer)
    outcome = state.outcome
    if outcome is not None and outcome.status not in RETRIED_STATUSES:
        return over(runtime, writer, state, outcome)
    if outcome is None and not _row_lags(state):
        return RunOutcome(
            run_id=writer.run_id, status=state.meta.status if state.meta else "running"
        )
    if state.start is not None:
        check_no_unfinished_parent(runtime.reads, writer.run_id, state.start)
    if outcome is not None:
        reopen(runtime, writer, state, outcome)
    if state.meta is not None:
        now = format_time(runtime.clock.now_ms())
        row = replace(state.meta, status="suspended", updated_at=now, wake_at=now)
        writer.put_meta(replace(row, recoveries=0, blocked=None))
    return None


async def would_reopen(runtime: Runtime, run_id: str) -> tuple[bool, str]:
    """Return whether `reopen_run` would reopen a run now, and its status; change nothing.

    Raises as `reopen_run`.
    """
    return await runtime.bridge.call(partial(_would_reopen, runtime, run_id))


def _would_reopen(runtime: Runtime, run_id: str) -> tuple[bool, str]:
    held = runtime.reads.holder(run_id)
    if held is not None:
        raise LeaseHeldError(
            run_id=run_id,
            reason="held",
            holder=held.owner,
            epoch=held.epoch,
            expires_at=held.expires_at,
        )
    unowned = NoLease(run_id)
    state = _begun(runtime.writer(run_id, unowned))
    status = state.meta.status if state.meta else "running"
    if state.outcome is not None:
        status = state.outcome.status
    if status not in RETRIED_STATUSES or (state.outcome is None and not _row_lags(state)):
        return False, status
    if state.start is not None:
        check_no_unfinished_parent(runtime.reads, run_id, state.start)
    return True, status


def _row_lags(state: RunState) -> bool:
    """Whether a retry was journalled by somebody who died before its row said so."""
    row = state.meta
    return state.outcome is None and row is not None and row.status in RETRIED_STATUSES


async def reopen_run(runtime: Runtime, run_id: str) -> str | None:
    """Journal a retry without executing it: workers continue the run; no code is needed.

    Returns None when it is reopened, else the status of a run that did not fail. Raises
    `LeaseHeldError` (``held``) while another process has the run, and `ConfigError` for a
    child whose parent has not ended.
    """
    take = partial(runtime.own, run_id)
    outcome = await runtime.bridge.call(partial(with_short_lease, runtime, take, retry))
    return None if outcome is None else outcome.status


def cancel_child(runtime: Runtime, writer: RunWriter, *, parent: tuple[str, str | None]) -> None:
    """Cancel a child whose call its parent's body gave up; what is not that one is left alone."""
    _cancel_child(runtime, writer, parent=parent, begin=lambda: None)


def _cancel_child(
    runtime: Runtime,
    writer: RunWriter,
    *,
    parent: tuple[str, str | None],
    begin: Callable[[], None],
) -> None:
    """Cancel a child; clear away what is left of one that never began."""
    state = read_run(writer)
    if not state.records:
        writer.delete_run()
    elif state.start and (state.start.parent_run_id, state.start.parent_genesis) == parent:
        if state.outcome is None:
            begin()
        cancel(runtime, writer)


def resolve(
    runtime: Runtime,
    writer: RunWriter,
    *,
    key: str,
    value: object,
    seq: int | None = None,
) -> None:
    """Append a resolution, and mark the row so that a worker looks at the run again.

    ``seq`` is the opening's, where the caller means that one alone.
    """
    state = _begun(writer)
    run_id = writer.run_id
    answered = {entry.ref for entry in state.entries if entry.ref is not None}
    asked = [
        entry
        for entry in state.entries
        if (entry.kind, entry.key) == ("external", key) and seq in {None, entry.seq}
    ]
    if state.outcome is not None:
        if any(entry.seq in answered for entry in asked):
            raise answered_already(run_id, key, seq)
        message = f"run {run_id!r} is {state.outcome.status}: it waits for nothing"
        raise InvalidResolutionError(message, run_id=run_id, key=key)
    suspended = open_suspensions(state.entries)
    opening = choose_wait(run_id, key, seq, suspended, is_answered=lambda: bool(asked))
    check_resolution(opening, value, run_id=run_id)
    now = format_time(runtime.clock.now_ms())
    writer.append(answer_draft(opening, now=now, kind="resolution", value=value))
    if state.meta is not None and state.meta.status == "suspended":
        writer.put_meta(replace(state.meta, wake_at=now))


def delete(runtime: Runtime, writer: RunWriter) -> None:
    """Remove the run: blobs first, journal last; a landed delete has ended the lease.

    A parent with a live child is not deleted: `LeaseHeldError` (``held``) names the child.
    """
    check_no_live_child(runtime, writer.run_id)
    writer.delete_run()


def check_no_live_child(
    runtime: Runtime, run_id: str, records: Sequence[JournalRecord] | None = None
) -> None:
    """Refuse to take a run away from under a child that is being executed.

    ``records`` is its journal where that was read already.
    """
    try:
        records = runtime.reads.load(run_id) if records is None else records
    except StoreCorruptError:
        # A damaged run must be deletable too: its children tell who their parent is.
        children = [held for held in runtime.reads.live_leases() if held.startswith(f"{run_id}.")]
        for child_id in sorted(children):
            meta = runtime.reads.meta(child_id)
            if meta is not None and meta.parent_run_id == run_id:
                raise child_is_live(run_id, child_id) from None
        return
    for record in records:
        opened = _child_of(run_id, record)
        if opened is not None and runtime.reads.is_live(opened):
            raise child_is_live(run_id, opened)


def _child_of(run_id: str, record: JournalRecord) -> str | None:
    """Return the child that a record opened; one that cannot be read has opened none."""
    try:
        entry = decode_entry(run_id, 0, record)
    except StoreCorruptError:
        return None
    return f"{run_id}.{entry.seq}" if entry.kind == "child" and entry.ref is None else None
