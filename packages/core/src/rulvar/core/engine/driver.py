"""One segment from acquire to release: the loop that performs what the kernel decides.

acquire, begin, body, settle, release; each of the four store parts is one call across the
bridge. What is raised and what is returned: a journalled outcome is returned, a segment
that could not give one raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine.admin.run_admin import cancel, cancel_children
from rulvar.core.engine.calls.context import Context
from rulvar.core.engine.code.afterlife import abandon, burial
from rulvar.core.engine.code.calling import UserCode
from rulvar.core.engine.code.raised import failure_of, raised_at
from rulvar.core.engine.kernel.endings import Ending, SegmentEnded
from rulvar.core.engine.kernel.failed_calls import calls_of
from rulvar.core.engine.kernel.outcome import RunOutcome, Suspension, run_timeout
from rulvar.core.engine.kernel.replay import unknown_entry
from rulvar.core.engine.lease.ownership import ExternalLease, OwnedLease
from rulvar.core.engine.segment.begin import BegunSegment, BeingCancelled, begin_segment
from rulvar.core.engine.segment.blocking import blocked_by
from rulvar.core.engine.segment.culprits import watch_code
from rulvar.core.engine.segment.lifecycle import CURRENT, Segment
from rulvar.core.engine.segment.scope import Scope
from rulvar.core.errors import (
    RunCancelledError,
    SettlementError,
    StoreCorruptError,
    StoreError,
    SupersededError,
)
from rulvar.core.journal.drafts import decision_draft
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.values import normalize
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.core.engine.kernel.outcome import Failure
    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.begin import Resume, StartNew
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.errors import RulvarError
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta

__all__ = ["drive"]

_log = logging.getLogger("rulvar.engine")

_CANCEL_EVERY_SECONDS = 1.0
_CANCEL_TRIES = 3
"""Long enough to clean up, short enough to hand the run over: a body has had its grace before."""


async def drive(
    runtime: Runtime,
    ownership: Ownership,
    request: StartNew | Resume,
    *,
    on_live: Callable[[Segment], None],
) -> RunOutcome:
    """Execute one segment of the owned run; the caller gives the ownership back.

    ``on_live`` gets the segment once it has begun. Raises `SupersededError` when the run was
    lost, `SettlementError` when its outcome could not be recorded, `RunCancelledError` when
    it was deleted from the inside, and the error of a failed append.
    """
    writer = runtime.writer(ownership.run_id, ownership)
    begun_segment = await _begin_segment(runtime, writer, ownership, request)
    if isinstance(begun_segment, RunOutcome):
        return begun_segment
    if isinstance(begun_segment, BeingCancelled):
        return await runtime.bridge.call(partial(cancel, runtime, writer))
    segment = Segment(
        runtime,
        run_id=ownership.run_id,
        number=begun_segment.number,
        writer=writer,
        replay=begun_segment.replay,
    )
    segment.attempts.update(begun_segment.attempts)
    watch_code(segment)
    on_live(segment)
    writer.emit = segment.emit
    if isinstance(ownership, ExternalLease):
        ownership.on_loss = segment.lose
    if isinstance(ownership, OwnedLease):
        ownership.emit = segment.emit
        ownership.on_loss = segment.lose
        ownership.on_reacquired = segment.reacquired
        if ownership.lost is not None:
            segment.lose(ownership.lost)
    kind = "run.resumed" if begun_segment.resumed else "run.started"
    detail = "takeover" if begun_segment.unsettled else ""
    segment.emit(kind, name=begun_segment.workflow.name, epoch=segment.writer.epoch, detail=detail)
    _watch_deadline(segment, begun_segment)
    unknown = begun_segment.replay.calls.unknown
    if unknown is not None:
        segment.block(unknown_entry(unknown))
        segment.end(Ending.BLOCKED)
    result = await _run_body(segment, begun_segment)
    return await _conclude(segment, begun_segment, result)


async def _begin_segment(
    runtime: Runtime, writer: RunWriter, ownership: Ownership, request: StartNew | Resume
) -> BegunSegment | BeingCancelled | RunOutcome:
    predecessor = ownership.predecessor if isinstance(ownership, OwnedLease) else None
    begin = partial(begin_segment, runtime, writer, request, predecessor=predecessor)
    begun: list[object] = []
    try:
        return await runtime.bridge.call(begin, then=begun.append)
    except asyncio.CancelledError:
        if any(isinstance(each, BegunSegment) for each in begun):
            # It has begun, and no body was entered: that is no death.
            await runtime.bridge.call(partial(_in_order, runtime, writer))
        raise
    except StoreCorruptError as error:
        await runtime.bridge.call(partial(_record_damage, runtime, writer, error))
        raise


def _record_damage(runtime: Runtime, writer: RunWriter, error: StoreCorruptError) -> None:
    """Say in the row that the journal is damaged, where that is possible: workers pass it over.

    The row keeps its status. After a repair whoever resumes the run clears it.
    """
    try:
        row = runtime.reads.meta(writer.run_id)
        workflow = None if row is None else runtime.workflows.get(row.workflow_name or "")
        if row is None or workflow is None or row.status in TERMINAL_STATUSES:
            return
        now = format_time(runtime.clock.now_ms())
        writer.put_meta(replace(row, blocked=blocked_by(row, error, runtime.code(workflow), now)))
    except (StoreError, SupersededError) as failed:
        _log.warning("run %r: its row does not say that it is damaged: %s", writer.run_id, failed)


def _in_order(runtime: Runtime, writer: RunWriter) -> None:
    """Say in the row that the segment ended in order, where that is possible."""
    try:
        writer.detach("it was asked to stop", format_time(runtime.clock.now_ms()))
    except StoreError as error:
        _log.warning(
            "run %r: its row could not say that it was handed back in order, so the next segment "
            "will count this one as dead: %s",
            writer.run_id,
            error,
        )


def _watch_deadline(segment: Segment, begun_segment: BegunSegment) -> None:
    """End the segment when the run's own deadline comes, by the engine's clock."""
    segment.deadline_at = begun_segment.deadline_at

    def look() -> None:
        at = segment.deadline_at
        if at is None or segment.has_ended:
            return
        if segment.scheduler.is_past(at):
            segment.end(Ending.TIMED_OUT)
        else:
            segment.scheduler.look_soon()
            segment.loop.call_later(segment.scheduler.nap_until(at), look)

    look()


class _Result:
    """What the body came to, if it came to anything."""

    def __init__(
        self,
        value: object = None,
        failure: Failure | None = None,
        place: str = "",
        failed: Sequence[int] = (),
    ) -> None:
        self.value = value
        self.failure = failure
        self.place = place
        self.failed = failed


async def _run_body(segment: Segment, begun_segment: BegunSegment) -> _Result:
    async def body() -> object:
        CURRENT.set(segment)
        with UserCode(lambda: segment.has_ended):
            segment.check()
            scope = Scope(segment)
            scope.belongs_to_this_task()
            try:
                value = await begun_segment.workflow.call(
                    Context(scope), provided=begun_segment.args_provided, args=begun_segment.args
                )
                scope.check_awaited()
            except Exception:
                await scope.must_be_whole()
                raise
            await scope.must_be_whole()
            return normalize(value, path="$.result")

    task = segment.body = asyncio.create_task(body(), name=f"rulvar:{segment.run_id}")
    if segment.ending is not None:
        task.cancel()
    await _until_done(segment, task)
    if not task.done():
        segment.body = None
        _log.warning(
            "run %r: its body continues although the segment has ended (it catches SegmentEnded or "
            "the cancellation, as a bare `except:` does); the segment ends without it, and it "
            "can write nothing any more",
            segment.run_id,
        )
        if not segment.left_behind.done():
            abandon(task)
        with burial():
            del task
        return _Result()
    if task.cancelled():
        segment.end(Ending.FINISHED)
        return _Result(failure=failure_of(asyncio.CancelledError("the body cancelled itself")))
    error = task.exception()
    if error is None:
        segment.end(Ending.FINISHED)
        return _Result(value=task.result())
    if not isinstance(error, Exception | SegmentEnded):
        segment.stop()  # a signal has interrupted it: whoever runs the loop was told
        return _Result()
    segment.end(Ending.FINISHED)
    failure = failure_of(error)
    _log.info("run %r: its body raised\n%s", segment.run_id, failure.traceback)
    place = raised_at(error, begun_segment.workflow.body)
    return _Result(failure=failure, place=place, failed=calls_of(error))


async def _until_done(segment: Segment, task: asyncio.Task[object]) -> None:
    """Wait for the body; once the segment has ended, and cancelled it, again until it obeys.

    Returns at once when it has stayed behind for good, and in the end whatever it does.
    """
    tries = 1
    while not task.done() and not segment.left_behind.done() and tries <= _CANCEL_TRIES:
        either: set[asyncio.Future[object]] = {task, segment.left_behind}
        try:
            if segment.ending is None:
                either.add(segment.over)
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                continue
            await asyncio.wait(
                either, timeout=_CANCEL_EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done() and not segment.left_behind.done():
                tries += 1
                task.cancel()
        except asyncio.CancelledError:
            # Whoever drives this segment is cancelled: let the run go, it stays resumable.
            segment.stop()


async def _conclude(segment: Segment, begun_segment: BegunSegment, result: _Result) -> RunOutcome:
    await _journal_what_is_owed(segment)
    await _raise_what_failed(segment)
    ending = segment.ending
    if ending is Ending.DELETED:
        raise _deleted(segment)
    if ending is Ending.BLOCKED and segment.blocked is not None:
        await segment.store.call(partial(_record_block, segment, begun_segment, segment.blocked))
        raise segment.blocked
    if ending is Ending.STOPPED:
        if segment.fatal is None:
            await segment.store.call(partial(_in_order, segment.runtime, segment.writer))
        else:
            _log.error("run %r: its code %s: that is a death", segment.run_id, segment.fatal)
        return _outcome(segment, "running", _Result())
    if ending is Ending.SUSPENDED:
        return await _settle(segment, begun_segment, "suspended", _Result())
    if ending in {Ending.CANCELLED, Ending.TIMED_OUT}:
        await segment.store.call(partial(cancel_children, segment.runtime, segment.writer))
        if ending is Ending.CANCELLED:
            return await _settle(segment, begun_segment, "cancelled", _Result())
        result = _Result(failure=run_timeout(segment.deadline_at))
    status = "ok" if result.failure is None else "error"
    return await _settle(segment, begun_segment, status, result)


async def _journal_what_is_owed(segment: Segment) -> None:
    """Journal what the body gave up last, and wait for what is still being done for it."""
    if segment.lost is None and segment.writer.failure is None and segment.failure is None:
        with contextlib.suppress(SegmentEnded):  # told by its cause
            await segment.frames.flush(after_end=True)
            await segment.scheduler.finish_work()


async def _raise_what_failed(segment: Segment) -> None:
    """Raise the loss of the run, or the error that ended the segment without an outcome."""
    if segment.lost is not None:
        raise segment.lost
    failed = segment.writer.failure
    if failed is None or isinstance(failed, SegmentEnded):
        failed = segment.failure
    if failed is None:
        return
    if isinstance(failed, Exception):
        with contextlib.suppress(SupersededError):
            await segment.store.call(partial(_in_order, segment.runtime, segment.writer))
    raise failed


def _record_block(segment: Segment, begun_segment: BegunSegment, error: RulvarError) -> None:
    """Say in the row why this code cannot go on, and let the run go in order.

    The run is what it was: one that waited for something is suspended as before.
    """
    writer, now = segment.writer, format_time(segment.runtime.clock.now_ms())
    blocked = blocked_by(writer.meta, error, segment.runtime.code(begun_segment.workflow), now)
    segment.emit("run.blocked", name=begun_segment.workflow.name, detail=blocked.reason)
    before = begun_segment.before
    waits = before is not None and before.status == "suspended"
    writer.detach(
        "its journal cannot be replayed by this code",
        now,
        blocked=blocked,
        waits=waits,
        wake_at=before.wake_at if before is not None else None,
    )


def _deleted(segment: Segment) -> RunCancelledError:
    message = f"run {segment.run_id!r} was deleted from the inside"
    return RunCancelledError(message, run_id=segment.run_id)


async def _settle(
    segment: Segment, begun_segment: BegunSegment, status: str, result: _Result
) -> RunOutcome:
    try:
        await segment.store.call(partial(_record, segment, begun_segment, status, result))
    except SupersededError:
        raise
    except SegmentEnded:
        raise _deleted(segment) from None
    except Exception as error:
        message = (
            f"run {segment.run_id!r} ended as {status!r} but that could not be recorded: {error}; "
            "resume the run to settle it"
        )
        raise SettlementError(message, run_id=segment.run_id) from error
    segment.emit("run.settled", name=status, epoch=segment.writer.epoch, detail=result.place)
    return _outcome(segment, status, result)


def _record(segment: Segment, begun_segment: BegunSegment, status: str, result: _Result) -> None:
    """Append the settle if anything changed, then the row: a crash leaves the row behind."""
    writer: RunWriter = segment.writer
    now = format_time(segment.runtime.clock.now_ms())
    same = begun_segment.last is not None and begun_segment.last.status == status
    changed = writer.appended > 0 or not same or begun_segment.grown
    draft = _settle_entry(segment, status, result, now) if changed else None
    writer.settle(draft, _settled_row(segment, writer.meta, status, now))


def _settle_entry(segment: Segment, status: str, result: _Result, now: str) -> JournalEntry:
    facts: dict[str, object] = {
        "decisionType": "run_settle",
        "runStatus": status,
        "segment": segment.number,
    }
    if status == "ok":
        facts["result"] = result.value
    if result.failed:
        facts["failed"] = list(result.failed)
    error = None if result.failure is None else result.failure.to_json()
    return decision_draft(facts, now=now, error=error)


def _settled_row(segment: Segment, meta: RunMeta | None, status: str, now: str) -> RunMeta:
    if meta is None:
        message = f"run {segment.run_id!r} settles without a row"
        raise AssertionError(message)
    over = status in TERMINAL_STATUSES
    return replace(
        meta,
        status=status,
        updated_at=now,
        wake_at=segment.scheduler.wake_at if status == "suspended" else None,
        recoveries=0 if over else meta.recoveries,
        blocked=None,
    )


def _outcome(segment: Segment, status: str, result: _Result) -> RunOutcome:
    waiting: tuple[Suspension, ...] = ()
    if status == "suspended":
        waiting = tuple(
            Suspension(kind=e.kind, key=e.key, deadline_at=e.deadline_at, seq=e.seq)
            for e in segment.replay.waiting()
        )
    return RunOutcome(
        run_id=segment.run_id,
        status=status,
        value=result.value if status == "ok" else None,
        error=result.failure if status == "error" else None,
        segment=segment.number,
        epoch=segment.writer.epoch,
        executed=segment.executed,
        replayed=segment.replayed,
        waiting_for=waiting,
        wake_at=segment.scheduler.wake_at if status == "suspended" else None,
    )
