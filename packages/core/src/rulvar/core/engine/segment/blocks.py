"""``ctx.timeout``: a time limit over a block of calls that counts across lives.

The block is a call of its scope: its opening has the deadline, and its answer says how it was
left: in time (``ok``), or by a firing. A firing is one entry that names every call under way
in the block; they are given up by it. It is delivered inside a call of the context alone, the
outermost block that is due first; where none is under way at the deadline, at the next one. A
replay delivers it when the body has come to all the calls that it names. After a crash the
original instant counts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.engine.kernel.failed_calls import mark
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.journal import BLOCK_KIND
from rulvar.core.journal.calls import fired_calls
from rulvar.core.journal.drafts import answer_draft
from rulvar.core.wire import format_time, parse_time

if TYPE_CHECKING:
    from types import TracebackType

    from rulvar.core.engine.segment.frames import Frame
    from rulvar.core.engine.segment.scope import Scope
    from rulvar.core.journal import JournalEntry

__all__ = ["BLOCK_NAME", "Block", "restarted"]

BLOCK_NAME = "$timeout"


class Block:
    """One ``async with ctx.timeout(...)``; see `Context.timeout`."""

    def __init__(self, scope: Scope, seconds: float, deadline_at: str) -> None:
        self._scope = scope
        self._segment = scope.segment
        self._seconds = seconds
        self._wanted = deadline_at
        self.deadline_at: str | None = None
        """When it fires; None once it was left, or where a replay knows how it was left."""
        self.fired: JournalEntry | None = None
        self._opening: JournalEntry | None = None
        self._is_answered = False
        self._named: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self._owner: Frame | None = None

    @property
    def seq(self) -> int | None:
        """The seq of the call that opened it."""
        return None if self._opening is None else self._opening.seq

    async def __aenter__(self) -> Self:
        scope, segment = self._scope, self._segment
        await scope.wait_if_draining()
        with scope.alone(BLOCK_NAME):
            opened = await scope.open(BLOCK_KIND, BLOCK_NAME, deadline_at=self._wanted)
        task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        if isinstance(opened, Answered):
            self._opening = opened.opening
            self._is_answered = True
            self._named = set(fired_calls(opened.answer))
        else:
            self._opening = opened.entry
            self.deadline_at = restarted(opened.entry, opened.retried)
            self._set_timer()
        scope.blocks_entered.append(self)
        segment.blocks.append(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scope, segment = self._scope, self._segment
        self._stop()
        scope.blocks_entered.remove(self)
        segment.blocks.remove(self)
        if self.fired is not None:
            task = asyncio.current_task()
            if task is not None and task.cancelling() > self._cancelling:
                task.uncancel()
            if error is None or isinstance(error, asyncio.CancelledError):
                raise self._expired() from None
            return
        if self._is_answered or isinstance(error, SegmentEnded) or segment.has_ended:
            return
        if isinstance(error, asyncio.CancelledError):
            if self._opening is not None:  # left by what is around it
                segment.frames.give_up(self._opening)
            return
        if self._opening is not None:
            await scope.wait_if_draining()
            with scope.alone(BLOCK_NAME):
                await segment.frames.flush()
                await scope.answer(self._opening)

    def has_come_to(self, opening: JournalEntry | None) -> None:
        """Learn that the body of a replay has come to a call; deliver the firing after the last."""
        if opening is None or opening.seq not in self._named:
            return
        self._named.discard(opening.seq)
        if not self._named:
            state = self._segment.replay.calls.by_seq.get(self.seq or -1)
            self._deliver(state.answer if state is not None else None)

    def has_fired(self) -> bool:
        """Whether it has fired in this life."""
        return self.fired is not None

    async def fire_if_due(self, frame: Frame) -> None:
        """Fire at a call that is about to be performed, once the deadline has passed."""
        if self.deadline_at is None or self.fired is not None:
            return
        if not self._segment.scheduler.is_past(self.deadline_at):
            return
        await self._fire()
        if self.has_fired():
            frame.silent = True
            await self._segment.loop.create_future()  # cancelled by the delivery

    # --- the timer ----------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self.deadline_at is not None:
            nap = self._segment.scheduler.nap_until(self.deadline_at)
            self._timer = self._segment.loop.call_later(nap, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.deadline_at is None or self.fired is not None or self._segment.has_ended:
            return
        if self._segment.scheduler.is_past(self.deadline_at):
            self._segment.scheduler.work(self._fire())
        else:
            self._set_timer()
            self._segment.scheduler.look_soon()

    def _stop(self) -> None:
        self.deadline_at = None
        if self._timer is not None:
            self._timer.cancel()

    # --- firing -------------------------------------------------------------------------------

    async def _fire(self) -> None:
        """Journal what is under way in the block, and cancel the call that its scope is in."""
        try:
            await self._segment.append_made(self._draft, then=self._deliver)
        except SegmentEnded:
            return

    def _draft(self) -> JournalEntry | None:
        """Return the firing; None where no call of the block is under way: the next one fires."""
        if self.fired is not None or self.deadline_at is None or self._opening is None:
            return None
        if any(block.fired is None and block.is_due for block in self._around()):
            return None  # the outermost one that is due fires first, and ends this one too
        under_way = [
            frame
            for frame in self._segment.frames
            if self in frame.blocks and frame.opening is not None and not frame.answered
        ]
        if not any(frame.scope == self._scope.path for frame in under_way):
            return None
        opening = self._opening
        return answer_draft(
            opening,
            now=self._segment.now(),
            kind=BLOCK_KIND,
            status="error",
            value={"calls": [frame.opening.seq for frame in under_way if frame.opening]},
            started_at=opening.started_at,
        )

    @property
    def is_due(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_at is not None and self._segment.scheduler.is_past(self.deadline_at)

    def _around(self) -> tuple[Block, ...]:
        """Return the blocks around this one, the outermost first."""
        inside = self._scope.blocks
        return inside[: inside.index(self)] if self in inside else ()

    def _deliver(self, firing: JournalEntry | None) -> None:
        self.fired = firing
        self._stop()
        for frame in self._segment.frames:
            if self in frame.blocks:
                frame.silent = True
                task = None if frame.task is None else frame.task()
                if frame.scope == self._scope.path and task is not None:
                    task.cancel()
        self._segment.emit("timeout.fired", seq=self.seq, name=BLOCK_NAME)

    def _expired(self) -> TimeoutError:
        error = TimeoutError(f"ctx.timeout({self._seconds:g}) is over")
        mark(error, self.seq)
        return error


def restarted(opening: JournalEntry, retried: JournalEntry | None) -> str | None:
    """Return when a call is due: after a retry its time counts from there."""
    due = opening.deadline_at
    if due is None or retried is None or retried.ended_at is None or opening.started_at is None:
        return due
    length = parse_time(due) - parse_time(opening.started_at)
    return format_time(parse_time(retried.ended_at) + length)
