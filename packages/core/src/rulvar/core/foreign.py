"""Calling code of others: whatever it raises is its failure, and an interrupt is none.

A module that is imported may raise anything: ``SystemExit`` too, a ``KeyboardInterrupt`` of its
own, a ``CancelledError``. None of it may take the caller along. But when a person presses
Ctrl-C meanwhile, that is for the caller. The two look alike; what tells them apart is whether a
signal was heard.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["ForeignError", "calling_foreign_code"]


class ForeignError(Exception):
    """Code of others raised; ``cause`` is what, of whatever class."""

    def __init__(self, cause: BaseException) -> None:
        """Keep the cause."""
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause


@contextmanager
def calling_foreign_code(*passed: type[BaseException]) -> Iterator[None]:
    """Raise `ForeignError` for whatever the block raises.

    What is of the classes ``passed`` goes by as it is, and so does the interrupt of a person
    (SIGINT with a Python handler, heard by the main thread).
    """
    heard: list[int] = []
    with _listening(heard):
        try:
            yield
        except passed:
            raise
        except BaseException as error:
            if heard and isinstance(error, KeyboardInterrupt):
                raise
            raise ForeignError(error) from error


@contextmanager
def _listening(heard: list[int]) -> Iterator[None]:
    """Note an interrupt that is heard while the block runs; its handler is called as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are heard by the main thread alone
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or not Python's
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # Unless the block has set another one, which stays.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
