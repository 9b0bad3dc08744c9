"""The workflow function's handle on its run: every durable operation goes through it.

A context belongs to one scope: the body's own, or one branch of a ``parallel``. One task
uses it at a time. Everything that a body reads from the world goes through it, so that a
replay sees the same.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from uuid import UUID

from rulvar.core.checks import MAX_INTEGER, check_call_name, check_integer
from rulvar.core.engine.calls import branches as _branches
from rulvar.core.engine.calls import children as _children
from rulvar.core.engine.calls import steps as _steps
from rulvar.core.engine.calls import turns as _turns
from rulvar.core.engine.calls import worktree as _worktree
from rulvar.core.engine.calls.children import check_parent
from rulvar.core.engine.code.workflow import NOT_GIVEN, check_workflow
from rulvar.core.engine.kernel.durations import seconds_of
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.kernel.retry import NO_RETRY
from rulvar.core.engine.kernel.schemas import check_default, check_schema
from rulvar.core.engine.segment.blocks import Block
from rulvar.core.engine.segment.patches import Patched
from rulvar.core.engine.segment.scope import unwrap
from rulvar.core.errors import ConfigError
from rulvar.core.values import normalize
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from rulvar.core.engine.calls.turns import Compaction, Turns
    from rulvar.core.engine.calls.worktree import WorktreeResult
    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.engine.kernel.retry import RetryPolicy
    from rulvar.core.engine.segment.scope import Scope

__all__ = ["Context"]

T = TypeVar("T")


class _Missing:
    """Tells a default that was left out from one that is None."""


_MISSING = _Missing()


class Context:
    """A workflow function's handle on its run (contract.md#replay).

    Every call raises `SegmentEnded`, which ``except Exception`` does not catch, once the
    segment has ended: because it lost the run, was cancelled or stopped, or suspends.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._segment = scope.segment

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
        return self._segment.writer.epoch

    # --- steps ------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        retry: RetryPolicy = ...,
        key: str | None = ...,
        timeout: Duration | None = ...,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: object,
        retry: RetryPolicy = ...,
        key: str | None = ...,
        timeout: Duration | None = ...,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        retry: RetryPolicy = NO_RETRY,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> object:
        """Run ``function(*args)`` once and for all, or return what it returned before.

        An async function runs here; a plain one runs in a thread, so that it may block. The
        result is one I-JSON value and is returned as a replay would return it. A step that
        was begun and never answered runs again: at least once.

        ``key`` says which of several calls of one name this is, as in a loop over items that
        may change: a replay refuses another key at this place. ``timeout`` is the time limit
        of all attempts together, in seconds or a `timedelta`; it is journalled, and after a
        crash the original deadline counts. A plain function that is too late keeps its thread
        until it returns: its result is discarded, its effects may still come.

        Raises `StepFailedError` when the function failed for good, after ``retry``, when it
        was too late (``error_type`` is ``TimeoutError``), or when its result cannot cross the
        journal; `ConfigError` for a bad name, key or timeout.
        """
        check_call_name(name)
        limit = None if timeout is None else seconds_of("timeout", timeout)
        plan = _steps.Plan(
            function=function,
            args=args,
            retry=retry,
            key=None if key is None else check_call_name(key),
            deadline_at=self._in(limit),
            seconds=limit,
        )
        await self._scope.wait_if_draining()
        with self._scope.alone(name):
            return await _steps.step(self._scope, name, plan)

    async def turns(
        self,
        name: str,
        turn: Callable[[Any, int], object],
        initial: object,
        /,
        *,
        max_turns: int = 1_000,
        deadline: Duration | None = None,
        compact: Compaction | None = None,
    ) -> Turns:
        """Run ``turn(state, n)`` until it is done; keep the state after every turn.

        ``turn``, plain or async, returns ``Continue(state)`` or ``Done(result)``; ``n`` counts
        from 0. After a crash the loop goes on from its last checkpoint: the turns before it
        are not run again, the one in flight is (at least once). After ``max_turns`` turns in
        all, or when ``deadline`` (seconds or a `timedelta`) has passed since the first
        call, the loop ends with a partial outcome: see `Turns`. ``compact`` makes a long state
        shorter.

        Raises `StepFailedError` when a turn raised or returned something else, `ConfigError`
        for bad arguments.
        """
        check_call_name(name)
        check_integer("max_turns", max_turns, 1, MAX_INTEGER)
        deadline_at = None if deadline is None else self._after("deadline", deadline)
        plan = _turns.Plan(
            turn=turn,
            initial=normalize(initial, path="$.initial"),
            max_turns=max_turns,
            compact=compact,
        )
        await self._scope.wait_if_draining()
        with self._scope.alone(name):
            return await _turns.turns(self._scope, name, plan, deadline_at)

    @overload
    async def worktree(
        self,
        name: str,
        repo: str | os.PathLike[str],
        body: Callable[[Path], Awaitable[T]],
        /,
        *,
        base: str = ...,
    ) -> WorktreeResult[T]: ...
    @overload
    async def worktree(
        self,
        name: str,
        repo: str | os.PathLike[str],
        body: Callable[[Path], T],
        /,
        *,
        base: str = ...,
    ) -> WorktreeResult[T]: ...
    async def worktree(
        self,
        name: str,
        repo: str | os.PathLike[str],
        body: Callable[[Path], object],
        /,
        *,
        base: str = "HEAD",
    ) -> WorktreeResult[object]:
        """Run ``body(path)`` in a temporary git worktree of ``repo``; return value and patch.

        ``body``, plain or async, may change, add, remove and commit what it likes below
        ``path``; its result is one I-JSON value. The patch is against the commit that
        ``base`` named when the call was first made, and has everything but ignored files
        that nobody added by force. It is kept as a blob, the worktree is removed, and a
        replay returns both without running ``body``. Unanswered, it runs again (at least
        once), in a fresh worktree of the same commit.

        Nothing is applied: that is the caller's decision, in a step of its own::

            done = await ctx.worktree("fix", repo, fix)
            if done.patch:  # git refuses an empty one
                command = ["git", "-C", repo, "apply", "--index", "-"]
                subprocess.run(command, input=done.patch, check=True)

        Git commands that ``body`` starts inherit this process's environment: where that has
        ``GIT_DIR`` and the like, take them out for those commands.

        Raises `ConfigError`, before anything is journalled, when git is absent, ``repo`` is
        no repository or ``base`` names no commit of it; `StepFailedError` when the body
        failed, or left what no patch can carry: a repository of its own inside, uncommitted
        changes in a submodule. A patch that is gone ends the segment with `StoreCorruptError`,
        and the run can be resumed once it is restored.
        """
        check_call_name(name)
        where = os.fspath(repo)
        await self._scope.wait_if_draining()
        with self._scope.alone(name):
            return await _worktree.worktree(self._scope, name, where, body, base)

    # --- branches ---------------------------------------------------------------------------

    async def parallel(
        self,
        name: str,
        branches: Sequence[Callable[[Context], Awaitable[T]]],
        /,
        *,
        limit: int | None = None,
    ) -> list[T]:
        """Run branches side by side, each with a separate context; return their results.

        At most ``limit`` run at a time. All branches are waited for, so that nothing is left
        half done; then the first failure in the order of the branches is raised, and the
        others are added to it as notes.

        Raises `ConfigError` for a bad name or limit, and what the first failed branch raised.
        """
        check_call_name(name)
        if limit is not None:
            check_integer("limit", limit, 1, MAX_INTEGER)
        await self._scope.wait_if_draining()
        with self._scope.alone(name):
            return await _branches.parallel(
                self._scope,
                name,
                [_with_context(branch) for branch in branches],
                limit,
            )

    # --- children ---------------------------------------------------------------------------

    async def child(
        self,
        name: str,
        workflow: Workflow,
        args: object = NOT_GIVEN,
        /,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> object:
        """Run ``workflow`` as a separate run, ``<this run>.<number>``, and return its result.

        The child has a journal and a separate lease, and is resumed with its parent. It is
        cancelled with its parent, and when the body gives the call up; when the parent loses
        its run, the child is let go. ``key`` and ``timeout`` are as for `step`: a child that
        is too late is cancelled.

        Raises `StepFailedError` when the child failed, was cancelled or was too late,
        `ConfigError` for bad arguments or a parent whose run id leaves no room for a child's.
        """
        check_call_name(name)
        check_parent(self.run_id)
        provided = args is not NOT_GIVEN
        check_workflow(workflow).check_args(provided=provided)
        limit = None if timeout is None else seconds_of("timeout", timeout)
        plan = _children.Plan(
            workflow=workflow,
            args=normalize(args, path="$.args") if provided else None,
            args_provided=provided,
            key=None if key is None else check_call_name(key),
            deadline_at=self._in(limit),
            seconds=limit,
        )
        await self._scope.wait_if_draining()
        with self._scope.alone(name):
            return await _children.child(self._scope, name, plan)

    # --- time limits and deliberate changes ------------------------------------------------------

    def timeout(self, duration: Duration, /) -> Block:
        """Bound the calls of an ``async with`` block, in seconds or a `timedelta`.

        ::

            try:
                async with ctx.timeout(30):
                    quote = await ctx.step("ask", ask)
            except TimeoutError:
                quote = await ctx.step("fallback", fallback)

        The deadline is journalled when the block is entered, and counts across restarts. When
        it passes, the calls under way in the block are given up and it raises `TimeoutError`
        there; a replay does the same at the same place. Raises `ConfigError` for a bad
        duration.
        """
        seconds = seconds_of("the duration", duration)
        return Block(self._scope, seconds, self._in(seconds) or "")

    def patched(self, name: str, /) -> Patched:
        """Whether this run takes the new way of a deliberate change: ``await ctx.patched(name)``.

        ::

            if await ctx.patched("check-stock-first"):
                await ctx.step("check stock", check_stock)

        Decided once per name and scope: True, and journalled, when the run has journalled
        nothing behind this place yet, else False; later calls of that name in the scope
        return the same. It can be taken out of the code once no unfinished run needs False.

        Raises `ConfigError` for a bad name, and when it is used without ``await``.
        """
        return Patched(self._scope, check_call_name(name))

    # --- suspensions ------------------------------------------------------------------------

    async def await_external(
        self,
        key: str,
        /,
        *,
        schema: Mapping[str, object] | bool | None = None,
        timeout: Duration | None = None,
        default: object = _MISSING,
    ) -> object:
        """Wait for ``engine.resolve(run_id, key, value)`` and return the value.

        When nothing else can go on, the run suspends and its lease is given back. The
        deadline is journalled: when ``timeout``, in seconds or a `timedelta`, has passed since
        the first call, the result is ``default``, or `StepFailedError` (``TimeoutError``)
        without one.

        ``schema`` is a JSON Schema (2020-12), journalled when the call is first made: a
        resolution that does not fit it is refused, and the run waits on. It needs the extra
        ``rulvar-core[schema]``, here and wherever the run is resolved.

        Raises `ConfigError` for a bad key, timeout, schema or default.
        """
        check_call_name(key)
        facts: dict[str, object] = {}
        if not isinstance(default, _Missing):
            if timeout is None:
                message = "default needs a timeout: without a deadline it is never used"
                raise ConfigError(message)
            facts = {"hasDefault": True, "default": normalize(default, path="$.default")}

        def draw() -> object:
            if schema is None:
                return facts or None
            checked = check_schema(schema)
            if facts:
                check_default(checked, facts["default"])
            return facts | {"schema": checked}

        deadline = None if timeout is None else self._after("timeout", timeout)
        return await self._suspend("external", key, deadline, draw)

    async def sleep(self, duration: Duration, /) -> None:
        """Wait for ``duration``, in seconds or a `timedelta`, across restarts.

        The deadline is journalled at the first call. A short one is waited for; for a longer
        one the run suspends, and a worker looks at it again when it is due.

        Raises `ConfigError` for a negative duration or one over a hundred years.
        """
        await self._suspend("timer", "$sleep", self._after("duration", duration), None)

    def _in(self, seconds: float | None) -> str | None:
        return None if seconds is None else self._at(seconds)

    def _at(self, seconds: float) -> str:
        return format_time(self._segment.runtime.clock.now_ms() + round(seconds * 1000))

    def _after(self, what: str, duration: Duration) -> str:
        return self._at(seconds_of(what, duration))

    async def _suspend(
        self, kind: str, key: str, deadline: str | None, draw: Callable[[], object] | None
    ) -> object:
        segment, scope = self._segment, self._scope
        await scope.wait_if_draining()
        scope.check_own_task(key)
        with scope.alone(key):
            opened = await scope.open(
                kind, key, status="suspended", draw=draw, deadline_at=deadline
            )
            if isinstance(opened, Answered):
                return unwrap(opened.answer, segment.run_id)
            return unwrap(await segment.scheduler.wait_for(opened.entry), segment.run_id)

    # --- what the world says, once ------------------------------------------------------------

    async def now(self) -> datetime:
        """Return the time of the first call, with milliseconds, in UTC."""
        text = await self._recorded("$now", self._segment.now)
        return datetime.fromisoformat(cast("str", text)).astimezone(UTC)

    async def random(self) -> float:
        """Return the random number in [0, 1) that the first call drew."""
        value = await self._recorded("$random", self._segment.runtime.ids.random)
        return float(cast("float", value))

    async def uuid(self) -> UUID:
        """Return the random UUID that the first call drew."""
        value = await self._recorded("$uuid", lambda: str(self._segment.runtime.ids.uuid()))
        return UUID(cast("str", value))

    async def _recorded(self, key: str, draw: Callable[[], object]) -> object:
        await self._scope.wait_if_draining()
        with self._scope.alone(key):
            opened = await self._scope.open("rand", key, status="ok", draw=draw)
            entry = opened.answer if isinstance(opened, Answered) else opened.entry
            return entry.value


def _with_context(
    branch: Callable[[Context], Awaitable[T]],
) -> Callable[[Scope], Awaitable[T]]:
    return lambda scope: branch(Context(scope))
