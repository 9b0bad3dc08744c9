"""SIGINT and SIGTERM: the first asks for a clean end, the second does not wait for it."""

from __future__ import annotations

import signal
import socket
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

    with _woken_by_signals(loop):
        before = {each: signal.signal(each, handle) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake ``loop`` at every signal, so that its handler runs at once.

    A signal that comes just before the loop begins to wait interrupts nothing: without a
    byte to read, the loop would sleep on it.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        try:
            loop.add_reader(reader, reader.recv, 4096)
        except NotImplementedError:  # on Windows the loop sees to it by itself
            yield
            return
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)
