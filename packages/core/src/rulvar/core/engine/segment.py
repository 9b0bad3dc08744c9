"""A live segment: what one execution of a run knows while it lives, on one event loop.

It ends once, for one of the reasons in `control.Ending`. From then on every call on its
contexts raises `SegmentEnded`, and the body's task is cancelled.

A *strand* is a line of execution of the body: the body itself and each branch of a
``parallel``. A strand is parked while it waits for a suspension, or for its branches. When
every strand is parked, only the outside can move the run: the segment suspends.
"""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rulvar.core.engine.afterlife import Afterlife
from rulvar.core.engine.control import WHY, Ending, SegmentEnded
from rulvar.core.engine.outcome import Failure
from rulvar.core.engine.schemas import answered_already, check_resolution, choose_wait
from rulvar.core.errors import (
    InvalidResolutionError,
    LeaseHeldError,
    NonDeterminismError,
    StoreError,
    SupersededError,
)
from rulvar.core.journal import JournalEntry
from rulvar.core.values import normalize
from rulvar.core.wire import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.bridge import Bridge
    from rulvar.core.engine.door import Door
    from rulvar.core.engine.events import Tell
    from rulvar.core.engine.parts import ChildHandle, Parts
    from rulvar.core.engine.replay import Replay

__all__ = ["CURRENT", "Segment", "child_is_live", "entering", "inside"]

T = TypeVar("T")

_LONGEST_NAP_SECONDS = 15.0
"""A loop's timer stands still while the machine sleeps, and hears of no change of the clock."""

CURRENT: ContextVar[Segment | None] = ContextVar("rulvar_segment", default=None)
"""The segment whose body, branch or step is running here; threads of steps inherit it."""

if hasattr(os, "register_at_fork"):  # a child that a step has forked is no part of it
    os.register_at_fork(after_in_child=partial(CURRENT.set, None))


def inside() -> Segment | None:
    """Return the segment that is calling, if one is.

    Raises `SegmentEnded` for one that has ended: it may begin nothing, about any run.
    """
    current = CURRENT.get()
    if current is not None:
        current.check()
    return current


async def entering() -> Segment | None:
    """Return the segment that is calling, as `inside`; one that calls again waits for ever."""
    current = CURRENT.get()
    if current is not None and current.has_ended:
        await current.refuse("an engine")
    return current


def child_is_live(run_id: str, child_id: str) -> LeaseHeldError:
    """Return what says that a run is not taken away from under its child."""
    message = (
        f"run {run_id!r} has the child {child_id!r}, which somebody works on: wait for it, or "
        "cancel it, then delete its parent"
    )
    return LeaseHeldError(message, run_id=child_id, reason="held")


class Segment:
    """The state of one live execution of a run."""

    def __init__(
        self, parts: Parts, *, run_id: str, number: int, door: Door, replay: Replay
    ) -> None:
        self.parts = parts
        self.run_id = run_id
        self.number = number
        self.door = door
        self.tell: Tell = partial(parts.hub.tell, run_id, number)
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
        self.left_behind: asyncio.Future[object] = self.loop.create_future()
        self._afterlife = Afterlife()
        self.children: dict[str, ChildHandle] = {}
        self.waits: dict[int, str | None] = {}
        self._draining = False
        self._turn = asyncio.Lock()
        self._running = 1
        self._parked: dict[int, asyncio.Future[JournalEntry]] = {}
        self._answering: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers_under_way = 0
        self._wake_at: str | None = None
        self._busy_scopes: dict[str, str] = {}

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
            child.let_go()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.body is not None and not self.body.done():
            self.body.cancel()

    def fail(self, error: Exception) -> None:
        """End without an outcome because of an error that is not the body's."""
        self.failure = self.failure or error
        self.end(Ending.FAILED)

    def lose(self, error: SupersededError) -> None:
        """Learn of the loss, from any thread: no call begins from here on."""
        if self.lost is not None:
            return
        self.lost = error
        self.tell("lease.lost", epoch=error.epoch, detail=error.reason)
        self.from_any_thread(partial(self.end, Ending.LOST))

    def reacquired(self, epoch: int) -> None:
        """Tell that the run was taken again after an expiry, from any thread."""
        self.tell("lease.reacquired", epoch=epoch)

    def from_any_thread(self, function: Callable[[], None]) -> None:
        """Run a function on the segment's loop soon; do nothing when that loop is gone."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop is closed: nothing of this segment runs any more

    # --- the journal ------------------------------------------------------------------------

    def now(self) -> str:
        """Return the engine's time as the journal writes it."""
        return format_time(self.parts.clock.now_ms())

    async def append(
        self, draft: JournalEntry, *, claim: Callable[[], None] | None = None
    ) -> JournalEntry:
        """Journal a draft through the door, and fold what was written.

        Raises `SegmentEnded` when the segment ended before or because of it.
        """
        async with self._turn:
            self.check()
            try:
                return await self.store.call(
                    partial(self.door.append, draft, claim=claim), then=self._landed
                )
            except SupersededError as error:
                self.lose(error)
                self.end(Ending.LOST)
                raise SegmentEnded(WHY[Ending.LOST]) from error
            except SegmentEnded:
                raise
            except BaseException as error:
                if self.door.failure is not error:
                    raise  # refused by the claim, or cancelled: the door goes on
                self.end(Ending.FAILED)
                raise SegmentEnded(WHY[Ending.FAILED]) from error

    async def get_blob(self, ref: str) -> bytes | None:
        """Return a blob; raises `SegmentEnded` when the store cannot tell."""
        try:
            return await self.store.call(partial(self.parts.reads.blob, ref))
        except StoreError as error:
            raise self.failed_by(error) from error

    def failed_by(self, error: Exception) -> SegmentEnded:
        """End because of the stores, which is no outcome of a call: the run can be resumed."""
        self.fail(error)
        return SegmentEnded(WHY[Ending.FAILED])

    async def put_blob(self, ref: str, blob: bytes) -> None:
        """Replace a blob through the door.

        Raises `SegmentEnded` when the run is lost or the store fails, `ConfigError` for a
        blob that is too large.
        """
        self.check()
        try:
            await self.store.call(partial(self.door.put_blob, ref, blob))
        except SupersededError as error:
            self.lose(error)
            self.end(Ending.LOST)
            raise SegmentEnded(WHY[Ending.LOST]) from error
        except StoreError as error:
            raise self.failed_by(error) from error

    @property
    def genesis(self) -> str:
        """The token minted at the run's fresh start."""
        return self.door.genesis or ""

    @property
    def store(self) -> Bridge:
        """The way to the stores."""
        return self.parts.bridge

    def _landed(self, entry: JournalEntry) -> None:
        if self.replay.landed(entry) and entry.ref is not None:
            self._wake(entry.ref, entry)

    # --- one task per scope -----------------------------------------------------------------

    def enter(self, scope: str, name: str) -> None:
        """Note that ``scope`` is in use.

        Raises `NonDeterminismError` when another call of the same scope is still under way:
        their order would be the scheduler's, and a replay could not repeat it.
        """
        other = self._busy_scopes.get(scope)
        if other is not None:
            message = (
                f"call {name!r} began while {other!r} of the same scope was under way: their "
                "order would not be the same in a replay; run them in ctx.parallel"
            )
            raise NonDeterminismError(message, run_id=self.run_id, scope=scope, key=name, ordinal=0)
        self._busy_scopes[scope] = name

    def leave(self, scope: str) -> None:
        """Note that ``scope`` is free again."""
        self._busy_scopes.pop(scope, None)

    # --- strands ----------------------------------------------------------------------------

    def strand_begins(self) -> None:
        """Count one more line of execution."""
        self._running += 1

    def strand_rests(self) -> None:
        """Count one less: it has ended, or it is parked."""
        self._running -= 1
        self._look_soon()

    def _look_soon(self) -> None:
        if self._running == 0:
            self.loop.call_soon(self._suspend_if_idle)

    async def boundary(self, scope: str) -> None:
        """Pass, or wait for the end when the segment drains: the place between two calls."""
        if self.has_ended:
            await self.refuse(scope)
        if self._draining:
            self.strand_rests()
            try:
                await self.loop.create_future()
            finally:
                self.strand_begins()

    async def wait_for(self, opening: JournalEntry) -> JournalEntry:
        """Park until the suspension that ``opening`` opened is answered."""
        answer = self.replay.answer_to(opening.seq)
        if answer is not None:
            return answer
        future: asyncio.Future[JournalEntry] = self.loop.create_future()
        self._parked[opening.seq] = future
        if opening.deadline_at is not None:
            self._set_timer(opening)
        self.strand_rests()
        try:
            return await future
        finally:
            if self._parked.pop(opening.seq, None) is not None:
                self._running += 1

    def _wake(self, seq: int, answer: JournalEntry) -> None:
        future = self._parked.pop(seq, None)
        if future is not None and not future.done():
            self._running += 1  # before its task runs: nothing may look idle meanwhile
            future.set_result(answer)
        elif future is not None:
            self._running += 1

    def _suspend_if_idle(self) -> None:
        if self._running or self.ending is not None or self._tasks or self._answers_under_way:
            return
        if self._draining:
            self.end(Ending.STOPPED)
            return
        if not self._parked and not self.waits:
            return
        wake_at = self._next_deadline()
        if wake_at is not None:
            ahead_ms = parse_time(wake_at) - self.parts.clock.now_ms()
            if ahead_ms <= self.parts.linger_ms:
                return  # it is due soon: a timer is set for it
        self._wake_at = wake_at
        self.end(Ending.SUSPENDED)

    @property
    def wake_at(self) -> str | None:
        """When a segment that has suspended wants to be looked at again."""
        return self._wake_at

    def _next_deadline(self) -> str | None:
        """Return the earliest deadline that somebody waits for.

        One that the body has given up on, under a timeout of its own, wakes nobody.
        """
        parked = (e for e in self.replay.waiting() if e.seq in self._parked)
        deadlines = [e.deadline_at for e in parked if e.deadline_at is not None]
        deadlines += [wake_at for wake_at in self.waits.values() if wake_at is not None]
        return min(deadlines, key=parse_time, default=None)

    def _set_timer(self, opening: JournalEntry) -> None:
        wait_ms = parse_time(opening.deadline_at or "") - self.parts.clock.now_ms()
        nap = min(max(0, wait_ms) / 1000, _LONGEST_NAP_SECONDS)
        self._timers[opening.seq] = self.loop.call_later(nap, self._deadline, opening)

    def _deadline(self, opening: JournalEntry) -> None:
        self._timers.pop(opening.seq, None)
        if self.ending is not None or opening.seq not in self._parked:
            return
        if parse_time(opening.deadline_at or "") > self.parts.clock.now_ms():
            self._set_timer(opening)  # a nap was over, or the wall clock went back
            self._look_soon()
            return
        task = self.loop.create_task(self._answer_deadline(opening))
        self._tasks.add(task)
        task.add_done_callback(self._deadline_answered)

    def _deadline_answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_soon()

    async def _answer_deadline(self, opening: JournalEntry) -> None:
        """Journal that the deadline has passed, with the default that was journalled."""
        facts = opening.value if isinstance(opening.value, dict) else {}
        failure = None
        if opening.kind == "external" and not facts.get("hasDefault"):
            failure = Failure(
                code="step-failed",
                message=f"nothing resolved {opening.key!r} before {opening.deadline_at}",
                error_type="TimeoutError",
                step=opening.key,
            )
        draft = JournalEntry(
            seq=0,
            kind="resolution",
            status="error" if failure else "ok",
            key=opening.key,
            scope=opening.scope,
            ordinal=opening.ordinal,
            value=facts.get("default"),
            error=failure.to_json() if failure else None,
            ref=opening.seq,
            ended_at=self.now(),
        )
        try:
            await self.append(draft, claim=partial(self._claim, opening))
        except (InvalidResolutionError, SegmentEnded):
            return  # answered from outside at the same moment; or the segment has ended

    def _claim(self, opening: JournalEntry) -> None:
        # Called while no other append of this run is under way: one answer gets through.
        if opening.seq in self._answering or self.replay.answer_to(opening.seq) is not None:
            raise answered_already(self.run_id, opening.key)
        self._answering.add(opening.seq)

    # --- what others ask of a live segment, on its own loop -----------------------------------

    def _is_answered(self, key: str, seq: int | None) -> bool:
        if seq is None:
            return self.replay.has_asked(key)
        answer = self.replay.answer_to(seq)
        return answer is not None and answer.key == key

    async def resolve(self, key: str, value: object, seq: int | None = None) -> None:
        """Answer the earliest open suspension of ``key``, or the one that ``seq`` opened.

        Raises `NotAskedError` when there is none, `AlreadyAnsweredError` when another answer
        came first, and `InvalidResolutionError` when the value does not fit its schema.
        """
        self.check()
        opening = choose_wait(
            self.run_id,
            key,
            seq,
            self.replay.waiting(),
            is_answered=partial(self._is_answered, key, seq),
        )
        fitting = normalize(value)
        check_resolution(opening, fitting, run_id=self.run_id)
        draft = JournalEntry(
            seq=0,
            kind="resolution",
            status="ok",
            key=key,
            scope=opening.scope,
            ordinal=opening.ordinal,
            value=fitting,
            ref=opening.seq,
            ended_at=self.now(),
        )
        # While it is on its way the run does not suspend: whoever waits for it is about to go on.
        self._answers_under_way += 1
        try:
            await self.append(draft, claim=partial(self._claim, opening))
        finally:
            self._answers_under_way -= 1
            self._look_soon()

    async def cancel(self) -> None:
        """Cancel the run: its outcome will be ``cancelled``."""
        await self.through_door(lambda _parts, door: door.authority())
        self.end(Ending.CANCELLED)

    async def delete(self) -> None:
        """Delete the run from the inside, under the segment's own lease.

        Raises `LeaseHeldError` (``held``) while a child of it lives here.
        """
        self.check()
        for child_id in self.children:
            raise child_is_live(self.run_id, child_id)
        await self.through_door(lambda _parts, door: door.delete_run())
        self.end(Ending.DELETED)

    async def through_door(self, act: Callable[[Parts, Door], T]) -> T:
        """Do something to the run from the inside, under the segment's own lease."""
        self.check()
        try:
            return await self.store.call(partial(act, self.parts, self.door))
        except SupersededError as error:
            self.lose(error)
            self.end(Ending.LOST)
            raise SegmentEnded(WHY[Ending.LOST]) from error

    def drain(self) -> None:
        """Begin no further call; stop when those under way have been journalled."""
        self._draining = True
        for child in self.children.values():
            child.drain()
        self.loop.call_soon(self._suspend_if_idle)

    def stop(self) -> None:
        """Let the run go without an outcome: somebody else goes on with it."""
        if self.ending is None:
            self.end(Ending.STOPPED)
