"""A run that is live in this process: its result, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine.admin.callers import confirmed_caller
from rulvar.core.engine.driver import drive
from rulvar.core.engine.io.bridge import on_loop
from rulvar.core.engine.kernel.endings import Ending, SegmentEnded
from rulvar.core.engine.lease.ownership import OwnedLease
from rulvar.core.engine.segment import requests
from rulvar.core.engine.segment.culprits import SegmentTask
from rulvar.core.engine.segment.lifecycle import CURRENT
from rulvar.core.errors import StoreError
from rulvar.core.records import TERMINAL_STATUSES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine.io.event_bus import Emit, EventStream
    from rulvar.core.engine.kernel.outcome import RunOutcome
    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.segment.begin import Resume, StartNew
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.runtime import Runtime

__all__ = ["RunHandle"]

_log = logging.getLogger("rulvar.engine")


class RunHandle:
    """One segment under way; made by `Engine.start` and `Engine.start_resume`."""

    def __init__(
        self,
        run_id: str,
        runtime: Runtime,
        request: StartNew | Resume,
        take: Callable[[], Ownership],
        *,
        on_end: Callable[[RunHandle], None],
        resolve: Callable[..., Awaitable[None]],
        cancel: Callable[[], Awaitable[RunOutcome]],
    ) -> None:
        self.run_id = run_id
        self._resolve = resolve
        self._cancel = cancel
        self._runtime = runtime
        self._segment: Segment | None = None
        self._asked: Ending | None = None
        self._began = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = SegmentTask(
            self._drive(request, take), loop=self._loop, name=f"rulvar-segment:{run_id}"
        )
        # What other loops wait on; running, so that nobody who waits can cancel it.
        self._over: Future[RunOutcome] = Future()
        self._over.set_running_or_notify_cancel()
        self._task.add_done_callback(lambda task: self._ended(task, on_end))

    @property
    def done(self) -> bool:
        """Whether the segment is over and its lease given back."""
        return self._over.done()

    async def began(self) -> bool:
        """Wait until the segment has begun; False when it ended without: refused, or no need to.

        Whoever waits on the run's own loop goes on before the body's first line does.
        """
        self._runtime.bridge.refuse_child()
        await on_loop(self._loop, self._wait_began())
        return self._segment is not None

    async def _wait_began(self) -> None:
        await self._began.wait()

    async def result(self) -> RunOutcome:
        """Wait for the segment's end, on any loop; cancelling the wait leaves the run alone.

        Raises as `Engine.run` does, and `StoreForkedError` in a forked child, as every call.
        """
        self._runtime.bridge.refuse_child()
        return await asyncio.wrap_future(self._over)

    async def result_or_detach(self) -> RunOutcome:
        """Wait for the segment's end; cancelling the wait lets the run go. Raises as `result`."""
        try:
            return await self.result()
        except asyncio.CancelledError:
            self.detach()
            while not self.done:
                # Cancelled again: still wait, or the run looks live to whoever resumes it next.
                with contextlib.suppress(asyncio.CancelledError):
                    await self.wait()
            raise

    async def wait(self) -> None:
        """Wait until the segment is over, however it ended."""
        self._runtime.bridge.refuse_child()
        over = asyncio.wrap_future(self._over)
        try:
            await asyncio.wait({over})
        except asyncio.CancelledError:
            over.cancel()  # nobody waits for it any more
            raise
        over.exception()  # seen: result() tells whoever asks

    def _ended(self, task: asyncio.Task[RunOutcome], on_end: Callable[[RunHandle], None]) -> None:
        self._began.set()  # or it never will: nobody is to wait for it any more
        on_end(self)
        if task.cancelled():
            self._over.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._over.set_exception(error)
        else:
            self._over.set_result(task.result())

    async def cancel(self) -> RunOutcome:
        """End the run as ``cancelled`` and return its outcome, or the one that it has already.

        Where the segment had suspended the run, or let it go, before it heard of it, the run is
        cancelled under a brief lease. Raises as `result`, and `LeaseHeldError` (``held``) when
        another process has taken the run since.
        """
        await confirmed_caller(self._runtime)
        self._ask(Ending.CANCELLED)
        outcome = await self.result()
        return outcome if outcome.status in TERMINAL_STATUSES else await self._cancel()

    def detach(self) -> None:
        """End the segment without an outcome; its lease is given back, the run stays."""
        self._ask(Ending.STOPPED)

    def drain(self) -> None:
        """Let the calls under way end and be journalled, then let the run go."""
        self._runtime.bridge.refuse_child()

        def ask() -> None:
            if self._segment is None:
                self._asked = Ending.STOPPED
            else:
                self._segment.drain()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ask)

    def events(self, *, buffer: int = 1_000) -> EventStream:
        """Return what happens to this run from now on; it ends with the segment.

        A reader that is more than ``buffer`` events behind loses the oldest, and gets an
        event of kind ``lagged`` in their place. Raises `ConfigError` for a bad ``buffer``.
        """
        bus = self._runtime.bus
        stream = bus.stream(self.run_id, buffer=buffer)
        watched = weakref.ref(stream)

        def over(_task: asyncio.Task[RunOutcome]) -> None:
            ended = watched()
            if ended is not None:
                bus.forget(ended)

        if self._loop.is_closed():
            bus.forget(stream)
        else:
            self._loop.call_soon_threadsafe(self._task.add_done_callback, over)
        return stream

    async def resolve(self, key: str, value: object = None, *, seq: int | None = None) -> None:
        """Answer what the run waits for under ``key``, whether the segment is over or not.

        Once it is over, a brief lease rides the answer. Arguments and what is raised are those
        of `Engine.resolve`.
        """
        await self._resolve(key, value, seq=seq)

    async def resolve_live(self, key: str, value: object, seq: int | None) -> bool:
        """Answer what the live run waits for; False when the segment has ended by now."""
        self._runtime.bridge.refuse_child()
        return await on_loop(self._loop, self._resolve_live(key, value, seq))

    async def _resolve_live(self, key: str, value: object, seq: int | None) -> bool:
        await self._began.wait()
        if self._segment is not None and self._segment.ending is None:
            try:
                await requests.resolve(self._segment, key, value, seq)
            except SegmentEnded:
                pass  # it ended in between: the run is resolved under a brief lease
            else:
                return True
        await self.wait()
        return False

    def _ask(self, ending: Ending) -> None:
        self._runtime.bridge.refuse_child()

        def ask() -> None:
            if self._segment is None:
                self._asked = ending if self._asked is None else min(ending, self._asked)
            else:
                self._segment.end(ending)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ask)

    def _live(self, segment: Segment) -> None:
        self._segment = self._task.segment = segment
        self._began.set()
        if self._asked is not None:
            segment.end(self._asked)

    async def _drive(self, request: StartNew | Resume, take: Callable[[], Ownership]) -> RunOutcome:
        CURRENT.set(None)  # a run started from inside another is no part of it
        runtime = self._runtime
        taken: list[Ownership] = []
        try:
            await runtime.bridge.call(take, then=taken.append)
            [ownership] = taken
            if isinstance(ownership, OwnedLease):
                runtime.renewer.watch(ownership, self._loop)
            self._emit("lease.granted", epoch=ownership.epoch)
            outcome = await drive(runtime, ownership, request, on_live=self._live)
        except BaseException as error:
            self._emit("run.ended", name=type(error).__name__)
            raise
        else:
            self._emit("run.ended", name=outcome.status)
            return outcome
        finally:
            for ownership in taken:
                await self._give_back(ownership)

    async def _give_back(self, ownership: Ownership) -> None:
        try:
            await self._runtime.bridge.call(partial(self._runtime.give_back, ownership))
        except StoreError as error:
            # The outcome stands; the lease runs out by itself.
            _log.warning("run %r: its lease could not be released: %s", self.run_id, error)
        else:
            self._emit("lease.released", epoch=ownership.epoch)

    @property
    def _emit(self) -> Emit:
        number = 0 if self._segment is None else self._segment.number
        return partial(self._runtime.bus.emit, self.run_id, number)
