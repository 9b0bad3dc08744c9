"""From the opening of a store to its end: closed, or left behind by a fork."""

from __future__ import annotations

import os

from rulvar.core.errors import StoreClosedError, StoreForkedError

__all__ = ["StoreLife"]


class StoreLife:
    """Whether calls are still taken: asked first by every call, after its arguments.

    ``what`` names the store in messages, as in ``the store at /var/runs.db``; ``remedy`` says
    what a forked child does instead of using it. The process that makes this object owns the
    store. It needs no lock: a store that waits for its calls in flight asks once more when it
    has its own lock.
    """

    __slots__ = ("_closed", "_process", "_remedy", "_what")

    def __init__(
        self, what: str, *, remedy: str = "close it before the fork, or open one in the child"
    ) -> None:
        self._what = what
        self._remedy = remedy
        self._process = os.getpid()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check(self) -> None:
        """Return while the store takes calls.

        Raises: `StoreForkedError` in a process that was forked from the owner, whatever the
        owner has done since; `StoreClosedError` after `close`.
        """
        self.check_process()
        if self._closed:
            message = f"{self._what} was closed: open it again"
            raise StoreClosedError(message)

    def check_process(self) -> None:
        """Raise `StoreForkedError` in a process that was forked from the owner."""
        if os.getpid() != self._process:
            message = (
                f"{self._what} was opened by process {self._process}, which this one was forked "
                f"from: {self._remedy}"
            )
            raise StoreForkedError(message)

    def close(self) -> None:
        """Take no call from now on; idempotent. Raises: `StoreForkedError` in a forked child."""
        self.check_process()
        self._closed = True
