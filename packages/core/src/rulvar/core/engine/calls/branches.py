"""Performing a ``parallel``: branches side by side, each a task with a scope inside it.

The call's opening names the number of its branches, its answer says that all have ended, and
names the calls that failed in them. A replay runs the branches again, over their journal; a
branch that has not asked for all of it at its end has taken another way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.engine.code.calling import UserCode, original
from rulvar.core.engine.code.raised import one_line
from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.engine.kernel.failed_calls import calls_of
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.segment.scope import Scope
from rulvar.core.journal import GIVEN_UP, branch_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rulvar.core.engine.segment.lifecycle import Segment

__all__ = ["parallel"]

T = TypeVar("T")


async def parallel(
    scope: Scope,
    name: str,
    branches: Sequence[Callable[[Scope], Awaitable[T]]],
    limit: int | None,
) -> list[T]:
    """Run every branch and return their results; see `Context.parallel`."""
    segment = scope.segment
    opened = await scope.open(
        "parallel", name, value={"branches": len(branches)}, branches=len(branches)
    )
    opening = opened.opening if isinstance(opened, Answered) else opened.entry
    tasks = _begin(scope, opening.key, opening.ordinal, branches, limit)
    if tasks:
        await _join(segment, tasks)
    if isinstance(opened, Answered):
        if opened.answer.ref != opening.seq or opened.answer.kind == GIVEN_UP:
            frame = segment.frames.of(scope.path)
            await segment.frames.wait_until_given_up(frame, opened.answer)
        return _results(tasks)
    failures = _failures(tasks)
    if not any(isinstance(failure, SegmentEnded) for failure in failures):
        failed = [seq for failure in failures for seq in calls_of(failure)]
        status = "error" if failures else "ok"
        await scope.answer(opening, {"failed": failed} if failed else None, status=status)
    return _results(tasks)


def _begin(
    scope: Scope,
    name: str,
    ordinal: int,
    branches: Sequence[Callable[[Scope], Awaitable[T]]],
    limit: int | None,
) -> list[asyncio.Task[T]]:
    segment = scope.segment
    places = min(limit or len(branches), len(branches))
    gate = asyncio.Semaphore(max(1, places))
    left = len(branches)

    def strand_ended(_task: asyncio.Task[T]) -> None:
        # One that ends hands its place to one that waits at the gate, and the last one to
        # the body: at no moment does a run look idle that is about to go on.
        nonlocal left
        left -= 1
        if 0 < left < places:
            segment.scheduler.rests()

    tasks: list[asyncio.Task[T]] = []
    for index, branch in enumerate(branches):
        if index < places:
            segment.scheduler.begins()
        inner = Scope(segment, branch_scope(scope.path, name, ordinal, index), around=scope)
        task = asyncio.create_task(_branch_task(inner, branch, gate))
        task.add_done_callback(strand_ended)
        tasks.append(task)
    return tasks


async def _branch_task(
    scope: Scope, branch: Callable[[Scope], Awaitable[T]], gate: asyncio.Semaphore
) -> T:
    segment = scope.segment
    scope.belongs_to_this_task()
    async with gate:
        segment.check()
        try:
            with UserCode(lambda: segment.has_ended):
                result = await branch(scope)
                scope.check_awaited()
        except Exception:
            await scope.must_be_whole()
            raise
        await scope.must_be_whole()
        return result


async def _join(segment: Segment, tasks: list[asyncio.Task[T]]) -> None:
    segment.scheduler.rests()
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def _failures(tasks: list[asyncio.Task[T]]) -> list[BaseException]:
    ended = [None if task.cancelled() else task.exception() for task in tasks]
    return [original(error) for error in ended if error is not None]


def _results(tasks: list[asyncio.Task[T]]) -> list[T]:
    failures = _failures(tasks)
    for failure in failures:
        if isinstance(failure, SegmentEnded):
            raise failure
    if failures:
        first = failures[0]
        for other in failures[1:]:
            first.add_note(f"another branch failed too: {one_line(other)}")
        raise first
    return [task.result() for task in tasks]
