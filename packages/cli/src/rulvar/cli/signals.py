"""SIGINT and SIGTERM: the first asks for a clean end, the second does not wait for it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["clean_end"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def clean_end(
    loop: asyncio.AbstractEventLoop, stop: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call ``stop`` on ``loop`` at the first signal; at the second the process just dies.

    Not `loop.add_signal_handler`: its second callback would wait for a loop that a step
    blocks, and that is when a person presses the keys again. Outside the main thread, where
    Python hands out no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop, signal.Signals(number))

    before = {each: signal.signal(each, handle) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
