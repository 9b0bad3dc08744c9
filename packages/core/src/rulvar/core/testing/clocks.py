"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading

from rulvar.core.errors import ConfigError

__all__ = ["ManualClock"]


class ManualClock:
    """Wall and monotonic time under a test's control; safe to share between threads.

    ``now_ms`` is the wall time to begin at, in Unix milliseconds; monotonic time begins at 0.
    """

    __slots__ = ("_lock", "_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the wall time in Unix milliseconds."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds advanced since the clock was made."""
        return self._monotonic_ms

    def advance(self, ms: int, /) -> None:
        """Let ``ms`` milliseconds pass on both clocks. Raises `ConfigError` below 0."""
        if ms < 0:
            message = f"time does not pass backwards ({ms} ms): use set() to move the wall clock"
            raise ConfigError(message)
        with self._lock:
            self._now_ms += ms
            self._monotonic_ms += ms

    def set(self, now_ms: int, /) -> None:
        """Move the wall clock alone, in either direction, as an operator or NTP does."""
        with self._lock:
            self._now_ms = now_ms
