"""Isolation for trial replays: the tried code writes to standard error, and can be timed out."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["output_kept", "watched_loop"]

_LOOK_EVERY_SECONDS = 1.0
_STDOUT, _STDERR = 1, 2


@contextmanager
def output_kept() -> Iterator[None]:
    """Send what user code prints to standard error: standard output is the command's.

    So too what its subprocesses write, and what it writes to descriptor 1, where there is one.
    """
    with _copy_of_descriptor() as copy, redirect_stdout(sys.stderr):
        if copy is None:
            yield
            return
        with suppress(OSError):  # standard error is closed: there is nowhere to send it
            os.dup2(_STDERR, _STDOUT)
        try:
            yield
        finally:
            _flush(sys.__stdout__)  # what the code wrote past `sys.stdout` is its own, too
            os.dup2(copy, _STDOUT)


def _flush(stream: TextIO | None) -> None:
    if stream is not None:
        with suppress(OSError, ValueError):  # it is closed or broken: that is its writer's matter
            stream.flush()


@contextmanager
def _copy_of_descriptor() -> Iterator[int | None]:
    """Keep a copy of descriptor 1; None where it is closed."""
    _flush(sys.stdout)  # what the command has written goes where it was written to
    try:
        copy = os.dup(_STDOUT)
    except OSError:
        yield None
        return
    try:
        yield copy
    finally:
        os.close(copy)


@contextmanager
def watched_loop(seconds: float, give_up: Callable[[], None]) -> Iterator[None]:
    """Call ``give_up`` from a thread once the running loop has not answered for ``seconds``.

    ``give_up`` ends the process: a loop that code blocks is interrupted by nothing else. It
    has standard output back; the code under trial keeps running and cannot be interrupted.
    """
    loop, stdout = asyncio.get_running_loop(), sys.stdout
    over, deciding = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.is_set():
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # it is closed
            if not answered.wait(min(seconds, threading.TIMEOUT_MAX)):
                with deciding:
                    if not over.is_set() and not answered.is_set():
                        sys.stdout = stdout
                        if copy is not None:
                            os.dup2(copy, _STDOUT)
                        give_up()
            over.wait(min(_LOOK_EVERY_SECONDS, seconds))

    with _copy_of_descriptor() as copy:
        threading.Thread(target=watch, name="rulvar-watch", daemon=True).start()
        try:
            yield
        finally:
            with deciding:
                over.set()
