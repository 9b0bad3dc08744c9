"""When a segment goes on and when it suspends: its tasks, their waits and their deadlines.

A *task* is a line of execution of the body: the body itself and each branch of a
``parallel``. A task is parked while it waits for a suspension, or for its branches. When
every task is parked, only the outside can move the run: the segment suspends.

A deadline of the body's own around a suspension (`asyncio.timeout`, ``asyncio.wait_for``)
lives in this process alone, so that task is not parked: the segment waits with it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rulvar.core.engine.kernel.endings import Ending, SegmentEnded
from rulvar.core.engine.kernel.outcome import Failure
from rulvar.core.errors import InvalidResolutionError
from rulvar.core.journal.drafts import answer_draft
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from rulvar.core.engine.kernel.replay import Call
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.journal import JournalEntry

__all__ = ["Scheduler"]

T = TypeVar("T")

_LONGEST_NAP_SECONDS = 15.0
"""A loop's timer stands still while the machine sleeps, and hears of no change of the clock."""

_SHORTEST_NAP_SECONDS = 0.001

_GRACE_SECONDS = 10.0
"""How long calls under way may still end once a run is known to be blocked."""


class Scheduler:
    """The lines of execution of one live segment, on its event loop."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._loop = segment.loop
        self.waits: dict[int, str | None] = {}
        """Children that tasks wait for, by the seq of their call: when each is due."""
        self.draining = False
        self.wake_at: str | None = None
        self.answers_under_way = 0
        self.untried: Call | None = None
        """In a trial: the first call at which it could go no further."""
        self._running = 1
        self._parked: dict[int, asyncio.Future[JournalEntry]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._grace: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """Count one more line of execution."""
        self._running += 1

    def rests(self) -> None:
        """Count one less: it has ended, or it is parked."""
        self._running -= 1
        self.look_soon()

    def look_soon(self) -> None:
        """Suspend or stop soon, if every task is parked then."""
        if self._running == 0:
            self._loop.call_soon(self._suspend_if_idle)

    def end(self) -> None:
        """Set no timer off any more: the segment has ended."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._grace is not None:
            self._grace.cancel()

    def drain(self) -> None:
        """Begin no further call; end the segment when those under way have been journalled."""
        self.draining = True
        self._loop.call_soon(self._suspend_if_idle)

    def drain_within_grace(self) -> None:
        """Drain, and end the segment as blocked after a while, whatever is under way still."""
        self.drain()
        self._grace = self._loop.call_later(_GRACE_SECONDS, self._segment.end, Ending.BLOCKED)

    def work(self, what: Coroutine[object, object, None]) -> None:
        """Do something for the segment; it does not suspend meanwhile."""
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._segment.fail(error)
        self.look_soon()

    async def finish_work(self) -> None:
        """Wait until what was begun with `work` is done."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stand_still(self) -> None:
        """Wait for the end of the segment; never returns otherwise."""
        self.rests()
        try:
            await self._loop.create_future()
        finally:
            self.begins()

    async def try_no_further(self, call: Call) -> NoReturn:
        """Stand still at a call that a trial may not perform; other tasks go on."""
        self.untried = self.untried or call
        while True:
            await self.stand_still()

    async def within(
        self, deadline_at: str, what: Coroutine[object, object, T]
    ) -> asyncio.Task[T] | None:
        """Return the task that did it, or None when the deadline came first: it is cancelled.

        Whoever ignores the cancellation goes on unobserved.
        """
        task = self._loop.create_task(what)
        try:
            while not task.done() and not self.is_past(deadline_at):
                nap = self.nap_until(deadline_at)
                await asyncio.wait({task}, timeout=max(nap, _SHORTEST_NAP_SECONDS))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if task.done():
            return task
        task.add_done_callback(_is_seen)
        task.cancel()
        return None

    async def wait_for(self, opening: JournalEntry) -> JournalEntry:
        """Park until the suspension that ``opening`` opened is answered."""
        answer = self._segment.replay.answer_to(opening.seq)
        if answer is not None:
            return answer
        future: asyncio.Future[JournalEntry] = self._loop.create_future()
        self._parked[opening.seq] = future
        if opening.deadline_at is not None:
            self._set_timer(opening)
        # A deadline of the body's own would be lost with the process: the segment stays.
        stays = _has_own_deadline(self._loop, asyncio.current_task())
        if not stays:
            self.rests()
        try:
            return await future
        finally:
            if self._parked.pop(opening.seq, None) is not None:
                self._running += 0 if stays else 1
            elif stays:
                self._running -= 1  # counted by whoever woke it

    def wake(self, seq: int, answer: JournalEntry) -> None:
        """Hand an answer to the task that is parked for it, if one is."""
        future = self._parked.pop(seq, None)
        if future is None:
            return
        self._running += 1  # before its task runs: nothing may look idle meanwhile
        if not future.done():
            future.set_result(answer)

    def is_parked(self, seq: int) -> bool:
        """Whether a task is parked for the suspension that ``seq`` opened."""
        return seq in self._parked

    def _suspend_if_idle(self) -> None:
        segment = self._segment
        if self._running or segment.ending is not None or self._tasks or self.answers_under_way:
            return
        if segment.blocked is not None:
            segment.end(Ending.BLOCKED)
            return
        if self.draining or self.untried is not None:
            segment.end(Ending.STOPPED)
            return
        if not self._parked and not self.waits:
            return
        wake_at = self._next_deadline()
        if wake_at is not None:
            ahead_ms = parse_time(wake_at) - segment.runtime.clock.now_ms()
            if ahead_ms <= segment.runtime.suspend_after_ms:
                return  # it is due soon: a timer is set for it
        self.wake_at = wake_at
        segment.end(Ending.SUSPENDED)

    def _next_deadline(self) -> str | None:
        """Return the earliest deadline that a task waits for."""
        parked = (e for e in self._segment.replay.waiting() if e.seq in self._parked)
        deadlines = [e.deadline_at for e in parked if e.deadline_at is not None]
        deadlines += [wake_at for wake_at in self.waits.values() if wake_at is not None]
        deadlines += [at for at in self._segment.deadlines() if at is not None]
        return min(deadlines, key=parse_time, default=None)

    # --- deadlines of suspensions ---------------------------------------------------------

    def _set_timer(self, opening: JournalEntry) -> None:
        nap = self.nap_until(opening.deadline_at or "")
        self._timers[opening.seq] = self._loop.call_later(nap, self._deadline, opening)

    def nap_until(self, deadline_at: str) -> float:
        """Return how many seconds to sleep before the clock is looked at again."""
        wait_ms = parse_time(deadline_at) - self._segment.runtime.clock.now_ms()
        return min(max(0, wait_ms) / 1000, _LONGEST_NAP_SECONDS)

    def is_past(self, deadline_at: str) -> bool:
        """Whether the engine's clock has come to a deadline."""
        return parse_time(deadline_at) <= self._segment.runtime.clock.now_ms()

    def _deadline(self, opening: JournalEntry) -> None:
        self._timers.pop(opening.seq, None)
        if self._segment.ending is not None or opening.seq not in self._parked:
            return
        if not self.is_past(opening.deadline_at or ""):
            self._set_timer(opening)  # a nap was over, or the wall clock went back
            self.look_soon()
            return
        self.work(self._answer_deadline(opening))

    async def _answer_deadline(self, opening: JournalEntry) -> None:
        """Journal that the deadline has passed, with the default that was journalled."""
        segment = self._segment
        facts = opening.value if isinstance(opening.value, dict) else {}
        failure = None
        if opening.kind == "external" and not facts.get("hasDefault"):
            failure = Failure(
                code="step-failed",
                message=f"nothing resolved {opening.key!r} before {opening.deadline_at}",
                error_type="TimeoutError",
                step=opening.key,
            )
        draft = answer_draft(
            opening,
            now=segment.now(),
            kind="resolution",
            status="error" if failure else "ok",
            value=facts.get("default"),
            error=failure.to_json() if failure else None,
        )
        try:
            await segment.append(draft, claim=partial(segment.claim, opening))
        except (InvalidResolutionError, SegmentEnded):
            return  # answered from outside at the same moment; or the segment has ended


def _is_seen(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()


def _has_own_deadline(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object] | None) -> bool:
    """Whether code has set a timer of the loop that will cancel this very task.

    `asyncio.timeout`, and what is built like it, register a bound method of an object that
    knows its task. A loop that does not show its timers is taken to have none.
    """
    scheduled = getattr(loop, "_scheduled", ())
    for timer in scheduled:
        if timer.cancelled():
            continue
        holder = getattr(getattr(timer, "_callback", None), "__self__", None)
        names = ("_task", "_host_task")
        if task is not None and any(getattr(holder, name, None) is task for name in names):
            return True
    return False
