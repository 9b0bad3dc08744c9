"""A forked child of the calling process that is given orders, one at a time, over two pipes.

The child is real and leaves by ``os._exit``, so that it gives back nothing that belongs to its
parent. It ends with the block, with its parent, and at the latest after ``deadline_s`` seconds.
"""

from __future__ import annotations

import os
import signal
import warnings
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["ForkedChild"]

_LONGEST = 4096


class ForkedChild:
    """Forks at the entry of the block; ``perform`` is called in the child with each order.

    Orders and answers are at most 4,096 bytes of UTF-8 each.
    """

    def __init__(self, perform: Callable[[str], str], *, deadline_s: int = 60) -> None:
        self._perform = perform
        self._deadline_s = deadline_s

    def __enter__(self) -> Self:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        with warnings.catch_warnings():
            # Python warns where there are other threads: the child only performs and leaves.
            warnings.simplefilter("ignore")
            self._pid = os.fork()
        if self._pid == 0:
            self._live(orders, answers)
        os.close(orders)
        os.close(answers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        os.close(self._orders)
        os.close(self._answers)
        os.waitpid(self._pid, 0)

    def ask(self, order: str) -> str:
        """Have one order performed; return what ``perform`` returned, or ``Type: text`` raised.

        Returns ``its process ended`` for a child that is gone.
        """
        try:
            os.write(self._orders, order.encode())
        except BrokenPipeError:
            return "its process ended"
        return os.read(self._answers, _LONGEST).decode() or "its process ended"

    def _live(self, orders: int, answers: int) -> NoReturn:
        try:
            os.close(self._orders)  # otherwise the parent's end would go unnoticed
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(self._deadline_s)
            while order := os.read(orders, _LONGEST).decode():
                try:
                    said = self._perform(order)
                except Exception as error:  # noqa: BLE001 - the parent judges it
                    said = f"{type(error).__name__}: {error}"[:1000]
                os.write(answers, said.encode())
        finally:
            os._exit(0)
