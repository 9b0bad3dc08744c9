"""Stopping one call between any two lines of a store, so that others come in between.

`Stepped` runs a call on a thread of its own under Python's trace function and stops it at its
n-th step; a step is a line or a return in code that may belong to a store. The kit stops a
call at step 1, then 2, then 3, until it completes untouched: no window is too small for that.
Code that changes nothing in a store (the standard library, the checks of arguments, the kit
itself) has no steps.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import rulvar.core.capabilities
import rulvar.core.checks
import rulvar.core.clock
import rulvar.core.errors
import rulvar.core.filters
import rulvar.core.ids
import rulvar.core.lease_status
import rulvar.core.records
import rulvar.core.store_life
import rulvar.core.values
import rulvar.core.wire
from rulvar.conformance.harness.code_origin import in_kit, in_stdlib

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import TraceFunction

__all__ = ["Stepped", "has_steps"]

_PURE = frozenset(
    module.__file__
    for module in (
        rulvar.core.capabilities,
        rulvar.core.checks,
        rulvar.core.clock,
        rulvar.core.errors,
        rulvar.core.filters,
        rulvar.core.ids,
        rulvar.core.lease_status,
        rulvar.core.records,
        rulvar.core.store_life,
        rulvar.core.values,
        rulvar.core.wire,
    )
)
"""What stores call that changes nothing: no state, no lock."""


def has_steps(filename: str) -> bool:
    """Whether code in this file may change something in a store."""
    if filename in _PURE or filename.startswith("<"):
        return False
    return not in_kit(filename) and not in_stdlib(filename)


class Stepped:
    """One call on a thread, stopped at its ``stop_at``-th step; 0 stops nowhere and counts."""

    def __init__(self, call: Callable[[], object], *, stop_at: int) -> None:
        self._call = call
        self._stop_at = stop_at
        self._changed = threading.Event()
        self._go = threading.Event()
        self._known: dict[str, bool] = {}
        self.steps = 0
        self.stopped = False
        self.where = ""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, wait_s: float) -> bool:
        """Begin; return True once it is stopped, False when it ended (or hangs) before."""
        self._thread.start()
        self._changed.wait(wait_s)
        return self.stopped

    def go_on(self) -> None:
        """Let it run to its end."""
        self._go.set()

    def join(self, wait_s: float) -> bool:
        """Wait for the end; return whether it came."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        sys.settrace(self._enter)
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - the caller judges it
            self.error = error
        finally:
            sys.settrace(None)
            self._changed.set()

    def _enter(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del event, argument
        filename = frame.f_code.co_filename
        known = self._known.get(filename)
        if known is None:
            known = self._known[filename] = has_steps(filename)
        return self._step if known else None

    def _step(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del argument
        if event in {"line", "return"}:
            self.steps += 1
            if self.steps == self._stop_at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.stopped = True
                self._changed.set()
                self._go.wait()
        return self._step
