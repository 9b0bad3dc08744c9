"""The calls of a segment that are under way, and the ones that its body gave up.

A *frame* is one call of a context from its beginning to its return. A call that leaves its
``await`` by cancellation (`asyncio.timeout`, a task group, ``task.cancel()``) is *given up*:
the body never saw an answer, whether or not one has landed. That is journalled before the
next call of the run is decided, and outranks every answer for ever; a replay performs such a
call no more and waits until the body gives it up again. A cancellation by the end of the
segment is no giving-up: the next segment makes the call again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from rulvar.core.engine.kernel.replay import Answered, Fresh, GivenUp, given_up_after_ms
from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal import GIVEN_UP
from rulvar.core.journal.drafts import answer_draft, opening_draft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.engine.kernel.replay import Call
    from rulvar.core.engine.segment.blocks import Block
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.journal import JournalEntry

__all__ = ["Frame", "Frames"]

_WAIT_LONGER_MS = 60_000
"""How much longer than the first life a replay waits until a call is given up again."""

_TRIED_MS = 2_000
"""A trial waits as long as the first life did for a call to be given up, at most so long."""

_TRIED_LONGER_MS = 1_000


@dataclass(slots=True, eq=False)
class Frame:
    """One call of a context that is under way.

    ``silent`` says that its leaving is journalled already: by an earlier life, or by the
    firing of a timeout block around it.
    """

    scope: str
    name: str
    task: weakref.ref[asyncio.Task[object]] | None
    began_ms: int
    blocks: tuple[Block, ...] = ()
    call: Call | None = None
    draft: JournalEntry | None = None
    opening: JournalEntry | None = None
    answered: bool = False
    silent: bool = False

    def opened(self, entry: JournalEntry) -> None:
        """Learn the opening entry, as it landed."""
        self.opening = entry

    def was_answered(self, _entry: JournalEntry) -> None:
        """Learn that the answer has landed."""
        self.answered = True

    def check(self) -> None:
        """Journal nothing more in a block that has fired: its entry names what was under way."""
        if any(block.fired is not None for block in self.blocks):
            self.silent = True
            raise asyncio.CancelledError


@dataclass(slots=True, eq=False)
class _Left:
    """A frame that was left by cancellation, and how long the body had waited for it."""

    frame: Frame
    after_ms: int


@dataclass(slots=True, eq=False)
class Frames:
    """Every call of one segment that is under way, and what waits to be journalled as given up."""

    segment: Segment
    _by_scope: dict[str, Frame] = field(default_factory=dict)
    _left: deque[_Left] = field(default_factory=deque)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __iter__(self) -> Iterator[Frame]:
        return iter(list(self._by_scope.values()))

    @property
    def has_left(self) -> bool:
        """Whether any call was given up and that is not journalled yet."""
        return bool(self._left)

    def enter(self, scope: str, name: str, blocks: tuple[Block, ...]) -> Frame:
        """Begin a call of ``scope``.

        Raises `NonDeterminismError` when another call of the same scope is still under way:
        their order would be the scheduler's, and a replay could not repeat it.
        """
        other = self._by_scope.get(scope)
        if other is not None:
            message = (
                f"call {name!r} began while {other.name!r} of the same scope was under way: their "
                "order would not be the same in a replay; run them in ctx.parallel"
            )
            raise NonDeterminismError(
                message, run_id=self.segment.run_id, scope=scope, key=name, ordinal=0
            )
        task = asyncio.current_task()
        # Weak: a task that was abandoned must not be kept by the calls that it never left.
        weak = None if task is None else weakref.ref(task)
        frame = self._by_scope[scope] = Frame(scope, name, weak, self._now_ms(), blocks)
        return frame

    def of(self, scope: str) -> Frame:
        """Return the call of ``scope`` that is under way."""
        return self._by_scope[scope]

    def leave(self, frame: Frame) -> None:
        """End a call."""
        del self._by_scope[frame.scope]

    def cancelled(self, frame: Frame) -> None:
        """Note that the body gave a call up, unless the segment's end or a firing did it."""
        segment = self.segment
        if segment.has_ended or segment.blocked is not None or frame.silent:
            return
        if frame.call is None:
            return  # nothing was asked of the journal: it waited for the segment to drain
        self._left.append(_Left(frame, self._now_ms() - frame.began_ms))

    def give_up(self, opening: JournalEntry) -> None:
        """Note that the body left a block by cancellation."""
        if self.segment.has_ended or self.segment.blocked is not None:
            return
        frame = Frame(opening.scope, opening.key, None, self._now_ms(), opening=opening)
        self._left.append(_Left(frame, 0))

    async def flush(self, *, after_end: bool = False) -> None:
        """Journal what was given up, in the order in which the body left it.

        A cancelled task leaves the rest to the next one. Raises `SegmentEnded` and
        `NonDeterminismError`.
        """
        if not self._left:
            return
        async with self._writing:
            while self._left:
                left = self._left[0]
                await self._write(left, after_end=after_end)
                if self._left and self._left[0] is left:
                    self._left.popleft()

    async def _write(self, left: _Left, *, after_end: bool) -> None:
        frame, segment = left.frame, self.segment
        if frame.opening is None and frame.draft is None and frame.call is not None:
            # It was cancelled before it was decided: what the journal has there is given up.
            try:
                decision = segment.replay.next(frame.call)
            except NonDeterminismError as error:
                segment.block(error)
                return
            if isinstance(decision, Fresh):
                call = decision.call
                frame.draft = opening_draft(
                    call.kind,
                    (call.scope, call.key, call.ordinal),
                    status="suspended" if call.kind in {"external", "timer"} else "running",
                    now=segment.now(),
                    args_hash=call.args_hash,
                    call_key=call.call_key,
                )
            elif isinstance(decision, GivenUp):
                return
            else:
                frame.opening = decision.opening
                if isinstance(decision, Answered):
                    segment.replayed += 1
        if frame.opening is None and frame.draft is not None:
            await segment.append(frame.draft, then=frame.opened, after_end=after_end)
        opening = frame.opening
        if opening is None:
            return
        state = segment.replay.calls.by_seq.get(opening.seq)
        if state is not None and state.given_up is not None:
            return
        given_up = answer_draft(
            opening,
            now=segment.now(),
            kind=GIVEN_UP,
            status="cancelled",
            value={"afterMs": left.after_ms},
        )
        await segment.append(given_up, after_end=after_end)
        segment.emit("call.given-up", name=opening.key, seq=opening.seq)
        if opening.kind == "child":
            segment.given_up_child(f"{segment.run_id}.{opening.seq}")

    async def wait_until_given_up(self, frame: Frame, given_up: JournalEntry | None) -> NoReturn:
        """Wait until the body gives a call up again, as it did before; never returns.

        ``given_up`` is the entry that says so. A body that waits a minute longer than the
        first time has taken another way: the segment is blocked, naming the call.
        """
        frame.silent = True
        segment = self.segment
        after_ms = given_up_after_ms(given_up)
        limit_ms = after_ms + _WAIT_LONGER_MS
        message = (
            f"{frame.name!r} was given up by the body after {after_ms} ms (a timeout or a "
            f"cancellation around the call), and is not given up now, after {limit_ms} ms: "
            "restore what gave it up, or start a new run"
        )
        error = NonDeterminismError(
            message, run_id=segment.run_id, scope=frame.scope, key=frame.name, ordinal=0
        )
        if segment.runtime.perform:
            timer = segment.loop.call_later(limit_ms / 1000, segment.block, error)
        else:
            wait_ms = min(after_ms, _TRIED_MS) + _TRIED_LONGER_MS
            timer = segment.loop.call_later(wait_ms / 1000, self._not_given_up, frame)
        try:
            while True:
                await segment.loop.create_future()
        finally:
            timer.cancel()

    def _not_given_up(self, frame: Frame) -> None:
        """End a trial at a call that is given up no more in its short time."""
        self.segment.scheduler.untried = frame.call
        self.segment.stop()

    def _now_ms(self) -> int:
        return self.segment.runtime.clock.monotonic_ms()
