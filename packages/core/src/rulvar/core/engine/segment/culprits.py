"""Code of a run that ends its process: by the event loop, or by the tasks of others.

``loop.stop()`` ends the host's loop, and a cancellation of every task its main task. What
comes then looks like an orderly end: each segment is cancelled, and lets its run go. For the run
whose code did it that is a death, as if it had killed its process: at every restart it would do
it again. So its segment is marked here, and its row does not say that it was let go in order.

Whose code it was is told by the context that the call was made in: tasks, callbacks and the
threads of steps inherit it. Where it is unknown, `blame` marks every run that was executing.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from rulvar.core.engine.segment.lifecycle import CURRENT

if TYPE_CHECKING:
    from rulvar.core.engine.segment.lifecycle import Segment

__all__ = ["CANCELLED", "STOPPED", "SegmentTask", "blame", "watch_code"]

T = TypeVar("T")

STOPPED = "has stopped the event loop"
CANCELLED = "has cancelled tasks that are not its own"

_live: weakref.WeakSet[Segment] = weakref.WeakSet()
_watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


_changing = threading.Lock()
"""Loops in several threads add to the sets above, and look through them."""


class SegmentTask(asyncio.Task[T]):
    """The task that drives a segment: it notes whose code cancels it.

    The segment ends at once, not when the cancellation arrives: a caller that cancels every task
    cancels the body's too, and a call that is left in that way was not given up by the body.
    """

    segment: Segment | None = None

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - the signature is asyncio's
        """Cancel it, as any task; a run whose code does that has ended its own process."""
        _mark_caller(self.get_loop(), CANCELLED)
        if self.segment is not None:
            self.segment.stop()
        return super().cancel(msg)


def watch_code(segment: Segment) -> None:
    """Note from now on when a run's code stops this segment's loop.

    A loop whose class does not let its methods be replaced is left as it is.
    """
    loop = segment.loop
    with _changing:
        _live.add(segment)
        if loop in _watched:
            return
    stop = loop.stop
    watched = weakref.ref(loop)

    def noted_stop() -> None:
        of = watched()
        if of is not None:
            _mark_caller(of, STOPPED)
        stop()

    try:
        loop.stop = noted_stop  # type: ignore[method-assign] # on this loop alone, not its class
        with _changing:
            _watched.add(loop)
    except (AttributeError, TypeError):
        return


def blame(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Mark every segment that executes on a loop, unless it is known whose code it was."""
    with _changing:
        of_loop = [each for each in _live if each.loop is loop]
    if not _mark_caller(loop, what) and not any(each.fatal for each in of_loop):
        for segment in of_loop:
            if not segment.has_ended:
                segment.fatal = what


def _mark_caller(loop: asyncio.AbstractEventLoop, what: str) -> bool:
    caller = CURRENT.get()
    if caller is None or caller.loop is not loop:
        return False
    caller.fatal = caller.fatal or what
    return True
