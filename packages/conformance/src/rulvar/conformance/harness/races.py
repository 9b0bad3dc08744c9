"""Driving a takeover into the window between the fence's check and the write that it guards.

Two ways, because each sees what the other cannot. *Stepped*: one call of the stalled holder
is stopped at each of its steps in turn, and the successor takes the run over while it stands
there; deterministic, and no window is too small, but a step exists only where there is Python
code. *Storm*: many threads of the stalled holder call at once while a successor takes over,
from another process where the store can be opened there; any store, but a matter of chance,
so it is done many times. A mutation that lands only once (a release, a deletion) gives it one
short moment for each race: in a store that lives in one process it finds such a hole rarely,
and the steps are what finds it.

Both look for the same thing: from the moment that the successor has its grant, nothing under
the old lease may change anything. Either the takeover waits for the stalled call, or the call
is refused. A lease is a value, so the successor ends it by itself (or seizes the run), and no
race has to wait for a lease to run out.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from rulvar.conformance.contract.levels import Sharing
from rulvar.conformance.harness.actors import Actor
from rulvar.conformance.harness.failure import shown
from rulvar.conformance.harness.mutations import Strike
from rulvar.conformance.harness.state import differences, read_run
from rulvar.conformance.harness.stepping import Stepped
from rulvar.core.capabilities import has_lease_admin
from rulvar.core.errors import LeaseHeldError, RulvarError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.mutations import Surface
    from rulvar.conformance.harness.state import RunState
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["step_through", "storm"]

_T = TypeVar("_T")
_MOST_STEPS = 500
_WAIT_S = 20.0
_RACES = 24
_RACES_IN_ONE_PROCESS = 60
"""A race costs little there, and finds less: threads take turns, processes do not."""

_THREADS = 6
_PAUSE_CALLS = 6
"""How many calls one thread may make, about, before a takeover begins."""

_BLOBS_EACH = 2


class _Bare(Actor):
    """An actor that only calls: what it raises is the caller's to judge."""

    def call(
        self,
        text: str,
        function: Callable[[], _T],
        *,
        lease: Lease | None = None,
        mark: str | None = None,
    ) -> _T:
        """Make the call, and nothing else."""
        del text, lease, mark
        return function()


class _Duel:
    """One run that two parties fight for: the stalled holder here, the successor there."""

    def __init__(self, check: CheckContext, name: str, surface: Surface) -> None:
        self.check = check
        self.surface = surface
        self.run_id = check.run_id(name)
        check.knows(self.run_id)
        theirs = _other_handle(check)
        self.stalled = _Bare(check, "stalled", check.stores)
        self.successor = _Bare(check, "successor", theirs)
        self._seizes = has_lease_admin(check.stores.journal)
        self._latest: Lease | None = None
        self.tail = 0

    def begin(self, *, refs: tuple[str, ...] = ()) -> Lease:
        """Let the stalled holder have the run, with something of each kind in it."""
        lease = self._latest = self._grant(self.stalled, self._latest)
        state = self.state()
        self.tail = state.journal[-1][0] if state.journal else 0
        if not state.journal:
            self.stalled.append(self.run_id, 0)
        if state.row is None:
            self.stalled.put_meta(self.run_id)
        if self.check.has_blobs:
            there = {ref for ref, _ in state.blobs}
            for ref in (f"{self.run_id}/turn", *refs):
                if ref not in there:
                    self.stalled.put(ref)
        return lease

    def take_over(self, lease: Lease) -> tuple[Lease, RunState]:
        """Grant the run to the successor, and read what there is at that moment."""
        live = self._latest = self._grant(self.successor, lease)
        return live, self.state()

    def _grant(self, actor: Actor, latest: Lease | None) -> Lease:
        """Grant the run to an actor, whoever holds it."""
        if self._seizes:
            return actor.seize(self.run_id)
        if latest is not None:
            # Refused when the holder's own release, or deletion, came first.
            with suppress(LeaseHeldError):
                actor.release(latest)
        return actor.acquire(self.run_id)

    def strike(self, lease: Lease) -> object:
        """Make the mutation once, as the stalled holder."""
        return self.surface.strike(self.stalled, Strike(self.run_id, lease, self.tail))

    def state(self) -> RunState:
        """Read the run, as the successor sees it.

        What the mutation changes comes first: what lands while the rest is being read counts.
        """
        stores, blobs = self.successor.stores, self.check.has_blobs
        return read_run(stores, self.run_id, blobs=blobs, first=self.surface.part)

    def judge(self, live: Lease, granted: RunState, where: str) -> None:
        """Hold what is there now against what was there when the successor had its grant."""
        now = self.state()
        check, what = self.check, self.surface.words
        if now != granted:
            check.timeline.add("stalled", f"{what} begins under the old lease", where)
            check.timeline.add("successor", f"takes over: epoch {live.epoch}", "granted")
            check.timeline.add("stalled", f"{what} goes on", "something changed")
            was, is_now = differences({self.run_id: granted}, {self.run_id: now})
            changed = [line for line in (*was, *is_now) if not line.startswith(" ")]
            check.fail(
                "nothing under the old lease lands once the successor has its grant",
                "; ".join(changed[:4]) or shown(now),
                before={self.run_id: granted},
                after={self.run_id: now},
                note=f"the check and the write are not one unit ({where})",
            )
        if not self._seizes:
            # Without a view of the lease rows, only its use shows that a lease still lives.
            try:
                self.successor.renew(live)
            except LeaseHeldError as error:
                check.fail("the successor's lease lives on", f"{error.reason} ({where})")


def _other_handle(check: CheckContext) -> Stores:
    sharing = check.place.sharing
    if sharing is Sharing.SHARED:
        return check.child()[1]
    return check.stores if sharing is Sharing.OBJECT else check.reopen()


# --- stepped --------------------------------------------------------------------------------


def step_through(check: CheckContext, surface: Surface) -> None:
    """Try a takeover at every step of one mutation. Fails the clause at the first hole."""
    duel = _Duel(check, "stepped", surface)
    patience_s = _patience(duel)
    total = _count_steps(duel)
    stride = max(1, -(-total // _MOST_STEPS))
    for stop_at in range(1 + check.random.randrange(stride), total + 1, stride):
        _step(duel, stop_at, patience_s)
    check.count(f"steps of {surface.name}", total)


def _patience(duel: _Duel) -> float:
    """Return how long a takeover may take before it counts as blocked."""
    slowest = 0.0
    for _ in range(4):
        lease = duel.begin()
        began = time.monotonic()
        duel.take_over(lease)
        slowest = max(slowest, time.monotonic() - began)
    return max(0.008, 2.5 * slowest)


def _count_steps(duel: _Duel) -> int:
    lease, words = duel.begin(), duel.surface.words
    call = Stepped(lambda: duel.strike(lease), stop_at=0)
    call.start(_WAIT_S)
    if not call.join(_WAIT_S):
        duel.check.fail(f"{words} ends", "it did not")
    if call.error is not None:
        duel.check.fail(f"{words} under the live lease lands", repr(call.error))
    return call.steps


def _step(duel: _Duel, stop_at: int, patience_s: float) -> None:
    check, words = duel.check, duel.surface.words
    lease = duel.begin()
    call = Stepped(lambda: duel.strike(lease), stop_at=stop_at)
    if not call.start(_WAIT_S):
        return
    taking = _Taking(duel, lease)
    granted_first = taking.wait(patience_s)
    call.go_on()
    if not call.join(_WAIT_S) or not taking.join(_WAIT_S):
        check.fail(f"{words} and a takeover both end", f"one hangs at {call.where}")
    if isinstance(taking.error, StoreBusyError):
        return
    if taking.error is not None:
        check.fail("the successor takes over", repr(taking.error))
    if call.error is not None and not isinstance(call.error, RulvarError):
        check.fail(f"{words} is refused typed", repr(call.error))
    check.count("takeovers inside a call" if granted_first else "takeovers that waited")
    if granted_first and taking.result is not None:
        duel.judge(*taking.result, f"stopped at {call.where}, step {stop_at}")


class _Taking:
    """A takeover on a thread of its own: it may have to wait for the stalled call."""

    def __init__(self, duel: _Duel, lease: Lease) -> None:
        self.result: tuple[Lease, RunState] | None = None
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(duel, lease), daemon=True)
        self._thread.start()

    def _run(self, duel: _Duel, lease: Lease) -> None:
        try:
            self.result = duel.take_over(lease)
        except Exception as error:  # noqa: BLE001 - judged by whoever waits
            self.error = error
        finally:
            self._ended.set()

    def wait(self, wait_s: float) -> bool:
        return self._ended.wait(wait_s)

    def join(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()


# --- storm ----------------------------------------------------------------------------------


@contextmanager
def _hasty_threads() -> Iterator[None]:
    """Let threads take turns a thousand times more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def storm(check: CheckContext, surface: Surface) -> None:
    """Take a run over in the middle of many calls, many times over."""
    duel = _Duel(check, "storm", surface)
    one_process = check.place.sharing is Sharing.OBJECT
    races = (_RACES_IN_ONE_PROCESS if one_process else _RACES) * check.effort
    once_s = _duration(duel)
    with _hasty_threads():
        for number in range(races):
            _race(duel, number, _pause_s(duel, number, once_s))
    check.count("races", races)


def _duration(duel: _Duel) -> float:
    """Return how long one call takes when nobody else calls."""
    quickest = _WAIT_S
    for _ in range(3):
        lease = duel.begin()
        began = time.monotonic()
        duel.strike(lease)
        quickest = min(quickest, time.monotonic() - began)
        duel.take_over(lease)
    return quickest


def _pause_s(duel: _Duel, number: int, once_s: float) -> float:
    """Return how long after the calls have begun a takeover begins, another one each race."""
    if not duel.surface.once:
        return duel.check.random.uniform(0, _PAUSE_CALLS * once_s)
    # After the first of them there is nothing more to hit.
    return duel.check.random.uniform(0, once_s) if number % 2 else 0


class _Hammer:
    """A thread of the stalled holder that makes the same mutation again and again."""

    def __init__(
        self, duel: _Duel, lease: Lease, number: int, tails: Iterator[int], begin: threading.Event
    ) -> None:
        self._duel = duel
        self._lease = lease
        self._blobs = iter(_blobs_of(duel.surface, number))
        self._tails = tails
        self._begin = begin
        self.stop = False
        self.landed = 0
        self.refused = 0
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        surface = self._duel.surface
        self._begin.wait(_WAIT_S)
        while not self.stop:
            # No call that begins later is below this one: order alone refuses few of them.
            tail = next(self._tails)
            at = Strike(self._duel.run_id, self._lease, tail, next(self._blobs, "turn"))
            try:
                surface.strike(self._duel.stalled, at)
                self.landed += 1
            except LeaseHeldError:
                self.refused += 1
                if surface.final or self.refused > 1:
                    return
            except RulvarError:
                continue  # out of order behind another thread, or busy: try again
            except Exception as error:  # noqa: BLE001 - judged after the race
                self.error = error
                return


def _blobs_of(surface: Surface, number: int) -> list[str]:
    """Return the blobs that one thread may remove: each can be removed once."""
    if surface.name != "blob-delete":
        return []
    return [f"race/{number}/{each}" for each in range(_BLOBS_EACH)]


def _race(duel: _Duel, number: int, pause_s: float) -> None:
    check, surface = duel.check, duel.surface
    blobs = [name for n in range(_THREADS) for name in _blobs_of(surface, n)]
    lease = duel.begin(refs=tuple(f"{duel.run_id}/{name}" for name in blobs))
    begin, tails = threading.Event(), count(duel.tail, 10)
    hammers = [_Hammer(duel, lease, n, tails, begin) for n in range(_THREADS)]
    for hammer in hammers:
        hammer.thread.start()
    begin.set()
    # Not a wait for anything: it moves the takeover to another moment of the storm.
    time.sleep(pause_s)
    granted = None
    try:
        granted = duel.take_over(lease)
    except StoreBusyError:
        check.count("takeovers that gave up")
    for hammer in hammers:
        hammer.stop = True
    check.join([hammer.thread for hammer in hammers])
    errors = [hammer.error for hammer in hammers if hammer.error is not None]
    if errors:
        check.fail(f"{surface.words} is refused typed", repr(errors[0]))
    check.count("landed before a takeover", sum(hammer.landed for hammer in hammers))
    check.count("refused after one", sum(hammer.refused for hammer in hammers))
    if granted is not None:
        duel.judge(*granted, f"race {number}")
