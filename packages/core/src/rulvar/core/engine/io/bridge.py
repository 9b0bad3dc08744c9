"""From asyncio to the synchronous SPI and back, in one place.

A store call is one bounded transaction: it is begun or it is not, and once begun it is
waited for. So the future that stands for it cannot be cancelled. A task that is cancelled
meanwhile learns of it when the call is over, and the call has exactly one known outcome.

Answers go back in one wake-up of the loop per burst, not one per answer: many runs commit
in one transaction and come back together.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rulvar.core.errors import ConfigError, StoreForkedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

__all__ = ["Bridge", "call_once", "on_loop"]

T = TypeVar("T")

_FORKED = (
    "this engine belongs to the parent process, and its threads are there: close it and its stores "
    "before the fork, and make both anew in the child, or start the child by spawn"
)


class _Unstoppable(asyncio.Future[T], Generic[T]):
    """A future that a cancelled task still waits for."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the signature is asyncio's
        return False


class _Mailbox:
    """Where threads leave answers for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._answers: deque[tuple[asyncio.Future[object], object, BaseException | None]] = deque()
        self._woken = False

    def put(
        self, future: asyncio.Future[object], value: object, error: BaseException | None
    ) -> None:
        with self._lock:
            self._answers.append((future, value, error))
            if self._woken:
                return
            self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop was closed: nobody waits for the answer any more.
            return

    def _drain(self) -> None:
        with self._lock:
            self._woken = False
            answers = list(self._answers)
            self._answers.clear()
        for future, value, error in answers:
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            elif isinstance(error, StopIteration):
                # A future cannot carry it: it would end the coroutine that waits.
                wrapped = RuntimeError("StopIteration was raised in a thread")
                wrapped.__cause__ = error
                future.set_exception(wrapped)
            else:
                future.set_exception(error)


_Job = tuple["Callable[[], object]", "asyncio.Future[object]", _Mailbox, "Context | None"]


class Bridge:
    """A bounded set of daemon threads, made as they are needed, that run blocking calls."""

    def __init__(self, *, threads: int = 64, name: str = "rulvar-store") -> None:
        if threads < 1:
            message = f"a bridge needs at least one thread, not {threads}"
            raise ConfigError(message)
        self._pid = os.getpid()
        self._limit = threads
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0
        self._begun: set[asyncio.Future[object]] = set()
        self._closed = False
        self._mailboxes: dict[asyncio.AbstractEventLoop, _Mailbox] = {}

    @property
    def limit(self) -> int:
        """The most threads that there are at a time."""
        return self._limit

    @property
    def left_behind(self) -> int:
        """How many calls have begun, were given up by whoever made them, and go on."""
        return sum(future.cancelled() for future in list(self._begun))

    async def call(
        self, function: Callable[[], T], *, then: Callable[[T], None] | None = None
    ) -> T:
        """Run a store call in a thread and wait for its end, whatever happens to this task.

        ``then`` gets the result on the loop, before this task goes on and also when it was
        cancelled meanwhile. Raises what ``function`` raises; `asyncio.CancelledError` only
        after the call ended.
        """
        loop = asyncio.get_running_loop()
        future: _Unstoppable[object] = _Unstoppable(loop=loop)
        if then is not None:
            future.add_done_callback(_when_it_succeeds(then))
        self._submit(function, future, None)
        try:
            return cast("T", await future)
        except asyncio.CancelledError:
            if future.done():
                future.exception()  # seen: its outcome is known to the callee already
            raise

    async def call_abandonable(self, function: Callable[[], T]) -> T:
        """Run user code in a thread, in this task's context; a cancelled task does not wait.

        What still waits for a thread then is not begun. A thread that has begun cannot be
        stopped: what it still does, it does unobserved.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._submit(function, future, copy_context())
        return cast("T", await future)

    def refuse_child(self) -> None:
        """Raise `StoreForkedError` in a forked child, which has none of the threads."""
        if os.getpid() != self._pid:
            raise StoreForkedError(_FORKED)

    def close(self) -> None:
        """Let the threads end after their present job; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = self._threads
            self._mailboxes.clear()
        for _ in range(threads):
            self._jobs.put(None)

    def _submit(
        self,
        function: Callable[[], object],
        future: asyncio.Future[object],
        context: Context | None,
    ) -> None:
        self.refuse_child()  # before the lock: a thread of the parent may hold it for ever
        loop = future.get_loop()
        with self._lock:
            if self._closed:
                message = "the engine is closed: make a new one"
                raise ConfigError(message)
            mailbox = self._mailboxes.get(loop)
            if mailbox is None:
                for old in [old for old in self._mailboxes if old.is_closed()]:
                    del self._mailboxes[old]
                mailbox = self._mailboxes[loop] = _Mailbox(loop)
            self._unfinished += 1
            grow = self._unfinished > self._threads and self._threads < self._limit
            if grow:
                self._threads += 1
                number = self._threads
        self._jobs.put((function, future, mailbox, context))
        if grow:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future, mailbox, context = job
            value: object = None
            error: BaseException | None = None
            if not future.cancelled():  # given up while it waited for a thread: not begun
                self._begun.add(future)
                try:
                    value = function() if context is None else context.run(function)
                except BaseException as caught:  # noqa: BLE001 - handed to whoever waits
                    error = caught
            self._begun.discard(future)
            with self._lock:
                self._unfinished -= 1
            mailbox.put(future, value, error)
            del function, future, mailbox, context, job, value, error


async def call_once(function: Callable[[], T]) -> T:
    """Run a call in a separate thread: those of the loop may be full of what does not end."""
    bridge = Bridge(threads=1, name="rulvar-once")
    try:
        return await bridge.call(function)
    finally:
        bridge.close()


def _when_it_succeeds(then: Callable[[T], None]) -> Callable[[asyncio.Future[object]], None]:
    def hand_over(future: asyncio.Future[object]) -> None:
        if future.exception() is None:
            then(cast("T", future.result()))

    return hand_over


async def on_loop(loop: asyncio.AbstractEventLoop, call: Coroutine[object, object, T]) -> T:
    """Await ``call`` on ``loop``, from whatever loop asks; raises what it raises."""
    if loop is asyncio.get_running_loop():
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))
