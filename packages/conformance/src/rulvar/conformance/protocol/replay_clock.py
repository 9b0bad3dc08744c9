"""The clock of a store under replay, set to any hour at will.

A store under a manual clock is compared to the millisecond. One behind a URL is given a machine
clock that is wrong (`rulvar.conformance.harness.machine_clock`), and real time passes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.harness import machine_clock

if TYPE_CHECKING:
    from rulvar.conformance.harness.store_under_test import TestLocation

__all__ = ["LEASE_TTL_MS", "ReplayClock"]

LEASE_TTL_MS = 3_600_000


class ReplayClock:
    """The clock of the store under replay, set to any hour at will."""

    def __init__(self, place: TestLocation) -> None:
        self._manual = place.clock
        self._first_ms = 0 if place.clock is None else place.clock.now_ms()

    @property
    def exact(self) -> bool:
        """Whether nothing else moves it."""
        return self._manual is not None

    def ages(self) -> tuple[int, int, int]:
        """Return how long after its grant a lease is of each of the model's ages.

        The middle one is its last millisecond; where real time passes as well, its half.
        """
        return 0, LEASE_TTL_MS - 1 if self.exact else LEASE_TTL_MS // 2, LEASE_TTL_MS

    def set(self, ms: int) -> int:
        """Set it to so many milliseconds after the beginning; return what it shows then."""
        if self._manual is not None:
            self._manual.set(self._first_ms + ms)
            return self._first_ms + ms
        machine_clock.set_offset(ms)
        return machine_clock.true_now_ms() + ms
