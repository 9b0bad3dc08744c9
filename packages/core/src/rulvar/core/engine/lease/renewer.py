"""Renewal of leases in separate threads: a blocked event loop keeps its leases, for a while.

One heap of due renewals, served by a few daemon threads. Each owned run is renewed at a
third of its time to live; after a busy or unknown answer it is tried again much sooner.
Where the store can (`LeaseBatch`), one thread renews all that are due, or nearly, in one unit.

What an event loop works on is renewed for as long as that loop answers. One that does not is
told of after one time to live, and its runs are not renewed any more after a limit: their
leases run out, and others continue them. When it answers again, they are renewed again, or
taken again where nobody has them. What a closed loop worked on is not renewed. A step in a
thread of its own blocks no loop.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from rulvar.core.engine.lease.ownership import OwnedLease
from rulvar.core.engine.lease.watch import LoopWatch
from rulvar.core.errors import StoreError, StoreForkedError

if TYPE_CHECKING:
    import asyncio

    from rulvar.core.engine.lease.watch import LoopState

__all__ = ["LeaseRenewer"]

_log = logging.getLogger("rulvar.engine")

_RUNS_PER_THREAD = 8
_MOST_THREADS = 8
_RUNS_PER_UNIT = 500
_MOST_BATCHING_THREADS = 2
_SOON = 15
"""After a failed renewal, the next try comes after this fraction of the time to live."""
_NEARLY = 10
"""What is due within this fraction of the time to live joins the unit of what is due now."""
_TTLS_OF_SILENCE = 10

_ANSWERS = "the event loop answers again (%.0f s; %d runs)"
_BLOCKED = (
    "the event loop has not answered for %.1f s: something blocks it, and all %d runs on it stand "
    "still; call what blocks from a plain step function, which has a thread"
)
_GIVEN_UP = (
    "the event loop has not answered for %.1f s: the leases of its %d runs are given up, so that "
    "other workers can continue them"
)
_WORDS: dict[LoopState, tuple[int, str]] = {
    "answers": (logging.INFO, _ANSWERS),
    "blocked": (logging.WARNING, _BLOCKED),
    "given up": (logging.ERROR, _GIVEN_UP),
}


class LeaseRenewer:
    """Renews owned runs until they are let go.

    ``silence_limit`` is for how many seconds an event loop may fail to answer before its
    runs are given up; by default ten times to live of each.
    """

    def __init__(self, *, silence_limit: float | None = None) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, OwnedLease]] = []
        self._kept: set[OwnedLease] = set()
        self._loops: dict[OwnedLease, LoopWatch] = {}
        self._watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}
        self._looking = threading.Lock()
        self._silence_limit = silence_limit
        self._numbers = itertools.count()
        self._threads = 0
        self._closed = False
        self._pid = os.getpid()

    def keep(self, owned: OwnedLease) -> None:
        """Renew ``owned`` from now on, at a third of its time to live.

        Raises `StoreForkedError` in a forked child, which has none of the threads.
        """
        if os.getpid() != self._pid:
            message = (
                "this engine's leases are renewed by the parent process alone: make a new engine "
                "in this one"
            )
            raise StoreForkedError(message)
        with self._changed:
            self._kept.add(owned)
            self._schedule(owned, owned.lease_ttl_ms / 3000)
            if owned.renews_many:
                wanted = min(_MOST_BATCHING_THREADS, 1 + len(self._kept) // _RUNS_PER_UNIT)
            else:
                wanted = min(_MOST_THREADS, 1 + len(self._kept) // _RUNS_PER_THREAD)
            grow = self._threads < wanted
            self._threads += grow
            self._changed.notify()
        if grow:
            threading.Thread(target=self._work, name="rulvar-renewer", daemon=True).start()

    def watch(self, owned: OwnedLease, loop: asyncio.AbstractEventLoop) -> None:
        """Renew ``owned`` only for as long as this event loop answers."""
        with self._changed:
            if owned not in self._kept:
                return
            watch = self._watches.get(loop)
            if watch is None:
                patience = owned.lease_ttl_ms / 1000
                watch = self._watches[loop] = LoopWatch(loop, patience=patience)
            watch.runs += 1
            self._loops[owned] = watch

    def detach(self, owned: OwnedLease) -> None:
        """Stop renewing ``owned``; a renewal under way ends by itself."""
        with self._changed:
            self._forget(owned)

    def close(self) -> None:
        """Stop every renewal; idempotent."""
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._loops.clear()
            self._watches.clear()
            self._changed.notify_all()

    def _forget(self, owned: OwnedLease) -> None:
        self._kept.discard(owned)
        watch = self._loops.pop(owned, None)
        if watch is not None:
            watch.states.pop(owned, None)
            watch.runs -= 1
            if watch.runs == 0:
                self._watches.pop(watch.loop, None)

    def _schedule(self, owned: OwnedLease, seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), owned))

    def _next(self) -> list[OwnedLease]:
        """Wait for what is due; none when the renewer is closed."""
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
                    return [owned, *self._neighbours(owned)]
            return []

    def _neighbours(self, owned: OwnedLease) -> list[OwnedLease]:
        """Return what is due nearly as soon, where they are renewed in one unit."""
        found: list[OwnedLease] = []
        if not owned.renews_many:
            return found
        until = time.monotonic() + owned.lease_ttl_ms / 1000 / _NEARLY
        while self._due and self._due[0][0] <= until and len(found) < _RUNS_PER_UNIT - 1:
            _, _, other = heapq.heappop(self._due)
            if other in self._kept:
                found.append(other)
        return found

    def _work(self) -> None:
        while runs := self._next():
            answering, silent = self._by_their_loops(runs)
            going, again = self._renewed(answering)
            with self._changed:
                for owned in runs:
                    ttl = owned.lease_ttl_ms / 1000
                    if owned in self._kept and owned in again:
                        self._schedule(owned, ttl / _SOON)
                    elif owned in self._kept and (owned in going or owned in silent):
                        self._schedule(owned, ttl / 3)
                    else:
                        self._forget(owned)
                self._changed.notify()
            del runs, answering, silent, going, again

    def _renewed(self, runs: list[OwnedLease]) -> tuple[set[OwnedLease], set[OwnedLease]]:
        """Renew; return which to continue, and which to try again soon."""
        try:
            if len(runs) > 1:
                return OwnedLease.renew_together(runs)
            return {owned for owned in runs if owned.renew()}, set()
        except StoreError:
            # Busy, full or unknown: not lost. Whoever writes will see the same.
            return set(), set(runs)
        except Exception:  # noqa: BLE001 - logged: one broken store must not end the others
            named = ", ".join(repr(owned.run_id) for owned in runs[:3])
            _log.exception("renewing the leases of %d runs failed: %s", len(runs), named)
            return set(), set(runs)

    # --- event loops ------------------------------------------------------------------------

    def _by_their_loops(self, runs: list[OwnedLease]) -> tuple[list[OwnedLease], set[OwnedLease]]:
        """Return the runs to renew, and those whose loop is waited for; closed ones drop out."""
        answering: list[OwnedLease] = []
        silent: set[OwnedLease] = set()
        with self._changed:
            watches = [(owned, self._loops.get(owned)) for owned in runs]
        silences: dict[LoopWatch, float] = {}
        for owned, watch in watches:
            if watch is None:
                answering.append(owned)
            elif watch.closed:
                _log.warning("run %r: its event loop was closed: its lease runs out", owned.run_id)
            else:
                if watch not in silences:
                    with self._looking:
                        silences[watch] = watch.silence()
                if self._judge(owned, watch, silences[watch]) == "given up":
                    silent.add(owned)
                else:
                    answering.append(owned)
        return answering, silent

    def _judge(self, owned: OwnedLease, watch: LoopWatch, seconds: float) -> LoopState:
        """Return what is to become of a run whose loop has not answered for so long; tell it."""
        ttl = owned.lease_ttl_ms / 1000
        limit = ttl * _TTLS_OF_SILENCE if self._silence_limit is None else self._silence_limit
        state: LoopState = "answers"
        if seconds >= limit:
            state = "given up"
        elif seconds >= ttl:
            state = "blocked"
        if watch.states.get(owned, "answers") != state:
            watch.states[owned] = state
            if state == "answers":
                owned.emit("loop.answered")
            else:
                detail = "given-up" if state == "given up" else ""
                owned.emit("loop.blocked", detail=detail, duration=seconds)
        if watch.state != state:
            watch.state = state
            level, words = _WORDS[state]
            _log.log(level, words, seconds, watch.runs)
        return state
