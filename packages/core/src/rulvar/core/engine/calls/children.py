"""Performing a child: a separate run, started by its parent and answered in the parent's journal.

Its id is ``<parent>.<dispatch seq>``, and its dispatch is journalled under the parent's lease
before it exists. It has a journal, a row and a separate lease; its outcome is copied
into the parent's journal as the answer to the dispatch. While it lives here its segment is
the parent's to end: a parent that ends lets it go, and one that is cancelled journals that and
then cancels it. Workers adopt a child only when its parent is over (`sweep`).
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.checks import check_run_id
from rulvar.core.engine.kernel.arguments import NO_ARGS
from rulvar.core.engine.kernel.outcome import Failure
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.segment.blocks import restarted
from rulvar.core.engine.segment.scope import unwrap
from rulvar.core.errors import (
    ConfigError,
    JournalCompatibilityError,
    LeaseHeldError,
    NonDeterminismError,
    RunCancelledError,
    StoreBusyError,
    StoreCorruptError,
    SupersededError,
)
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.kernel.outcome import RunOutcome
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.runtime import ChildHandle
    from rulvar.core.engine.segment.scope import Opened, Scope
    from rulvar.core.errors import RulvarError
    from rulvar.core.journal import JournalEntry

__all__ = ["Plan", "check_parent", "child"]

_POLL_SECONDS = 0.25
"""How often a parked parent looks at its child's row while other tasks keep it alive."""

_CANNOT_CONTINUE = (
    ConfigError,
    JournalCompatibilityError,
    NonDeterminismError,
    StoreCorruptError,
)
"""What keeps the present code from a child: its version, its text, its way, or its journal."""


def check_parent(run_id: str) -> None:
    """Refuse a parent whose id leaves no room for its children's. Raises `ConfigError`."""
    try:
        check_run_id(f"{run_id}.{2**53 - 1}")
    except ConfigError as error:
        message = (
            f"run {run_id!r} cannot have children: the id of a child is its parent's and a "
            "number, at most 200 code points together; start the parent under a shorter run_id"
        )
        raise ConfigError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one call of `Context.child` asked for."""

    workflow: Workflow
    args: object
    args_provided: bool
    key: str | None = None
    deadline_at: str | None = None
    seconds: float | None = None


async def child(scope: Scope, name: str, plan: Plan) -> object:
    """Return what the journal has, or run the child to its end; see `Context.child`."""
    segment = scope.segment
    opened = await scope.open(
        "child",
        name,
        value={"workflow": plan.workflow.name},
        args=plan.args if plan.args_provided else NO_ARGS,
        call_key=plan.key,
        deadline_at=plan.deadline_at,
    )
    if isinstance(opened, Answered):
        return unwrap(opened.answer, segment.run_id)
    opening = opened.entry
    child_id = f"{segment.run_id}.{opening.seq}"
    segment.emit("child.started", name=name, detail=child_id, seq=opening.seq)
    outcome = await _to_its_end(scope, opened, child_id, plan)
    failure = _late(name, child_id, plan) if outcome is None else _failure(outcome, name, child_id)
    value = None if outcome is None else outcome.value
    answer = await scope.answer(opening, value, failure=failure)
    if outcome is None:
        late = segment.children.get(child_id)
        if late is not None:
            late.detach()
            await _see_out(late)  # its lease is given back: it is cancelled under another
        segment.given_up_child(child_id)
    segment.emit("child.finished", name=name, detail=answer.status, seq=opening.seq)
    return unwrap(answer, segment.run_id)


async def _to_its_end(scope: Scope, opened: Opened, child_id: str, plan: Plan) -> RunOutcome | None:
    """Return the child's outcome; None when its time limit came first."""

    async def until_it_ends() -> RunOutcome:
        while True:
            await scope.wait_if_draining()
            outcome = await _execute(scope.segment, opened, child_id, plan)
            if outcome is not None and outcome.status not in {"suspended", "running"}:
                return outcome
            await _wait_for_change(scope.segment, opened.entry, child_id, outcome)

    deadline_at = restarted(opened.entry, opened.retried)
    if deadline_at is None:
        return await until_it_ends()
    task = await scope.segment.scheduler.within(deadline_at, until_it_ends())
    return None if task is None else task.result()


async def _execute(
    segment: Segment, opened: Opened, child_id: str, plan: Plan
) -> RunOutcome | None:
    """Run one segment of the child; None when another owner has it just now.

    What is wrong with the stores is no outcome of the child: it ends the parent's segment,
    and both can be resumed.
    """
    try:
        handle = segment.runtime.launch(
            child_id,
            plan.workflow,
            plan.args,
            args_provided=plan.args_provided,
            parent=(segment.run_id, segment.genesis),
            retried_by=None if opened.retried is None else opened.retried.seq,
        )
    except LeaseHeldError:
        return None
    segment.children[child_id] = handle
    try:
        return await handle.result()
    except asyncio.CancelledError:
        handle.detach()  # the segment has ended, or the body has given this call up
        await _see_out(handle)
        raise
    except (LeaseHeldError, SupersededError, StoreBusyError):
        return None
    except _CANNOT_CONTINUE as error:
        segment.block(
            _of_child(error, opened.entry.key, child_id)
        )  # the parent cannot go on without it
        await segment.scheduler.stand_still()
        raise
    except Exception as error:
        segment.fail(error)
        await segment.loop.create_future()  # cancelled with the body
        raise
    finally:
        segment.children.pop(child_id, None)


def _of_child(error: RulvarError, name: str | None, child_id: str) -> RulvarError:
    named = copy(error)
    named.args = (f"child {name!r} (run {child_id!r}): {error}",)
    return named


async def _see_out(handle: ChildHandle) -> None:
    """Wait for the child's segment to end, however often the body is cancelled meanwhile."""
    while not handle.done:
        try:
            await handle.wait()
        except asyncio.CancelledError:
            continue


async def _wait_for_change(
    segment: Segment, opening: JournalEntry, child_id: str, outcome: RunOutcome | None
) -> None:
    """Wait until the child is worth another segment; a suspended child parks this task."""
    if outcome is None:
        await asyncio.sleep(_POLL_SECONDS)  # held by somebody: a predecessor's, perhaps
        return
    segment.scheduler.waits[opening.seq] = outcome.wake_at
    segment.scheduler.rests()
    try:
        due = False
        while not due:
            # The row may be written by any process: there is nothing to wait on but time.
            await asyncio.sleep(_POLL_SECONDS)
            due = await segment.store.call(lambda: _is_due(segment, child_id))
    finally:
        segment.scheduler.begins()
        del segment.scheduler.waits[opening.seq]


def _is_due(segment: Segment, child_id: str) -> bool:
    meta = segment.runtime.reads.meta(child_id)
    if meta is None or meta.status != "suspended":
        return True
    return meta.wake_at is not None and parse_time(meta.wake_at) <= segment.runtime.clock.now_ms()


def _late(name: str, child_id: str, plan: Plan) -> Failure:
    return Failure(
        code="step-failed",
        message=f"child {name!r} (run {child_id!r}) took longer than {plan.seconds:g} s",
        error_type=TimeoutError.__name__,
        step=name,
    )


def _failure(outcome: RunOutcome, name: str, child_id: str) -> Failure | None:
    if outcome.status == "ok":
        return None
    if outcome.status == "cancelled":
        return Failure(
            code="step-failed",
            message=f"child {name!r} (run {child_id!r}) was cancelled",
            error_type=RunCancelledError.__name__,
            step=name,
        )
    if outcome.error is not None:
        return Failure(
            code="step-failed",
            message=f"child {name!r} (run {child_id!r}) failed: {outcome.error.message}",
            error_type=outcome.error.error_type,
            step=name,
        )
    return Failure(
        code="step-failed",
        message=f"child {name!r} (run {child_id!r}) ended as {outcome.status}",
        error_type=outcome.status,
        step=name,
    )
