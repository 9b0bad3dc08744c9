"""A live segment: what one execution of a run knows while it lives, on one event loop.

It ends once, for one of the reasons in `endings.Ending`, listed in the order in which they win: a
lost run is lost whatever else happened. From then on every call on its contexts raises
`SegmentEnded`, and the body's task is cancelled. `scheduling` says when it suspends, `frames`
which calls are under way.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rulvar.core.engine.code.afterlife import Afterlife
from rulvar.core.engine.kernel.endings import WHY, Ending, SegmentEnded
from rulvar.core.engine.kernel.schemas import answered_already
from rulvar.core.engine.segment.frames import Frames
from rulvar.core.engine.segment.scheduling import Scheduler
from rulvar.core.errors import (
    NonDeterminismError,
    StoreError,
    SupersededError,
)
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.core.engine.io.bridge import Bridge
    from rulvar.core.engine.io.event_bus import Emit
    from rulvar.core.engine.kernel.replay import Replay
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.blocks import Block
    from rulvar.core.engine.segment.runtime import ChildHandle, Runtime
    from rulvar.core.errors import RulvarError
    from rulvar.core.journal import JournalEntry

__all__ = ["CURRENT", "Segment", "current_segment", "entering"]

T = TypeVar("T")

CURRENT: ContextVar[Segment | None] = ContextVar("rulvar_segment", default=None)
"""The segment whose body, branch or step is running here; threads of steps inherit it."""

if hasattr(os, "register_at_fork"):  # a child that a step has forked is no part of it
    os.register_at_fork(after_in_child=partial(CURRENT.set, None))


def current_segment() -> Segment | None:
    """Return the segment that is calling, if one is.

    Raises `SegmentEnded` for one that has ended: it may begin nothing, about any run.
    """
    current = CURRENT.get()
    if current is not None:
        current.check()
    return current


async def entering() -> Segment | None:
    """Return the segment that is calling; one that has ended and calls again waits for ever."""
    current = CURRENT.get()
    if current is not None and current.has_ended:
        await current.refuse("an engine")
    return current


class Segment:
    """The state of one live execution of a run."""

    def __init__(
        self, runtime: Runtime, *, run_id: str, number: int, writer: RunWriter, replay: Replay
    ) -> None:
        self.runtime = runtime
        self.run_id = run_id
        self.number = number
        self.writer = writer
        self.emit: Emit = partial(runtime.bus.emit, run_id, number)
        self.replay = replay
        self.loop = asyncio.get_running_loop()
        self.ending: Ending | None = None
        self.lost: SupersededError | None = None
        self.executed = 0
        self.replayed = 0
        self.attempts: dict[int, int] = {}
        self.body: asyncio.Task[object] | None = None
        self.over: asyncio.Future[object] = self.loop.create_future()
        self.failure: Exception | None = None
        self.fatal: str | None = None
        """What its code has done that ends its process (`culprits`)."""
        self.left_behind: asyncio.Future[object] = self.loop.create_future()
        self._afterlife = Afterlife()
        self.children: dict[str, ChildHandle] = {}
        self.blocked: RulvarError | None = None
        """Why the present code cannot go on with the run, once that is known."""
        self.scheduler = Scheduler(self)
        self.frames = Frames(self)
        self.blocks: list[Block] = []
        self.deadline_at: str | None = None
        self._given_up_children: set[str] = set()
        self._turn = asyncio.Lock()
        self._answering: set[int] = set()

    # --- the end --------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether it has: no call begins any more."""
        return self.ending is not None or self.lost is not None

    def check(self) -> None:
        """Raise `SegmentEnded` when this segment has ended."""
        if self.has_ended:
            raise self._why() from self.lost

    def _why(self) -> SegmentEnded:
        ending = Ending.LOST if self.lost is not None else self.ending
        return SegmentEnded(WHY[ending or Ending.FINISHED])

    async def refuse(self, scope: str) -> NoReturn:
        """Raise `SegmentEnded` to the first call of a scope; a later one stays: `Afterlife`."""
        why = self._why()
        why.__cause__ = self.lost
        ours = CURRENT.get() is self
        await self._afterlife.refuse(scope, why, ours=ours, on_stay=self._stays)

    def _stays(self) -> bool:
        """Tell the driver that the body's own task stays; it buries that."""
        is_body = asyncio.current_task() is self.body
        if is_body and not self.left_behind.done():
            self.left_behind.set_result(None)
        return is_body

    def end(self, ending: Ending) -> None:
        """End for a reason, unless a stronger one came first; cancels the body."""
        if self.ending is not None and ending >= self.ending:
            return
        self.ending = ending
        if not self.over.done():
            self.over.set_result(None)
        for child in self.children.values():
            # Also when this run is cancelled: its journal says so before a child is.
            child.detach()
        self.scheduler.end()
        if self.body is not None and not self.body.done():
            self.body.cancel()

    def fail(self, error: Exception) -> None:
        """End without an outcome because of an error that is not the body's."""
        self.failure = self.failure or error
        self.end(Ending.FAILED)

    def block(self, error: RulvarError) -> None:
        """End because the body took another way than its journal, or a child cannot continue.

        Nothing new begins.
        Calls under way may still end, within a stop's grace, and are journalled; the body is
        not told (no handler of its own gets to see the error).
        """
        if self.blocked is not None or self.has_ended:
            return
        if isinstance(error, NonDeterminismError):
            error.run_id = self.run_id
        self.blocked = error
        for child in self.children.values():
            child.drain()
        self.scheduler.drain_within_grace()

    def lose(self, error: SupersededError) -> None:
        """Learn of the loss, from any thread: no call begins from here on."""
        if self.lost is not None:
            return
        self.lost = error
        self.emit("lease.lost", epoch=error.epoch, detail=error.reason)
        self.from_any_thread(partial(self.end, Ending.LOST))

    @contextmanager
    def _losing_ends(self) -> Iterator[None]:
        """End the segment, with `SegmentEnded`, when a write finds the run lost."""
        try:
            yield
        except SupersededError as error:
            self.lose(error)
            self.end(Ending.LOST)
            raise SegmentEnded(WHY[Ending.LOST]) from error

    def reacquired(self, epoch: int) -> None:
        """Tell that the run was taken again after an expiry, from any thread."""
        self.emit("lease.reacquired", epoch=epoch)

    def from_any_thread(self, function: Callable[[], None]) -> None:
        """Run a function on the segment's loop soon; do nothing when that loop is gone."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop is closed: nothing of this segment runs any more

    # --- the journal ------------------------------------------------------------------------

    def now(self) -> str:
        """Return the engine's time as the journal writes it."""
        return format_time(self.runtime.clock.now_ms())

    async def append(
        self,
        draft: JournalEntry,
        *,
        claim: Callable[[], None] | None = None,
        then: Callable[[JournalEntry], None] | None = None,
        after_end: bool = False,
    ) -> JournalEntry:
        """Journal a draft through the writer, fold what was written, and hand it to ``then``.

        ``then`` is called on the loop, also when this task was cancelled meanwhile.
        ``after_end`` is for what a segment that has ended still owes.

        Raises `SegmentEnded` when the segment ended before or because of it.
        """
        async with self._turn:
            if not after_end:
                self.check()
            return await self._append(draft, claim, then)

    async def append_made(
        self,
        make: Callable[[], JournalEntry | None],
        *,
        then: Callable[[JournalEntry], None],
    ) -> None:
        """Journal what ``make`` returns, on the loop, once its turn has come; None is nothing.

        Raises as `append`, and what ``make`` raises.
        """
        async with self._turn:
            self.check()
            draft = make()
            if draft is not None:
                await self._append(draft, None, then)

    async def _append(
        self,
        draft: JournalEntry,
        claim: Callable[[], None] | None,
        then: Callable[[JournalEntry], None] | None,
    ) -> JournalEntry:
        def landed(entry: JournalEntry) -> None:
            first = self.replay.landed(entry)
            if then is not None:
                then(entry)
            if first and entry.ref is not None:
                self.scheduler.wake(entry.ref, entry)

        try:
            with self._losing_ends():
                return await self.store.call(
                    partial(self.writer.append, draft, claim=claim), then=landed
                )
        except SegmentEnded:
            raise
        except BaseException as error:
            if self.writer.failure is not error:
                raise  # refused by the claim, or cancelled: the writer goes on
            self.end(Ending.FAILED)
            raise SegmentEnded(WHY[Ending.FAILED]) from error

    async def get_blob(self, ref: str) -> bytes | None:
        """Return a blob; raises `SegmentEnded` when the store cannot tell."""
        try:
            return await self.store.call(partial(self.runtime.reads.blob, ref))
        except StoreError as error:
            raise self.failed_by(error) from error

    def failed_by(self, error: Exception) -> SegmentEnded:
        """End because of the stores, which is no outcome of a call: the run can be resumed."""
        self.fail(error)
        return SegmentEnded(WHY[Ending.FAILED])

    async def put_blob(self, ref: str, blob: bytes) -> None:
        """Replace a blob through the writer.

        Raises `SegmentEnded` when the run is lost or the store fails, `ConfigError` for a
        blob that is too large.
        """
        self.check()
        try:
            with self._losing_ends():
                await self.store.call(partial(self.writer.put_blob, ref, blob))
        except StoreError as error:
            raise self.failed_by(error) from error

    @property
    def genesis(self) -> str:
        """The token minted at the run's fresh start."""
        return self.writer.genesis or ""

    @property
    def store(self) -> Bridge:
        """The way to the stores."""
        return self.runtime.bridge

    def deadlines(self) -> list[str | None]:
        """Return when the run wants to be looked at again, whatever its tasks wait for."""
        return [self.deadline_at, *(block.deadline_at for block in self.blocks)]

    def given_up_child(self, child_id: str) -> None:
        """Cancel a child whose call the body gave up; that it did is journalled already."""
        if child_id not in self._given_up_children:
            self._given_up_children.add(child_id)
            self.scheduler.work(self.runtime.cancel_child(child_id, self.run_id, self.genesis))

    # --- calls ------------------------------------------------------------------------------

    async def wait_if_draining(self, scope: str) -> None:
        """Pass, or wait for the end when the segment drains: the place between two calls."""
        if self.has_ended:
            await self.refuse(scope)
        if self.scheduler.draining:
            await self.scheduler.stand_still()

    def claim(self, opening: JournalEntry) -> None:
        """Be the one that answers a suspension, or raise `InvalidResolutionError`.

        Called while no other append of this run is under way: one answer gets through.
        """
        if opening.seq in self._answering or self.replay.answer_to(opening.seq) is not None:
            raise answered_already(self.run_id, opening.key)
        self._answering.add(opening.seq)

    # --- requests from outside (`requests`), on its own loop ---------------------------------

    async def through_writer(self, act: Callable[[Runtime, RunWriter], T]) -> T:
        """Do something to the run from the inside, under the segment's own lease."""
        self.check()
        with self._losing_ends():
            return await self.store.call(partial(act, self.runtime, self.writer))

    def drain(self) -> None:
        """Begin no further call; stop when those under way have been journalled."""
        for child in self.children.values():
            child.drain()
        self.scheduler.drain()

    def stop(self) -> None:
        """Let the run go without an outcome: another owner continues it."""
        if self.ending is None:
            self.end(Ending.STOPPED)
