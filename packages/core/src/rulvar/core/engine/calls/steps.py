"""Performing a step: call the function, retry it, journal its result or failure."""

from __future__ import annotations

import inspect
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.engine.code.calling import UserCode, original
from rulvar.core.engine.code.raised import caught, one_line
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.segment.scope import error_of, unwrap
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity import RetryCallState

    from rulvar.core.engine.code.raised import Caught
    from rulvar.core.engine.kernel.retry import RetryPolicy
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.scope import Opened, Scope

__all__ = ["Plan", "call", "step", "user_code"]

_log = logging.getLogger("rulvar.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one call of `Context.step` asked for."""

    function: Callable[..., object]
    args: tuple[object, ...]
    retry: RetryPolicy
    key: str | None = None
    deadline_at: str | None = None
    seconds: float | None = None


def _wait_seconds(retry: RetryPolicy, attempt: int) -> float:
    drawn = random.random()  # noqa: S311 - no secret
    return retry.wait_seconds(after=attempt, drawn=drawn)


async def step(scope: Scope, name: str, plan: Plan) -> object:
    """Return what the journal has, or perform the step; see `Context.step`."""
    segment = scope.segment
    opened = await scope.open(
        "step", name, args=plan.args, call_key=plan.key, deadline_at=plan.deadline_at
    )
    if isinstance(opened, Answered):
        segment.emit("step.replayed", name=name, seq=opened.answer.ref)
        return unwrap(opened.answer, segment.run_id)
    return await _perform(scope, opened, plan)


async def _perform(scope: Scope, opened: Opened, plan: Plan) -> object:
    segment, opening = scope.segment, opened.entry
    name = opening.key
    segment.executed += 1
    segment.emit("step.started", name=name, epoch=opening.epoch, seq=opening.seq)
    attempts = _Attempts(segment, opened, plan.retry)
    failed: Caught | None = None
    value: object = None
    try:
        with user_code(segment):  # also the policy's own function, and a result of odd classes
            value = normalize(await _in_time(segment, opened, plan, attempts))
    except Exception as error:  # noqa: BLE001 - journalled, then raised
        failed = caught(name, error, attempts=attempts.made)
    failure = None if failed is None else failed.failure
    answer = await scope.answer(opening, value, failure=failure)
    segment.emit(
        "step.finished",
        name=name,
        epoch=answer.epoch,
        detail=answer.status,
        seq=opening.seq,
        count=attempts.made,
    )
    if failed is not None:
        # Not inside the `except`: a replay's error has no context either.
        raise failed.raised_again(error_of(answer, segment.run_id))
    return value


async def _in_time(segment: Segment, opened: Opened, plan: Plan, attempts: _Attempts) -> object:
    """Return what the step returns within its time limit, or raise `TimeoutError`."""
    deadline_at, made = opened.entry.deadline_at, attempts.until_one_works(plan.function, plan.args)
    if deadline_at is None:
        return await made
    task = await segment.scheduler.within(deadline_at, made)
    if task is not None:
        return task.result()
    name, limit = opened.entry.key, plan.seconds or 0
    threads = segment.runtime.step_threads
    left = threads.left_behind
    if left:
        # It cannot be stopped: its effects may still come, and it keeps its place.
        _log.warning(
            "run %r: step %r took longer than %g s; %d of %d step threads are kept by functions "
            "that were given up and have not returned",
            segment.run_id,
            name,
            limit,
            left,
            threads.limit,
        )
    segment.emit("step.timed-out", name=name, seq=opened.entry.seq, count=left)
    message = f"it took longer than {limit:g} s"
    raise TimeoutError(message)


class _Attempts:
    """The tries of one step in this segment."""

    def __init__(self, segment: Segment, opened: Opened, retry: RetryPolicy) -> None:
        self.made = 0
        self._segment = segment
        self._opening = opened.entry
        self._retry = retry

    async def until_one_works(
        self, function: Callable[..., object], args: tuple[object, ...]
    ) -> object:
        """Return the value of the first try that works; raise what the last one raised."""
        if self._retry.attempts == 1:
            return await self._try(function, args)
        import tenacity  # noqa: PLC0415 - only a step that retries needs it

        retry = self._retry
        tries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(retry.attempts),
            retry=tenacity.retry_if_exception(self._is_worth_another),
            wait=lambda state: _wait_seconds(retry, state.attempt_number),
            before_sleep=self._told,
            reraise=True,
        )
        return await tries(self._try, function, args)

    async def _try(self, function: Callable[..., object], args: tuple[object, ...]) -> object:
        self.made += 1
        return await call(self._segment, function, args)

    def _is_worth_another(self, error: BaseException) -> bool:
        # What is no Exception here did not come from the step.
        return isinstance(error, Exception) and self._retry.covers(original(error))

    def _told(self, state: RetryCallState) -> None:
        wait = state.upcoming_sleep
        outcome = state.outcome
        raised = None if outcome is None else outcome.exception()
        what = "" if raised is None else one_line(original(raised))
        name = self._opening.key
        _log.warning(
            "run %r: step %r: attempt %d of %d failed (%s); retrying in %.3g s",
            self._segment.run_id,
            name,
            self.made,
            self._retry.attempts,
            what,
            wait,
        )
        self._segment.emit(
            "step.retried",
            name=name,
            epoch=self._opening.epoch,
            detail=what,
            seq=self._opening.seq,
            count=self.made,
            duration=wait,
        )


def user_code(segment: Segment) -> UserCode:
    """Surround code of the user's that is called here; see `UserCode`."""
    return UserCode(lambda: segment.has_ended)


async def call(
    segment: Segment, function: Callable[..., object], args: tuple[object, ...]
) -> object:
    """Call user code: an async function here, a plain one in a separate thread.

    Raises an `Exception` of the code as it is, and `RaisedError` for anything else that it
    raised; `SegmentEnded` instead when the segment has ended, also while it waited for a
    thread.
    """
    with user_code(segment):
        if inspect.iscoroutinefunction(function):
            segment.check()
            return await function(*args)

        def begin() -> object:
            with user_code(segment):
                segment.check()
                return function(*args)

        result = await segment.runtime.step_threads.call_abandonable(begin)
        return await result if inspect.isawaitable(result) else result
