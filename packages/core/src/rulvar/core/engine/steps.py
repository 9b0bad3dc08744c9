"""Performing a step: calling the function, trying again, journalling what it came to."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from rulvar.core.engine.replay import Answered
from rulvar.core.engine.scope import step_failure, unwrap
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.outcome import Failure
    from rulvar.core.engine.retry import RetryPolicy
    from rulvar.core.engine.scope import Opened, Scope
    from rulvar.core.engine.segment import Segment

__all__ = ["call", "step"]


async def step(
    scope: Scope,
    name: str,
    function: Callable[..., object],
    args: tuple[object, ...],
    retry: RetryPolicy,
) -> object:
    """Return what the journal has, or perform the step; see `Context.step`."""
    segment = scope.segment
    opened = await scope.open("step", name)
    if isinstance(opened, Answered):
        segment.tell("step.replayed", name=name, seq=opened.answer.ref)
        return unwrap(opened.answer, segment.run_id)
    return await _perform(scope, opened, function, args, retry)


async def _perform(
    scope: Scope,
    opened: Opened,
    function: Callable[..., object],
    args: tuple[object, ...],
    retry: RetryPolicy,
) -> object:
    segment, opening = scope.segment, opened.entry
    name = opening.key
    segment.executed += 1
    segment.tell("step.started", name=name, epoch=opening.epoch, seq=opening.seq)
    attempts = _Attempts()
    failure: Failure | None = None
    cause: Exception | None = None
    value: object = None
    try:
        value = normalize(await _try(segment, function, args, retry, attempts))
    except Exception as error:  # noqa: BLE001 - journalled, then raised
        cause = error
        failure = step_failure(name, error, attempts=attempts.made)
    answer = await scope.answer(opening, value, failure=failure)
    segment.tell(
        "step.finished", name=name, epoch=answer.epoch, detail=answer.status, seq=opening.seq
    )
    if failure is not None:
        raise failure.to_error(segment.run_id) from cause
    return value


class _Attempts:
    """How often a step was tried."""

    made = 0


async def _try(
    segment: Segment,
    function: Callable[..., object],
    args: tuple[object, ...],
    retry: RetryPolicy,
    attempts: _Attempts,
) -> object:
    if retry.attempts == 1:
        attempts.made = 1
        return await call(segment, function, args)
    import stamina  # noqa: PLC0415 - only a step that retries needs it

    async for attempt in stamina.retry_context(
        on=retry.on,
        attempts=retry.attempts,
        timeout=None,
        wait_initial=retry.wait_initial_ms / 1000,
        wait_max=retry.wait_max_ms / 1000,
        wait_jitter=retry.wait_jitter_ms / 1000,
    ):
        with attempt:
            attempts.made = attempt.num
            return await call(segment, function, args)
    message = "a retry loop ended without a result or an error"
    raise AssertionError(message)


async def call(
    segment: Segment, function: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Call user code: an async function here, a plain one in a thread of its own.

    Raises `SegmentEnded` instead when the segment has ended, also while it waited for a thread.
    """
    if inspect.iscoroutinefunction(function):
        segment.check()
        return await function(*args)

    def begin() -> object:
        segment.check()
        return function(*args)

    result = await segment.parts.step_threads.call_abandonable(begin)
    return await result if inspect.isawaitable(result) else result
