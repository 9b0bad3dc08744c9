"""Stopping one call between any two lines of a store, so that others come in between.

`Stepped` runs a call on a thread of its own under Python's trace function and stops it at its
n-th step; a step is a line or a return in code that may belong to a store. The kit stops a
call at step 1, then 2, then 3, until it completes untouched: no window is too small for that.
Code that changes nothing in a store (the standard library, the checks of arguments, the kit
itself) has no steps.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import rulvar.core.checks as _checks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import TraceFunction

__all__ = ["Stepped", "has_steps"]

_CORE = Path(_checks.__file__).parent
_PURE = frozenset(
    os.fspath(_CORE / f"{name}.py")
    for name in (
        "capabilities",
        "checks",
        "clock",
        "errors",
        "filters",
        "ids",
        "lease_status",
        "records",
        "store_life",
        "values",
        "wire",
    )
)
_KIT = os.fspath(Path(__file__).parent) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple(
    os.path.normpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")
)


def has_steps(filename: str) -> bool:
    """Whether code in this file may change something in a store."""
    if filename in _PURE or filename.startswith((_KIT, "<")):
        return False
    # site-packages lies inside the standard library's folder, and stores lie in it.
    return filename.startswith(_INSTALLED) or not filename.startswith(_STDLIB)


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
