"""A caller's mutation on its way through a group commit, and what became of it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.records import Lease
    from rulvar.stores.sqlite.mutations import Transaction

__all__ = ["Job"]

_T = TypeVar("_T")


class Job(Generic[_T]):
    """One caller's mutation, and what became of it."""

    __slots__ = (
        "abandoned",
        "began",
        "done",
        "error",
        "gone",
        "grants",
        "lease",
        "led",
        "result",
        "run_id",
        "signalled",
        "size",
        "urgent",
        "wake",
        "work",
    )

    def __init__(
        self,
        work: Callable[[Transaction], _T],
        *,
        run_id: str | None,
        lease: Lease | None = None,
        size: int = 0,
        urgent: bool = False,
        grants: bool = False,
    ) -> None:
        """Take the work, and what decides about its place.

        ``lease`` is what the caller offers for the run, ``size`` what it brings in bytes;
        ``urgent`` jobs go first, and one that ``grants`` an epoch is committed durably at every
        setting.
        """
        self.work = work
        self.run_id = run_id
        self.lease = lease
        self.size = size
        self.urgent = urgent
        self.grants = grants
        self.began = time.monotonic()
        self.done = False
        self.abandoned = False
        self.led = False
        self.gone = False
        self.result: _T | None = None
        self.error: Exception | None = None
        self.signalled = False
        # Made when there is something to wait for: a caller alone leads, and never waits.
        self.wake: threading.Lock | None = None

    def answer(self) -> _T:
        """Return the result, or raise the error."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # or the traceback and its own frame would keep each other
        return self.result  # type: ignore[return-value] # done without an error: it is set

    def wait(self, seconds: float) -> bool:
        """Wait until signalled, or not longer than this; return whether it was."""
        wake = self.wake
        if wake is None:
            wake = threading.Lock()
            wake.acquire()
            self.wake = wake
            # Whoever signalled before the line above saw no lock, and so is seen here.
            if self.signalled:
                return True
        return wake.acquire(timeout=seconds)

    def finish(self) -> None:
        """Let the caller have its answer; called under the leader's lock alone."""
        self.done = True
        self.signal()

    def signal(self) -> None:
        """Wake the caller; called under the leader's lock alone, so the look is safe."""
        self.signalled = True
        wake = self.wake
        if wake is not None and wake.locked():
            wake.release()
