"""A signal reaches a loop that waits, however it comes."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rulvar.cli.signals import clean_end

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 5.0


class _Announcing(selectors.DefaultSelector):
    """Says that it is about to wait, with nothing but the wait itself to come."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:
            self.waits.set()
        return super().select(timeout)


@contextmanager
def _undisturbed(number: signal.Signals) -> Iterator[None]:
    """Keep the signal from interrupting this thread, and other threads from coming between."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(WAIT_S)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        sys.setswitchinterval(usual)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_interrupts_no_wait_is_not_slept_on(number: signal.Signals) -> None:
    """As one does that comes after the last look at the signals and before the wait.

    The main thread lets go of the interpreter only as it begins to wait. Then the other
    thread takes the signal, so the wait is not interrupted.
    """
    selector = _Announcing()
    loop = asyncio.SelectorEventLoop(selector)
    told: list[object] = []

    def send() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        selector.waits.wait(WAIT_S)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)

    def tell(what: object) -> None:
        told.append(what)
        loop.stop()

    try:
        with clean_end(loop, tell), _undisturbed(number):
            sender.start()
            loop.call_later(WAIT_S, tell, "slept")
            loop.run_forever()
            sender.join()
    finally:
        loop.close()
    assert told == [number]
