"""Time comes in as an argument: the clock that a store or an engine is given."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What tells a store and an engine the time.

    Wall time may jump in either direction. A store judges expiry by it, so a lying clock
    may cost liveness; it never costs safety, which comes from the epoch alone
    (contract.md#live-leases).
    """

    def now_ms(self) -> int:
        """Return the wall time in Unix milliseconds."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never run backwards, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the wall time in Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000
