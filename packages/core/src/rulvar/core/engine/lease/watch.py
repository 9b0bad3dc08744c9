"""Whether an event loop answers, asked from another thread.

A loop that user code blocks goes on holding its runs while their leases are renewed from
the renewer's thread: that is what the thread is for. A loop that never comes back must not
hold them for ever. So the renewer asks each loop for a sign, and counts how long it has had
none. Time in which the asking thread itself did not run (a machine asleep, a process that
was stopped) is not counted: it says nothing about the loop.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import asyncio

    from rulvar.core.engine.lease.ownership import OwnedLease

__all__ = ["LoopState", "LoopWatch"]

LoopState: TypeAlias = Literal["answers", "blocked", "given up"]
"""Given up: its runs are not renewed until it answers."""


class LoopWatch:
    """One event loop, how many runs are on it, and for how long it has not answered.

    ``patience`` is how many seconds may lie between two looks for them to count in full.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, patience: float) -> None:
        self.loop = loop
        self.runs = 0
        self.state: LoopState = "answers"
        self.states: dict[OwnedLease, LoopState] = {}
        self._patience = patience
        self._asked = False
        self._looked_at = 0.0
        self._silent = 0.0

    @property
    def closed(self) -> bool:
        """Whether nothing will ever run on the loop again."""
        return self.loop.is_closed()

    def silence(self) -> float:
        """Look at the loop; return for how many seconds it has not answered.

        0.0 when it has answered since it was asked last; then it is asked anew. Called by
        one thread at a time.
        """
        now = time.monotonic()
        if self._asked:
            self._silent += min(now - self._looked_at, self._patience)
            self._looked_at = now
            return self._silent
        self._asked, self._looked_at, self._silent = True, now, 0.0
        with contextlib.suppress(RuntimeError):  # closed in between: the next look says so
            self.loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = False
