"""SIGINT, SIGTERM, SIGHUP: the first asks for a clean end, the second does not wait for it."""

from __future__ import annotations

import os
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

_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""What a person, a service manager or a terminal that was closed ends a process with."""


@contextmanager
def clean_end(
    loop: asyncio.AbstractEventLoop, stop: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call ``stop`` on ``loop`` at the first signal; at the second the process just dies.

    It dies also when that comes after the block: the rest of a clean end is not waited for
    either. What was ignored when the process began stays ignored, as `nohup` and a shell in
    the background want it.

    Not `loop.add_signal_handler`: its second callback would wait for a loop that a step
    blocks, and that is when a person presses the keys again. Outside the main thread, where
    Python hands out no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    first: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        first.append(number)
        for each in heard:
            signal.signal(each, _die if os.getpid() == 1 else signal.SIG_DFL)
        loop.call_soon_threadsafe(stop, signal.Signals(number))

    with _woken_by_signals(loop):
        before = {each: signal.signal(each, handle) for each in heard}
        try:
            yield
        finally:
            if not first:
                for each, handler in before.items():
                    signal.signal(each, handler)


def _die(number: int, _: FrameType | None) -> None:
    """End at once, in a container's first process, to which the system's default does nothing."""
    os._exit(128 + number)


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
