"""Why a segment ends, and how it leaves user code: what ``except Exception`` cannot catch."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["WHY", "Ending", "SegmentEnded"]


class Ending(IntEnum):
    """Why a segment ended; the lower number wins: a lost run is lost whatever else happened."""

    LOST = 1
    FAILED = 2
    DELETED = 3
    CANCELLED = 4
    TIMED_OUT = 5
    BLOCKED = 6
    STOPPED = 7
    SUSPENDED = 8
    FINISHED = 9


WHY: Final = {
    Ending.LOST: "it lost the run to a successor",
    Ending.FAILED: "it could not go on",
    Ending.DELETED: "its run was deleted",
    Ending.CANCELLED: "its run was cancelled",
    Ending.TIMED_OUT: "its run's deadline has passed",
    Ending.BLOCKED: "its journal cannot be replayed by this code",
    Ending.STOPPED: "it was asked to stop",
    Ending.SUSPENDED: "its run is suspended",
    Ending.FINISHED: "its body has returned",
}


class SegmentEnded(BaseException):
    """Raised by every call on a context whose segment has ended.

    It is no `Exception` on purpose: code that catches everything must not keep a segment
    alive that has lost its run. If you must catch ``BaseException``, raise it again::

        try:
            await ctx.step("charge", charge)
        except Exception:      # does not catch it: right
            ...
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"this segment has ended: {why}; let this pass through your code")
