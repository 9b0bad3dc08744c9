"""The second thread of a process: it renews, as a worker's own does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rulvar.conformance.soak.orders import OrdersFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.conformance.soak.orders import Orders

__all__ = ["Renewals"]


class Renewals:
    """Calls ``renew`` every ``every_s`` seconds, unless the process is away."""

    def __init__(self, folder: Path, every_s: float, renew: Callable[[Orders], None]) -> None:
        self._renew = renew
        self._every_s = every_s
        self._orders_file = OrdersFile(folder)
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def away(self) -> threading.Lock:
        """Return what keeps it from renewing while it is held."""
        return self._turn

    def check(self) -> None:
        """Raise what it met."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Renew nothing any more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every_s):
                with self._turn:
                    self._renew(self._orders_file.look())
        except BaseException as error:  # noqa: BLE001 - the first thread raises it
            self._error = error
