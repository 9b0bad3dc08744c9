"""What a process does to itself: it sleeps, blocks, sets its clock wrong, stops in a call.

What the coordinator does to it, SIGSTOP and SIGKILL, is in `faults`. A stop from outside seldom
falls between a store's check and its write: most of a process's life is spent elsewhere. So a
second thread stops the whole process (SIGSTOP) at a random instant of a call that the first one is
making, and leaves a notice, so that the coordinator can send others to take over, and let it go on
afterwards.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from rulvar.conformance.harness.machine_clock import offset_ms, set_offset
from rulvar.conformance.soak.history import now

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.conformance.soak.history import Recorder

__all__ = ["SelfStop", "StopNotice", "WrongClock", "block", "stall"]

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


_FIRST_GUESS_S = 0.000_5
_AT_MOST = 3
_OVERHEAD_S = 0.000_05
_TOO_LONG_TO_SPIN_S = 0.002


class StopNotice:
    """How a process says that it is stopping itself: one byte more in a file of its own."""

    def __init__(self, folder: Path, process: int) -> None:
        self._path = folder / f"trap-{process:03}"
        self._said = 0

    def open(self) -> int:
        """Return what the process writes its bytes to."""
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def heard(self) -> bool:
        """Return whether it has said so since this was asked last."""
        try:
            said = self._path.stat().st_size
        except FileNotFoundError:
            return False
        before, self._said = self._said, said
        return said > before


class SelfStop:
    """The second thread, and how long each kind of call takes."""

    def __init__(self, folder: Path, process: int) -> None:
        self._file = StopNotice(folder, process).open()
        self._usual_s: dict[str, float] = {}
        self._set = threading.Semaphore(0)
        self._ended = False
        self._parent = os.getppid()
        self._delay_s = 0.0
        self._inside = False
        self._thread = threading.Thread(target=self._run, name="trap", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Stop nobody any more."""
        self._ended = True
        self._set.release()
        if self._thread.is_alive():
            self._thread.join(10)
        os.close(self._file)

    def during(self, op: str, part: float | None, call: Callable[[], object]) -> object:
        """Make a call, and stop in the middle of it: after that part of what it usually takes.

        None for no stop. A part of more than 1 is for calls that have to wait.
        """
        usual_s = self._usual_s.get(op, _FIRST_GUESS_S)
        if part is not None:
            # It takes a while by itself until the other thread has its turn.
            self._delay_s = part * usual_s - _OVERHEAD_S
            self._inside = True
            self._set.release()
        began = time.perf_counter()
        try:
            value = call()
        finally:
            self._inside = False
        if part is None:
            # A refused call, which raises, is over before the part that matters; a long one
            # had to wait.
            took_s = min(_AT_MOST * usual_s, time.perf_counter() - began)
            self._usual_s[op] = 0.8 * usual_s + 0.2 * took_s
        return value

    def _run(self) -> None:
        spins = True
        while True:
            self._set.acquire()
            if self._ended:
                return
            until = time.perf_counter() + self._delay_s
            # One way is exact, but takes the other thread's turns away; so each has its turn.
            if spins and self._delay_s < _TOO_LONG_TO_SPIN_S:
                while time.perf_counter() < until:
                    pass
            elif self._delay_s > 0:
                time.sleep(self._delay_s)
            spins = not spins
            # Nobody would let it go on when the one who started it is gone.
            if self._inside and os.getppid() == self._parent:
                os.write(self._file, b".")
                os.kill(os.getpid(), signal.SIGSTOP)
