"""What becomes of user code that goes on after its segment has ended.

The first call of each scope raises `SegmentEnded`, which ends a body in good order. A body
that catches even that (``except:`` around a call, in a loop) would call again at once, for
ever, and no other run of its loop would ever move. So a later call never comes back: its task
stays where it is, the loop lives, and the segment is concluded without it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Afterlife", "abandon", "burial"]


class Afterlife:
    """Which scopes of one segment have been told of its end."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    async def refuse(
        self, scope: str, why: BaseException, *, ours: bool, on_stay: Callable[[], bool]
    ) -> NoReturn:
        """Raise ``why`` to the first call of a scope; a later one never returns.

        ``ours`` is whether the segment's own code is calling, in a task or thread of its own;
        ``on_stay`` is told before such a task stays where it is, and returns whether somebody
        buries it. Other code gets ``why`` each time, after a turn of its loop: it may be a
        body that is being thrown away.
        """
        if scope not in self._told:
            self._told.add(scope)
            raise why
        if not ours:
            await asyncio.sleep(0)
            raise why
        _abandon_this(buried=on_stay())
        while True:
            await _Never()


class _Never(asyncio.Future[None]):
    """What never comes and cannot be cancelled; it does not keep alive who waits for it."""

    def add_done_callback(self, *_args: object, **_options: object) -> None:
        """Forget the callback: there is nothing to be told."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - the signature is asyncio's
        """Refuse."""
        return False


def _abandon_this(*, buried: bool) -> None:
    task = asyncio.current_task()
    if task is not None and buried:
        _forget(task)
    elif task is not None:
        abandon(task)


def abandon(task: asyncio.Task[object]) -> None:
    """Let nobody wait for a task that does not obey, and never throw it away.

    `asyncio.run` waits for every task that it knows. A coroutine that is thrown away is closed,
    and one that catches even that may go on in there for ever, when its loop is gone and
    nothing makes it wait: the memory is the smaller loss.
    """
    _forget(task)
    _kept.append(task)
    try:
        import ctypes  # noqa: PLC0415 - only for who needs it
    except ImportError:
        return  # until the interpreter ends, then
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


_kept: list[asyncio.Task[object]] = []


def _forget(task: asyncio.Task[object]) -> None:
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for who writes loops and tasks
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - as gather does


@contextmanager
def burial() -> Iterator[None]:
    """Surround the dropping of the last reference to a task that stays behind for ever.

    Its coroutines are closed then, and code that catches everything goes on once more: Python
    reports that as an error that nobody can handle. It was told already.
    """
    before, here = sys.unraisablehook, threading.get_ident()

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        ignored = isinstance(unraisable.exc_value, RuntimeError)
        of_coroutine = isinstance(unraisable.object, CoroutineType)
        if not (ignored and of_coroutine and threading.get_ident() == here):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
