"""One-way, bounded event delivery: an observer can neither block nor fail a run.

Events come from bridge and renewer threads, and under locks: telling one puts it into a
buffer for each listener and does nothing else. An observer is called from a thread of its
own; a stream is read on its reader's loop. Each buffer is bounded: a slow listener loses the
oldest, and is told how many by an event of kind ``lagged``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from rulvar.core.checks import MAX_INTEGER, check_integer
from rulvar.core.errors import StoreForkedError
from rulvar.core.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.core.clock import Clock

__all__ = ["Emit", "Event", "EventBus", "EventStream", "no_events"]

_log = logging.getLogger("rulvar.engine")

_OBSERVER_BUFFER = 10_000
_CLOSE_SECONDS = 5.0


class Emit(Protocol):
    """How the parts of a segment say what happened; returns at once and never raises."""

    def __call__(
        self,
        kind: str,
        *,
        name: str = "",
        epoch: int | None = None,
        detail: str = "",
        seq: int | None = None,
        count: int | None = None,
        duration: float | None = None,
    ) -> None:
        """Tell one event of this run."""
        ...


def no_events(
    kind: str,
    *,
    name: str = "",
    epoch: int | None = None,
    detail: str = "",
    seq: int | None = None,
    count: int | None = None,
    duration: float | None = None,
) -> None:
    """Tell nobody."""


def _refuse_child(pid: int) -> None:
    if os.getpid() != pid:
        message = "these events are the parent process's: listen to an engine of this one"
        raise StoreForkedError(message)


class _Buffer:
    """The newest events that one listener has not taken yet."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._size = size
        self._lost = 0

    def put(self, event: Event) -> None:
        with self._lock:
            if len(self._events) >= self._size:
                self._events.popleft()
                self._lost += 1
            self._events.append(event)

    def take(self) -> Event | None:
        with self._lock:
            if self._lost:
                at_ms = self._events[0].at_ms if self._events else 0
                lagged = Event(kind="lagged", run_id="", count=self._lost, at_ms=at_ms)
                self._lost = 0
                return lagged
            return self._events.popleft() if self._events else None


class EventStream:
    """The events of one run or one engine, as an async iterator; one task reads it.

    It holds what happened since it was made, at most as many as its buffer, and ends when
    the segment or the engine has ended and everything was read. A stream that nobody refers
    to any more is forgotten.
    """

    def __init__(self, run_id: str | None, *, buffer: int) -> None:
        check_integer("buffer", buffer, 1, MAX_INTEGER)
        self._pid = os.getpid()
        self._run_id = run_id
        self._buffer = _Buffer(buffer)
        self._ended = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, event: Event) -> None:
        """Take in one event, from any thread."""
        if not self._ended and self._run_id in {None, event.run_id}:
            self._buffer.put(event)
            self._wake()

    def end(self) -> None:
        """Let the reader come to an end; from any thread, idempotent."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        loop, future = waiting
        try:
            loop.call_soon_threadsafe(_set, future)
        except RuntimeError:
            return  # the reader's loop is closed: nobody reads any more

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        _refuse_child(self._pid)
        if self._waiting is not None:
            message = "another task reads this stream: make one for each reader"
            raise RuntimeError(message)
        loop = asyncio.get_running_loop()
        while True:
            future = loop.create_future()
            # Before the look into the buffer: what comes after it wakes this reader.
            self._waiting = (loop, future)
            try:
                ended = self._ended
                event = self._buffer.take()
                if event is not None:
                    return event
                if ended:
                    raise StopAsyncIteration
                await future
            finally:
                self._waiting = None

    async def aclose(self) -> None:
        """End the stream; what was not read is dropped."""
        self.end()
        while self._buffer.take() is not None:
            pass


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Observed:
    """One observer, called from a separate thread that begins with the first event."""

    def __init__(self, observer: Callable[[Event], None]) -> None:
        self._observer = observer
        self._buffer = _Buffer(_OBSERVER_BUFFER)
        self._wake = threading.Semaphore(0)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, event: Event) -> None:
        self._buffer.put(event)
        if self._thread is None:
            self._start()
        self._wake.release()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(target=self._work, name="rulvar-observer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no thread to be had now: the next event tries again
            self._thread = thread

    def end(self) -> None:
        self._closed = True
        self._wake.release()

    def join(self, seconds: float) -> None:
        """Wait until everything was told, but no longer than ``seconds``."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, seconds))
            if thread.is_alive():
                _log.warning("an observer has not handled all of its events: %r", self._observer)

    def _work(self) -> None:
        while True:
            closed = self._closed
            event = self._buffer.take()
            if event is not None:
                self._emit(event)
            elif closed:
                return
            else:
                self._wake.acquire()

    def _emit(self, event: Event) -> None:
        try:
            self._observer(event)
        except BaseException:  # noqa: BLE001 - logged: it never hurts a run
            _log.exception("an observer raised on %s of run %r", event.kind, event.run_id)


class EventBus:
    """Where one engine tells its events, and its listeners get them."""

    def __init__(self, clock: Clock, observers: Iterable[Callable[[Event], None]]) -> None:
        self._clock = clock
        self._observed = tuple(_Observed(observer) for observer in observers)
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._streams: tuple[weakref.ref[EventStream], ...] = ()
        self._closed = False

    def emit(
        self,
        run_id: str,
        segment: int,
        kind: str,
        *,
        name: str = "",
        epoch: int | None = None,
        detail: str = "",
        seq: int | None = None,
        count: int | None = None,
        duration: float | None = None,
    ) -> None:
        """Tell one event, from any thread and under any lock; costs little when none listens."""
        streams = self._streams
        if not streams and not self._observed:
            return
        event = Event(
            kind=kind,
            run_id=run_id,
            segment=segment,
            epoch=epoch,
            name=name,
            detail=detail,
            seq=seq,
            count=count,
            duration=duration,
            at_ms=self._clock.now_ms(),
        )
        for observed in self._observed:
            observed.put(event)
        for reference in streams:
            stream = reference()
            if stream is not None:
                stream.put(event)
            else:
                self._forget_the_dead()

    def stream(self, run_id: str | None, *, buffer: int) -> EventStream:
        """Make a stream of one run's events, or of all.

        Raises `ConfigError` for a buffer that cannot work, `StoreForkedError` in a forked child.
        """
        _refuse_child(self._pid)
        stream = EventStream(run_id, buffer=buffer)
        with self._changing:
            closed = self._closed
            if not closed:
                alive = (one for one in self._streams if one() is not None)
                self._streams = (*alive, weakref.ref(stream))
        if closed:
            stream.end()
        return stream

    def forget(self, stream: EventStream) -> None:
        """End a stream."""
        stream.end()
        with self._changing:
            self._streams = tuple(one for one in self._streams if one() not in {None, stream})

    def _forget_the_dead(self) -> None:
        with self._changing:
            self._streams = tuple(one for one in self._streams if one() is not None)

    def close(self) -> None:
        """End every stream and let the observers' threads come to an end; idempotent."""
        with self._changing:
            self._closed = True
            streams, self._streams = self._streams, ()
        for reference in streams:
            stream = reference()
            if stream is not None:
                stream.end()
        for observed in self._observed:
            observed.end()

    def join(self) -> None:
        """Wait a while until the observers were told everything; call it in a thread."""
        give_up_at = time.monotonic() + _CLOSE_SECONDS
        for observed in self._observed:
            observed.join(give_up_at - time.monotonic())
