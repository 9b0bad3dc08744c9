"""Performing a ``parallel``: branches side by side, each a strand with a scope of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from rulvar.core.engine.control import SegmentEnded
from rulvar.core.engine.outcome import one_line
from rulvar.core.engine.scope import Scope
from rulvar.core.engine.usercode import UserCode, original

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rulvar.core.engine.segment import Segment

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
    ordinal = segment.replay.take_ordinal(scope.path, f"parallel:{name}")
    path = f"{scope.path}/{quote(name, safe='')}#{ordinal}"
    places = min(limit or len(branches), len(branches))
    gate = asyncio.Semaphore(max(1, places))
    left = len(branches)

    def strand_ended(_task: asyncio.Task[T]) -> None:
        # One that ends hands its place to one that waits at the gate, and the last one to
        # the body: at no moment does a run look idle that is about to go on.
        nonlocal left
        left -= 1
        if 0 < left < places:
            segment.strand_rests()

    tasks: list[asyncio.Task[T]] = []
    for index, branch in enumerate(branches):
        if index < places:
            segment.strand_begins()
        inner = Scope(segment, f"{path}[{index}]")
        task = asyncio.create_task(_strand(inner, branch, gate))
        task.add_done_callback(strand_ended)
        tasks.append(task)
    if tasks:
        await _join(segment, tasks)
    return _results(tasks)


async def _strand(
    scope: Scope, branch: Callable[[Scope], Awaitable[T]], gate: asyncio.Semaphore
) -> T:
    async with gate:
        scope.segment.check()
        with UserCode(lambda: scope.segment.has_ended):
            return await branch(scope)


async def _join(segment: Segment, tasks: list[asyncio.Task[T]]) -> None:
    segment.strand_rests()
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def _results(tasks: list[asyncio.Task[T]]) -> list[T]:
    ended = [None if task.cancelled() else task.exception() for task in tasks]
    failures = [original(error) for error in ended if error is not None]
    for failure in failures:
        if isinstance(failure, SegmentEnded):
            raise failure
    if failures:
        first = failures[0]
        for other in failures[1:]:
            first.add_note(f"another branch failed too: {one_line(other)}")
        raise first
    return [task.result() for task in tasks]
