"""A process of its own that judges what has been reported so far, while the storm goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rulvar.conformance.harness.children import Child
from rulvar.conformance.soak.checker import judge
from rulvar.conformance.soak.history import now, read_history

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.soak.results import Violation

__all__ = ["LiveChecker"]

_EVERY_NS = 1_000_000_000
_SHARE = 6


def judge_so_far(
    stores: object, tell: Callable[[object], None], folder: str
) -> tuple[Violation, ...]:
    """Judge what is there at this moment: what the other process is asked to run."""
    del stores, tell
    instant = now()
    return judge(read_history(Path(folder)).until(instant), ended=False).violations


class LiveChecker:
    """Judges about once a second; less often when it takes long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: Child | None = None
        self._thread: threading.Thread | None = None
        self._found: tuple[Violation, ...] = ()
        self._error: Exception | None = None
        self._began = 0
        self._next = 0

    def turn(self) -> tuple[Violation, ...]:
        """Begin when it is time; return what was found. Raises what the referee raised."""
        if self._thread is not None and self._thread.is_alive():
            return ()
        if self._error is not None:
            raise self._error
        if self._thread is not None:
            self._thread = None
            self._next = now() + max(_EVERY_NS, _SHARE * (now() - self._began))
        elif now() >= self._next:
            self._began = now()
            self._thread = threading.Thread(target=self._ask, name="live_checker", daemon=True)
            self._thread.start()
        return self._found

    def _ask(self) -> None:
        try:
            if self._child is None:
                self._child = Child()
            found = self._child.run(judge_so_far, str(self._folder))
            self._found = cast("tuple[Violation, ...]", found)
        except Exception as error:  # noqa: BLE001 - raised at the next turn
            self._error = error

    def end(self) -> None:
        """End the process; what it was about to find, the referee finds at the end."""
        if self._child is not None:
            self._child.end()
        if self._thread is not None:
            self._thread.join(10)
