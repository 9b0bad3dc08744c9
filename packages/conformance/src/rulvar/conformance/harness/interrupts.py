"""Interrupting one call at each point where Python may deliver a signal inside a store.

Ctrl-C becomes a `KeyboardInterrupt` when a function is entered, and when a call of a function
in C has returned. `Interrupted` raises it at the n-th such point in code that may belong to a
store: first at 1, then at 2, until the call completes untouched. It runs on a thread of its
own, where no true signal is ever delivered, so that nothing but this call is hit.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from typing import TYPE_CHECKING

from rulvar.conformance.harness.stepping import has_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Interrupted"]

# Raised in a generator that is resumed, it would pass by the generator's own handlers.
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Interrupted:
    """One call on a thread, interrupted at its ``at``-th point; 0 interrupts nothing and counts.

    ``outcome`` is the name of what it raised, or ``"returned"``; ``where`` the line.
    """

    def __init__(self, call: Callable[[], object], *, at: int) -> None:
        self._call = call
        self._at = at
        self.points = 0
        self.hit = False
        self.where = ""
        self.outcome = ""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run(self, wait_s: float) -> bool:
        """Make the call; return whether it ended in time."""
        with warnings.catch_warnings():
            # What had just been opened, and nobody had a name for yet, Python itself closes.
            warnings.simplefilter("ignore", ResourceWarning)
            self._thread.start()
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        sys.setprofile(self._profile)
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - told by its name
            # The error itself is let go: its frames may hold what the store clears after them.
            self.outcome = type(error).__name__
        else:
            self.outcome = "returned"
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        entered = event == "call" and not code.co_flags & _RESUMED
        if not (entered or event == "c_return") or not has_steps(code.co_filename):
            return
        self.points += 1
        if self.points == self._at:
            sys.setprofile(None)
            self.hit = True
            self.where = f"{code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt
