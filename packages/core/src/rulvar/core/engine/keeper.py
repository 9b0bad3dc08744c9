"""Renewal from threads of its own: a blocked event loop keeps its leases.

One heap of due renewals, served by a few daemon threads. Each owned run is renewed at a
third of its time to live; after a busy or unknown answer it is tried again much sooner.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreError

if TYPE_CHECKING:
    from rulvar.core.engine.ownership import OwnedRun

__all__ = ["Keeper"]

_log = logging.getLogger("rulvar.engine")

_RUNS_PER_THREAD = 8
_MOST_THREADS = 8
_SOON = 15
"""After a failed renewal, the next try comes after this fraction of the time to live."""


class Keeper:
    """Renews owned runs until they are let go."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, OwnedRun]] = []
        self._kept: set[OwnedRun] = set()
        self._numbers = itertools.count()
        self._threads = 0
        self._closed = False

    def keep(self, owned: OwnedRun) -> None:
        """Renew ``owned`` from now on, at a third of its time to live."""
        with self._changed:
            self._kept.add(owned)
            self._schedule(owned, owned.lease_ttl_ms / 3000)
            wanted = min(_MOST_THREADS, 1 + len(self._kept) // _RUNS_PER_THREAD)
            grow = self._threads < wanted
            self._threads += grow
            self._changed.notify()
        if grow:
            threading.Thread(target=self._work, name="rulvar-keeper", daemon=True).start()

    def let_go(self, owned: OwnedRun) -> None:
        """Stop renewing ``owned``; a renewal under way ends by itself."""
        with self._changed:
            self._kept.discard(owned)

    def close(self) -> None:
        """Stop every renewal; idempotent."""
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._changed.notify_all()

    def _schedule(self, owned: OwnedRun, seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), owned))

    def _next(self) -> OwnedRun | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                due, _, owned = self._due[0]
                wait = due - time.monotonic()
                if owned in self._kept and wait > 0:
                    self._changed.wait(wait)
                    continue
                heapq.heappop(self._due)
                if owned in self._kept:
                    return owned
            return None

    def _work(self) -> None:
        while (owned := self._next()) is not None:
            seconds = owned.lease_ttl_ms / 3000
            try:
                go_on = owned.renew()
            except StoreError:
                # Busy, full or unknown: not lost. Whoever writes will see the same.
                go_on, seconds = True, owned.lease_ttl_ms / 1000 / _SOON
            except Exception:  # noqa: BLE001 - logged: one broken store must not end the others
                _log.exception("renewing the lease of run %r failed", owned.run_id)
                go_on, seconds = True, owned.lease_ttl_ms / 1000 / _SOON
            with self._changed:
                if go_on and owned in self._kept:
                    self._schedule(owned, seconds)
                    self._changed.notify()
                else:
                    self._kept.discard(owned)
            del owned
