"""What a workflow's body calls: each call is answered by the journal or performed once.

A context belongs to one scope: the body's own, or one branch of a ``parallel``. One task
uses it at a time. Everything that a body reads from the world goes through it, so that a
replay sees the same.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast, overload
from urllib.parse import quote
from uuid import UUID

from rulvar.core.checks import check_call_name
from rulvar.core.engine.control import SegmentEnded
from rulvar.core.engine.outcome import Failure, describe_error
from rulvar.core.engine.replay import Answered, Dangling, Waiting
from rulvar.core.engine.retry import NO_RETRY
from rulvar.core.errors import ConfigError, StepFailedError
from rulvar.core.journal import JournalEntry
from rulvar.core.values import normalize
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from rulvar.core.engine.replay import Call
    from rulvar.core.engine.retry import RetryPolicy
    from rulvar.core.engine.segment import Segment

__all__ = ["Context"]

T = TypeVar("T")


class _Missing:
    """Tells a default that was left out from one that is None."""


_MISSING = _Missing()
_LONGEST_WAIT_MS = 100 * 365 * 24 * 3600 * 1000


class Context:
    """A body's way to its run (design section 7).

    Every call raises `SegmentEnded`, which ``except Exception`` does not catch, once the
    segment has ended: because it lost the run, was cancelled or stopped, or suspends.
    """

    def __init__(self, segment: Segment, *, scope: str = "") -> None:
        self._segment = segment
        self._scope = scope

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._segment.run_id

    @property
    def segment(self) -> int:
        """The number of this execution of the run, from 1."""
        return self._segment.number

    @property
    def fencing_token(self) -> int | None:
        """The epoch to hand to an outside system that fences by itself; None without a lease.

        It grows by one when the run is taken again after an expiry: ask each time. Raises
        `SegmentEnded` once the run is lost.
        """
        self._segment.check()
        return self._segment.door.epoch

    # --- steps ------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        retry: RetryPolicy = ...,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: object,
        retry: RetryPolicy = ...,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        retry: RetryPolicy = NO_RETRY,
    ) -> object:
        """Run ``function(*args)`` once and for all, or return what it returned before.

        An async function runs here; a plain one runs in a thread, so that it may block. The
        result is one I-JSON value and is returned as a replay would return it. A step that
        was begun and never answered runs again: at least once.

        Raises `StepFailedError` when the function failed for good, after ``retry``, or when
        its result cannot cross the journal; `ConfigError` for a bad name;
        `NonDeterminismError` when the journal has something else here.
        """
        check_call_name(name)
        segment = self._segment
        await segment.boundary()
        with self._alone(name):
            decision = segment.replay.next("step", self._scope, name)
            if isinstance(decision, Answered):
                segment.replayed += 1
                segment.tell("step.replayed", name=name)
                return _unwrap(decision.answer, name, segment.run_id)
            if isinstance(decision, Dangling):
                opening = decision.opening
            else:
                opening = await segment.append(self._opening(decision.call))
            return await self._perform(opening, function, args, retry)

    async def _perform(
        self,
        opening: JournalEntry,
        function: Callable[..., object],
        args: tuple[object, ...],
        retry: RetryPolicy,
    ) -> object:
        segment, name = self._segment, opening.key
        segment.check()  # the run may have been lost while the call was journalled
        segment.executed += 1
        segment.tell("step.started", name=name, epoch=opening.epoch)
        attempts = _Attempts()
        failure: Failure | None = None
        cause: Exception | None = None
        value: object = None
        try:
            value = normalize(await self._try(function, args, retry, attempts))
        except Exception as error:  # noqa: BLE001 - journalled, then raised
            cause = error
            kind, text = describe_error(error)
            failure = Failure(
                code=StepFailedError.code,
                message=f"step {name!r} failed: {kind}: {text}",
                error_type=kind,
                step=name,
                attempts=attempts.made,
            )
        answer = await segment.append(
            JournalEntry(
                seq=0,
                kind="step",
                status="ok" if failure is None else "error",
                scope=opening.scope,
                key=name,
                ordinal=opening.ordinal,
                value=value,
                error=None if failure is None else failure.to_json(),
                ref=opening.seq,
                started_at=opening.started_at,
                ended_at=segment.now(),
            )
        )
        segment.tell("step.finished", name=name, epoch=answer.epoch, detail=answer.status)
        if failure is not None:
            raise failure.to_error(segment.run_id) from cause
        return value

    async def _try(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        retry: RetryPolicy,
        attempts: _Attempts,
    ) -> object:
        if retry.attempts == 1:
            attempts.made = 1
            return await self._call(function, args)
        import stamina  # noqa: PLC0415 - only a step that retries

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
                self._segment.check()
                return await self._call(function, args)
        message = "a retry loop ended without a result or an error"
        raise AssertionError(message)

    async def _call(self, function: Callable[..., object], args: tuple[object, ...]) -> object:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await self._segment.parts.step_threads.call_abandonable(partial(function, *args))
        return await result if inspect.isawaitable(result) else result

    # --- branches ---------------------------------------------------------------------------

    async def parallel(
        self,
        name: str,
        branches: Sequence[Callable[[Context], Awaitable[T]]],
        /,
        *,
        limit: int | None = None,
    ) -> list[T]:
        """Run branches side by side, each with a context of its own; return their results.

        At most ``limit`` run at a time. All branches are waited for, so that nothing is left
        half done; then the first failure in the order of the branches is raised, and the
        others are added to it as notes.

        Raises `ConfigError` for a bad name or limit, and what the first failed branch raised.
        """
        check_call_name(name)
        if limit is not None and limit < 1:
            message = f"limit must be at least 1, not {limit}"
            raise ConfigError(message)
        segment = self._segment
        with self._alone(name):
            ordinal = segment.replay.take_ordinal(self._scope, f"parallel:{name}")
            scope = f"{self._scope}/{quote(name, safe='')}#{ordinal}"
            places = min(limit or len(branches), len(branches))
            gate = asyncio.Semaphore(max(1, places))
            tasks: list[asyncio.Task[T]] = []
            left = len(branches)

            def strand_ended(_task: asyncio.Task[T]) -> None:
                # One that ends hands its place to one that waits at the gate, and the last
                # one to the body: at no moment does a run look idle that is about to go on.
                nonlocal left
                left -= 1
                if 0 < left < places:
                    segment.strand_rests()

            for index, branch in enumerate(branches):
                context = Context(segment, scope=f"{scope}[{index}]")
                if index < places:
                    segment.strand_begins()
                task = asyncio.create_task(_strand(segment, context, branch, gate))
                task.add_done_callback(strand_ended)
                tasks.append(task)
            if tasks:
                await self._join(tasks)
        return _results(tasks)

    async def _join(self, tasks: list[asyncio.Task[T]]) -> None:
        self._segment.strand_rests()
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise

    # --- suspensions ------------------------------------------------------------------------

    async def await_external(
        self, key: str, /, *, timeout_ms: int | None = None, default: object = _MISSING
    ) -> object:
        """Wait for ``engine.resolve(run_id, key, value)`` and return the value.

        When nothing else can go on, the run suspends and its lease is given back. The
        deadline is journalled: when ``timeout_ms`` has passed since the first call, the
        result is ``default``, or `StepFailedError` (``TimeoutError``) without one.

        Raises `ConfigError` for a bad key, timeout or default.
        """
        check_call_name(key)
        facts: dict[str, object] | None = None
        if not isinstance(default, _Missing):
            if timeout_ms is None:
                message = "default needs a timeout_ms: without a deadline it is never used"
                raise ConfigError(message)
            facts = {"hasDefault": True, "default": normalize(default, path="$.default")}
        deadline = None if timeout_ms is None else self._deadline("timeout_ms", timeout_ms)
        return await self._suspend("external", key, deadline, facts)

    async def sleep(self, duration_ms: int, /) -> None:
        """Wait for ``duration_ms`` milliseconds, across restarts.

        The deadline is journalled at the first call. A short one is waited for; for a longer
        one the run suspends, and a worker looks at it again when it is due.

        Raises `ConfigError` for a negative duration or one over a hundred years.
        """
        await self._suspend("timer", "$sleep", self._deadline("duration_ms", duration_ms), None)

    def _deadline(self, what: str, wait_ms: int) -> str:
        if isinstance(wait_ms, bool) or not isinstance(wait_ms, int):
            message = f"{what} must be an integer of milliseconds, not {wait_ms!r}"
            raise ConfigError(message)
        if not 0 <= wait_ms <= _LONGEST_WAIT_MS:
            message = f"{what} must be 0 to {_LONGEST_WAIT_MS} (a hundred years), not {wait_ms}"
            raise ConfigError(message)
        return format_time(self._segment.parts.clock.now_ms() + wait_ms)

    async def _suspend(
        self, kind: str, key: str, deadline: str | None, facts: dict[str, object] | None
    ) -> object:
        segment = self._segment
        await segment.boundary()
        with self._alone(key):
            decision = segment.replay.next(kind, self._scope, key)
            if isinstance(decision, Answered):
                segment.replayed += 1
                return _unwrap(decision.answer, key, segment.run_id)
            if isinstance(decision, Waiting | Dangling):
                opening = decision.opening
            else:
                call = decision.call
                draft = self._opening(call, status="suspended", value=facts, deadline=deadline)
                opening = await segment.append(draft)
            answer = await segment.wait_for(opening)
            return _unwrap(answer, key, segment.run_id)

    # --- what the world says, once ------------------------------------------------------------

    async def now(self) -> datetime:
        """Return the time of the first call, with milliseconds, in UTC."""
        text = await self._recorded("$now", self._segment.now)
        return datetime.fromisoformat(cast("str", text)).astimezone(UTC)

    async def random(self) -> float:
        """Return the random number in [0, 1) that the first call drew."""
        value = await self._recorded("$random", self._segment.parts.ids.random)
        return float(cast("float", value))

    async def uuid(self) -> UUID:
        """Return the random UUID that the first call drew."""
        value = await self._recorded("$uuid", lambda: str(self._segment.parts.ids.uuid()))
        return UUID(cast("str", value))

    async def _recorded(self, key: str, draw: Callable[[], object]) -> object:
        segment = self._segment
        await segment.boundary()
        with self._alone(key):
            decision = segment.replay.next("rand", self._scope, key)
            if isinstance(decision, Answered):
                segment.replayed += 1
                return decision.answer.value
            draft = self._opening(decision.call, status="ok", value=draw())
            return (await segment.append(draft)).value

    # --- shared -------------------------------------------------------------------------------

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Refuse a call of a segment that has ended, or beside another of the same scope."""
        segment = self._segment
        segment.check()
        segment.enter(self._scope, name)
        try:
            yield
        finally:
            segment.leave(self._scope)

    def _opening(
        self,
        call: Call,
        *,
        status: str = "running",
        value: object = None,
        deadline: str | None = None,
    ) -> JournalEntry:
        return JournalEntry(
            seq=0,  # the door gives it its number
            kind=call.kind,
            status=status,
            scope=call.scope,
            key=call.key,
            ordinal=call.ordinal,
            value=value,
            deadline_at=deadline,
            started_at=self._segment.now(),
        )


class _Attempts:
    """How often a step was tried."""

    made = 0


def _unwrap(answer: JournalEntry, name: str, run_id: str) -> object:
    if answer.status == "error":
        failure = Failure.from_json(answer.error or {"message": f"{name!r} failed"})
        raise failure.to_error(run_id)
    return answer.value


async def _strand(
    segment: Segment,
    context: Context,
    branch: Callable[[Context], Awaitable[T]],
    gate: asyncio.Semaphore,
) -> T:
    async with gate:
        segment.check()
        return await branch(context)


def _results(tasks: list[asyncio.Task[T]]) -> list[T]:
    failures = [e for task in tasks if (e := None if task.cancelled() else task.exception())]
    for failure in failures:
        if isinstance(failure, SegmentEnded):
            raise failure
    if failures:
        first = failures[0]
        for other in failures[1:]:
            first.add_note(f"another branch failed too: {type(other).__name__}: {other}")
        raise first
    return [task.result() for task in tasks]
