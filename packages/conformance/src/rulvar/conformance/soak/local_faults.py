"""What a process does to itself: it sleeps, it blocks, its clock is wrong.

The coordinator's part, SIGSTOP and SIGKILL, is in `faults`.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

from rulvar.conformance.harness.machine_clock import offset_ms, set_offset
from rulvar.conformance.soak.history import now

if TYPE_CHECKING:
    import random

    from rulvar.conformance.soak.history import Recorder

__all__ = ["WrongClock", "block", "stall"]

_HOUR_MS = 3_600_000


def block(seconds: float) -> tuple[int, int]:
    """Keep every other thread of this process from running for that long; return when."""
    began = now()
    # A call into C that keeps the interpreter to itself, as some extensions do.
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return began, now()


def stall(seconds: float) -> tuple[int, int]:
    """Sleep; return from when to when."""
    began = now()
    time.sleep(seconds)  # the stall itself: no clock but the true one is asked
    return began, now()


class WrongClock:
    """Times at which the wall clock of this process is off."""

    def __init__(self, recorder: Recorder, process: int, choices: random.Random) -> None:
        self._recorder = recorder
        self._process = process
        self._choices = choices
        self._began = 0
        self._until = 0

    @property
    def wrong(self) -> bool:
        """Whether it is off at present."""
        return offset_ms() != 0

    @property
    def ahead(self) -> bool:
        """Whether it is ahead at present: then leases live for longer than they should."""
        return offset_ms() > 0

    def turn(self, ttl_ns: int) -> None:
        """Let it be wrong from now on, for a few times to live."""
        steps = (_HOUR_MS, -_HOUR_MS, -_HOUR_MS, -self._choices.randrange(500, 5_000))
        set_offset(self._choices.choice(steps))
        self._began = now()
        self._until = self._began + int(ttl_ns * self._choices.uniform(1.0, 3.0))

    def turn_back(self) -> bool:
        """Set it right when it has been wrong for long enough; return whether it was set."""
        if not self.wrong or now() < self._until:
            return False
        set_offset(0)
        self._recorder.fault("clock", self._process, self._began, now())
        return True
