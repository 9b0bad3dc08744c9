"""Live progress on standard error: what is being tried, how far it is, what failed.

On a terminal one line that is written anew twice a second; elsewhere (a log, a pipe) a plain
line every few seconds. A clause that failed is told at once, on a line that stays. Standard
output is left to the report.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from typing import TextIO

    from rulvar.conformance.certification.certificate import Result
    from rulvar.conformance.contract.clauses import Clause

__all__ = ["Progress"]

_ANEW_S = 0.5
_PLAIN_S = 5.0
_LONGEST = 160
_CLEAR = "\r\x1b[K"


class Progress:
    """Tells of one certification on its way; use it as a context manager.

    ``total`` is how many clauses there are; ``stream`` is standard error by default. Hand
    `begins` and `ended` to `certify`: they may be called from any thread.
    """

    def __init__(self, total: int, *, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._running: dict[str, float] = {}
        self._done = 0
        self._failed = 0
        self._thread = threading.Thread(target=self._keep_telling, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._terminal:
            self._write(_CLEAR)

    def begins(self, clause: Clause) -> None:
        """Take note of a clause that is tried from now on."""
        with self._lock:
            self._running[clause.id] = time.monotonic()

    def ended(self, result: Result) -> None:
        """Count a clause, and tell of it if the store broke it."""
        with self._lock:
            self._running.pop(result.clause_id, None)
            self._done += 1
            if result.outcome in {"failed", "error"}:
                self._failed += 1
                self._write_line(f"{result.outcome.upper()} {result.clause_id}: {result.reason}")

    def line(self) -> str:
        """Return how far it is, as one line."""
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._began), 60)
        with self._lock:
            oldest = min(self._running, key=self._running.__getitem__, default=None)
            parts = [f"{self._done}/{self._total} clauses", f"{minutes}:{seconds:02}"]
            if self._failed:
                parts.append(f"{self._failed} failed")
            if oldest is not None:
                others = f" and {len(self._running) - 1} more" if len(self._running) > 1 else ""
                parts.append(f"{oldest} ({now - self._running[oldest]:.1f} s){others}")
        return "  ".join(parts)

    def _keep_telling(self) -> None:
        while not self._stop.wait(_ANEW_S if self._terminal else _PLAIN_S):
            line = self.line()
            with self._lock:
                if self._terminal:
                    width = shutil.get_terminal_size().columns - 1
                    self._write(_CLEAR + line[:width])
                else:
                    self._write_line(line)

    def _write_line(self, text: str) -> None:
        first = text.splitlines()[0] if text else ""
        self._write(f"{_CLEAR if self._terminal else ''}{first[:_LONGEST]}\n")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()
