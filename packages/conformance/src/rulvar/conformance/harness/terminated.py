"""SIGTERM from the kit's side: it ends a command as Ctrl-C does, and nothing stays behind."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["cleans_up_at_sigterm"]


@contextmanager
def cleans_up_at_sigterm() -> Iterator[None]:
    """Leave the block by `SystemExit` (143) at SIGTERM, so that every ``finally`` has its turn.

    A second SIGTERM does not wait for that. Where the signal is ignored, or another handler
    is there, and outside the main thread, this does nothing.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(128 + number)
