"""How a segment leaves user code: control flow that ``except Exception`` cannot catch."""

from __future__ import annotations

__all__ = ["SegmentEnded"]


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
