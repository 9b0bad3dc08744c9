"""An engine that is called from inside a run: by its body, by a step, by a thread of a step.

Such a call acts on another run, which the caller's own lease does not fence. So the store is
asked whether the caller still owns its run: before another run is taken, and when it is, for
taking it may have waited.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.engine.segment.lifecycle import current_segment, entering
from rulvar.core.errors import SupersededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.runtime import Runtime

__all__ = ["caller_of", "confirmed", "confirmed_caller", "confirmed_caller_of"]


async def confirmed_caller(runtime: Runtime) -> None:
    """Refuse a caller that has ended, or has lost its run without knowing it yet.

    Raises `SegmentEnded`; a caller that asks again after that waits for ever.
    """
    caller = await entering()
    if caller is not None:
        await runtime.bridge.call(partial(_confirm, caller))
        caller.check()


def caller_of(runtime: Runtime, run_id: str) -> Segment | None:
    """Return the segment of ``run_id`` that is calling. Raises as `current_segment`."""
    runtime.bridge.refuse_child()
    current = current_segment()
    if current is None or current.run_id != run_id:
        return None
    return current if current.runtime.reads.shares_stores(runtime.reads) else None


async def confirmed_caller_of(runtime: Runtime, run_id: str) -> Segment | None:
    """Return the segment of ``run_id`` that is calling. Raises as `confirmed_caller`."""
    await confirmed_caller(runtime)
    return caller_of(runtime, run_id)


def confirmed(runtime: Runtime, take: Callable[[], Ownership]) -> Callable[[], Ownership]:
    """Return ``take`` for whoever calls now: a segment must own its run before and after it.

    Raises `SegmentEnded` for one that has ended, and so does what is returned.
    """
    caller = current_segment()
    if caller is None:
        return take

    def take_confirmed() -> Ownership:
        _confirm(caller)
        ownership = take()
        try:
            _confirm(caller)
        except BaseException:
            runtime.give_back(ownership)
            raise
        return ownership

    return take_confirmed


def _confirm(caller: Segment) -> None:
    caller.check()
    try:
        caller.writer.confirm()
    except SupersededError as error:
        caller.lose(error)
        caller.check()
        raise SegmentEnded(str(error)) from error
