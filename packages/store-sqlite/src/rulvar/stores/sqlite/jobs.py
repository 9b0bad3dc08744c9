"""A caller's mutation on its way through a group commit, and what became of it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "led",
        "result",
        "run_id",
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
        size: int = 0,
        urgent: bool = False,
        grants: bool = False,
    ) -> None:
        """Take the work, and what decides about its place.

        ``size`` is what it brings in bytes, ``urgent`` jobs go first, and one that ``grants``
        an epoch is committed durably at every setting.
        """
        self.work = work
        self.run_id = run_id
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
        self.wake = threading.Lock()
        self.wake.acquire()

    def answer(self) -> _T:
        """Return the result, or raise the error."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or the traceback and its own frame would keep each other
        return self.result  # type: ignore[return-value] # done without an error: it is set

    def finish(self) -> None:
        """Let the caller have its answer; called under the leader's lock alone."""
        self.done = True
        self.signal()

    def signal(self) -> None:
        """Wake the caller; called under the leader's lock alone, so the look is safe."""
        if self.wake.locked():
            self.wake.release()
