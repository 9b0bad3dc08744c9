"""Calls into the application's code: what it raises is reported, and ends nothing else.

A step that calls ``sys.exit`` must not end the worker that runs it, and an event loop lets
`SystemExit` and `KeyboardInterrupt` through to whoever runs the loop. So what is no
`Exception` is carried in one, `RaisedError`, until it is journalled as the failure that it is.

What passes as it is does not come from the code that was called:

- `SegmentEnded`, once the segment has ended;
- a cancellation of the task that makes the call: by the end of the segment, or by a timeout
  around the call. `asyncio.Task.cancelling` tells it from one of the code's own making;
- `GeneratorExit`, when the coroutine is closed: then another task runs, or none;
- what the handler of a signal raises in the main thread, as Ctrl-C does.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import signal
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, Literal

from rulvar.core.engine.kernel.endings import SegmentEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, TracebackType

__all__ = ["RaisedError", "UserCode", "original"]

_RAISING = frozenset({dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]})


class RaisedError(Exception):
    """Carries what user code raised that is no `Exception`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"user code raised {type(error).__name__}")
        self.error = error


def original(error: BaseException) -> BaseException:
    """Return what user code raised."""
    return error.error if isinstance(error, RaisedError) else error


class UserCode:
    """Surrounds a call of user code, on a loop or in a separate thread.

    ``has_ended`` tells whether the segment has. Leaving it raises an `Exception` of the code
    as it is, `RaisedError` for anything else that the code raised, and what did not come from
    the code as it is.
    """

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        self._has_ended = has_ended
        self._task: weakref.ref[asyncio.Task[object]] | None = None
        self._cancelling = 0

    def __enter__(self) -> None:
        task = _current_task()
        # Not the task itself: its own frames would keep it alive.
        self._task = None if task is None else weakref.ref(task)
        self._cancelling = 0 if task is None else task.cancelling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if error is None or isinstance(error, Exception) or self._passes(error):
            return False
        raise RaisedError(error) from error

    def _passes(self, error: BaseException) -> bool:
        if isinstance(error, SegmentEnded):
            return self._has_ended()
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            if self._task is None:
                return False  # a thread: nobody cancels or closes what runs there
            task = self._task()
            if isinstance(error, GeneratorExit):
                return task is None or task is not _current_task()
            return task is not None and task.cancelling() > self._cancelling
        return _by_signal(error)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no loop runs in this thread


def _by_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised this, and not the code that it interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    handlers = set(_handlers())
    if any(frame.f_code in handlers for frame, _ in frames):
        return True
    if not isinstance(error, KeyboardInterrupt) or not frames:
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    # Python's own handler is no Python code: what it interrupts stands at no `raise`.
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISING


def _handlers() -> Iterator[CodeType]:
    """Yield the code of each signal handler that is written in Python."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):  # as asyncio.run has it
            handler = handler.func
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            yield code
