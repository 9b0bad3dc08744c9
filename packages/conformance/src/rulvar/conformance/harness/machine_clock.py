"""A machine whose clock is wrong, for one process: the kit's own, never an application's.

A URL carries no clock, so a process that is to live an hour ahead of the others is given
wrong time from below: `time.time` and `time.time_ns` answer with an offset, and whatever
reads the time through them, `rulvar.core.clock.SystemClock` first, believes it. Monotonic time
stays true, as it does on a machine whose wall clock an operator moves. A store that takes
its time from elsewhere, from a server for example, is not moved; whoever
sets an offset for a store must look whether the store's leases believe it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["offset_ms", "set_offset", "true_now_ms"]

_true_time: Callable[[], float] = time.time
_true_time_ns: Callable[[], int] = time.time_ns
_offset_ms = 0


def _wrong_time() -> float:
    return _true_time() + _offset_ms / 1000


def _wrong_time_ns() -> int:
    return _true_time_ns() + _offset_ms * 1_000_000


def set_offset(ms: int, /) -> None:
    """Let this process's wall clock be off by ``ms`` milliseconds from now on.

    Positive is ahead of the true time, negative behind it, 0 right again. It holds for every
    thread of the process; a module that took ``time.time`` by name before the first call of
    this keeps the true one.
    """
    global _offset_ms  # noqa: PLW0603 - a process has one clock
    _offset_ms = ms
    time.time = _wrong_time
    time.time_ns = _wrong_time_ns


def offset_ms() -> int:
    """Return by how many milliseconds this process's wall clock is off."""
    return _offset_ms


def true_now_ms() -> int:
    """Return the true wall time in Unix milliseconds, whatever the offset."""
    return _true_time_ns() // 1_000_000
