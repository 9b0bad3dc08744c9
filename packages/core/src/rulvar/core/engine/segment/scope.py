"""One scope of a body: where a call is asked of the journal, opened and answered.

What `context` offers, `steps`, `turns`, `worktree` and `children` perform; all of them begin
and end a call here, so that each kind of call has the same manners: nothing begins in a
segment that has ended or beside another call of the same scope, and whatever a call came to
is journalled before the body sees it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rulvar.core.engine.kernel.arguments import NO_ARGS, args_hash
from rulvar.core.engine.kernel.failed_calls import mark
from rulvar.core.engine.kernel.outcome import Failure
from rulvar.core.engine.kernel.replay import (
    Answered,
    Call,
    Dangling,
    GivenUp,
    Waiting,
    unasked_error,
    would_perform,
)
from rulvar.core.engine.segment.attempts import begin_again
from rulvar.core.errors import ConfigError, NonDeterminismError
from rulvar.core.journal import BLOCK_KIND
from rulvar.core.journal.calls import SELF_ANSWERED_KINDS
from rulvar.core.journal.drafts import answer_draft, opening_draft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from rulvar.core.engine.code.raised import Caught
    from rulvar.core.engine.kernel.replay import Decision
    from rulvar.core.engine.segment.blocks import Block
    from rulvar.core.engine.segment.frames import Frame
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.patches import Patched
    from rulvar.core.errors import RunError
    from rulvar.core.journal import JournalEntry

__all__ = ["Opened", "Scope", "error_of", "unwrap"]

_log = logging.getLogger("rulvar.engine")


@dataclass(frozen=True, slots=True)
class Opened:
    """A call that is to be performed.

    ``before`` is the opening entry under which an earlier segment had begun it: the same
    one after a crash, an older one after a retry. ``retried`` is the retry that took its
    answer away, if one did.
    """

    entry: JournalEntry
    before: JournalEntry | None
    retried: JournalEntry | None = None


@dataclass(frozen=True, slots=True)
class _New:
    """What the opening entry of a call that was not made before is to hold."""

    status: str
    value: object
    draw: Callable[[], object | Awaitable[object]] | None
    deadline_at: str | None


class Scope:
    """The body's own scope (the empty path), or that of one branch.

    ``around`` is the scope that it was made in.
    """

    def __init__(self, segment: Segment, path: str = "", *, around: Scope | None = None) -> None:
        self.segment = segment
        self.path = path
        self.around = around
        self._task: weakref.ref[asyncio.Task[object]] | None = None
        self.blocks_entered: list[Block] = []
        self.unawaited: list[Patched] = []

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The timeout blocks around a call of this scope, the outermost first."""
        outer = () if self.around is None else self.around.blocks
        return (*outer, *self.blocks_entered)

    def belongs_to_this_task(self) -> None:
        """Note that the current task makes the calls of this scope."""
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)

    def check_own_task(self, name: str) -> None:
        """Refuse a suspension in another task than the one that makes this scope's calls.

        What waits for that task would be lost when the run suspends. Raises `ConfigError`.
        """
        if self._task is not None and asyncio.current_task() is not self._task():
            message = (
                f"{name!r} is awaited in another task than the body's (asyncio.wait_for, "
                "asyncio.wait, a task group): a run that suspends would forget it; give the call "
                "a timeout=, use ctx.timeout, or run it in ctx.parallel"
            )
            raise ConfigError(message)

    def check_awaited(self) -> None:
        """Raise `ConfigError` for a ``ctx.patched`` of this scope whose ``await`` was forgotten."""
        if self.unawaited:
            raise self.unawaited.pop().forgotten()

    async def must_be_whole(self) -> None:
        """Block the segment, and stay, where this scope ends without all that its journal has."""
        segment = self.segment
        if segment.has_ended:
            return
        left_out = segment.replay.unasked(self.path)
        if left_out is not None:
            segment.block(unasked_error(left_out))
            await segment.scheduler.stand_still()

    async def wait_if_draining(self) -> None:
        """Pass, or be told that the segment has ended: the place between two calls."""
        await self.segment.wait_if_draining(self.path)

    @contextmanager
    def alone(self, name: str) -> Iterator[Frame]:
        """Refuse a call of a segment that has ended, or beside another of the same scope.

        A call that is left by cancellation is noted as given up.
        """
        self.segment.check()
        self.check_awaited()
        frames = self.segment.frames
        frame = frames.enter(self.path, name, self.blocks)
        try:
            yield frame
        except asyncio.CancelledError:
            frames.cancelled(frame)
            raise
        finally:
            frames.leave(frame)

    async def open(
        self,
        kind: str,
        key: str,
        *,
        status: str = "running",
        value: object = None,
        draw: Callable[[], object | Awaitable[object]] | None = None,
        deadline_at: str | None = None,
        args: object = NO_ARGS,
        call_key: str | None = None,
        branches: int | None = None,
    ) -> Opened | Answered:
        """Return the journal's answer to this call, or its opening entry.

        The entry is journalled now, or was in an earlier segment. Only a new one draws its
        value with ``draw``, plain or async; when that raises, the call was never made. A
        call that the body gave up before never returns: it is to be given up again. Another
        call than the journal's blocks the segment, and does not return either.

        Raises `SegmentEnded`.
        """
        segment = self.segment
        frame = segment.frames.of(self.path)
        frame.call = Call(
            kind,
            self.path,
            key,
            args_hash=args_hash(args),
            call_key=call_key,
            branches=branches,
        )
        await segment.frames.flush()
        decision = await self._decide(frame.call)
        if not segment.runtime.perform and would_perform(decision):
            await segment.scheduler.try_no_further(decision.call)
        new = _New(status, value, draw, deadline_at)
        opened = await self._opened(frame, decision, new)
        if isinstance(opened, Opened) and kind not in SELF_ANSWERED_KINDS | {BLOCK_KIND}:
            for block in frame.blocks:
                await block.fire_if_due(frame)
        return opened

    async def _decide(self, call: Call) -> Decision:
        segment = self.segment
        try:
            decision = segment.replay.next(call)
        except NonDeterminismError as error:
            segment.block(error)
            await segment.scheduler.stand_still()
            raise
        if getattr(decision, "changed_args", False):
            await self._tell_of_arguments(decision)
        return decision

    async def _tell_of_arguments(self, decision: Decision) -> None:
        """Warn of arguments that no call of that name had before, or refuse them."""
        segment, call = self.segment, decision.call
        message = (
            f"run {segment.run_id!r}: {call.kind} {call.key!r} has other arguments now than when "
            "it was journalled, and its journalled result stands; give the call a key= that says "
            "which one it is, or use another name for another call"
        )
        if segment.runtime.on_changed_args == "refuse":
            segment.block(
                NonDeterminismError(message, scope=call.scope, key=call.key, ordinal=call.ordinal)
            )
            await segment.scheduler.stand_still()
        _log.warning("%s", message)
        segment.emit("arguments.changed", name=call.key, detail=call.kind)

    async def _opened(
        self,
        frame: Frame,
        decision: Decision,
        new: _New,
    ) -> Opened | Answered:
        segment, call = self.segment, decision.call
        if isinstance(decision, Answered):
            segment.replayed += 1
            frame.opening = decision.opening
            return decision
        if isinstance(decision, GivenUp):
            return await self._given_up(frame, decision)
        if isinstance(decision, Dangling | Waiting):
            frame.opening = decision.opening
            await begin_again(segment, decision.opening)
            retried = decision.retried if isinstance(decision, Dangling) else None
            return Opened(decision.opening, before=decision.opening, retried=retried)
        frame.draft = self._draft(call, new)
        if new.draw is not None:
            try:
                drawn = new.draw()
                drawn = await drawn if inspect.isawaitable(drawn) else drawn
            except asyncio.CancelledError:
                raise  # given up: it is journalled, without what was to be drawn
            except BaseException:
                segment.replay.not_made(call)
                frame.call = frame.draft = None
                raise
            frame.draft = replace(frame.draft, value=drawn)
        draft = frame.draft

        def make() -> JournalEntry | None:
            frame.check()
            return None if segment.blocked is not None else draft

        await segment.append_made(make, then=frame.opened)
        while frame.opening is None:
            await segment.scheduler.stand_still()  # blocked meanwhile: nothing new begins
        if call.kind in SELF_ANSWERED_KINDS:
            frame.answered = True
        segment.check()  # the run may have been lost while the call was journalled
        tries = segment.replay.tries_of(frame.opening)
        return Opened(frame.opening, before=tries[1] if len(tries) > 1 else None)

    async def _given_up(self, frame: Frame, decision: GivenUp) -> Answered:
        """Wait until the body gives the call up again; what it holds inside runs until then."""
        segment, call = self.segment, decision.call
        opening, given_up = decision.opening, decision.given_up
        frame.opening, frame.silent = opening, True
        for block in frame.blocks:
            block.has_come_to(opening)
        if call.kind == "child" and opening is not None:
            segment.given_up_child(f"{segment.run_id}.{opening.seq}")
        if opening is None or given_up is None or call.kind not in {BLOCK_KIND, "parallel"}:
            await segment.frames.wait_until_given_up(frame, given_up)
        return Answered(call, opening, given_up)

    def _draft(self, call: Call, new: _New) -> JournalEntry:
        return opening_draft(
            call.kind,
            (call.scope, call.key, call.ordinal),
            status=new.status,
            now=self.segment.now(),
            value=new.value,
            args_hash=call.args_hash,
            call_key=call.call_key,
            deadline_at=new.deadline_at,
        )

    async def answer(
        self,
        opening: JournalEntry,
        value: object = None,
        *,
        failure: Failure | None = None,
        status: str | None = None,
    ) -> JournalEntry:
        """Journal what a call came to. Raises `SegmentEnded`."""
        draft = answer_draft(
            opening,
            now=self.segment.now(),
            status=status or ("ok" if failure is None else "error"),
            value=value,
            error=None if failure is None else failure.to_json(),
            started_at=opening.started_at,
        )
        frame = self.segment.frames.of(self.path)
        return await self.segment.append(draft, then=frame.was_answered)

    async def failed(self, opening: JournalEntry, caught: Caught) -> BaseException:
        """Journal that a call raised; return what the body gets, made of that entry.

        Raise it outside of an ``except``, or the body sees a ``__context__`` that a replay
        has not. Raises `SegmentEnded`.
        """
        answer = await self.answer(opening, failure=caught.failure)
        return caught.raised_again(error_of(answer, self.segment.run_id))


def unwrap(answer: JournalEntry, run_id: str) -> object:
    """Return an answer's value, or raise the failure that was journalled."""
    if answer.status == "error":
        raise error_of(answer, run_id)
    return answer.value


def error_of(answer: JournalEntry, run_id: str) -> RunError:
    """Return the exception for a failure that was journalled."""
    failure = Failure.from_json(answer.error or {"message": f"{answer.key!r} failed"})
    error = failure.to_error(run_id)
    mark(error, answer.ref)
    return error
