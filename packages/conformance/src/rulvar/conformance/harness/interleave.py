"""Two calls that cross: one is stopped at each of its steps while the other is made.

Threads that only run at once meet in a window of two lines once in a thousand tries. Here the
first call stands still at its first step, then at its second, and so on until it completes,
and each time the second call is made while it stands there. The second one may answer at once
or wait for the first; both are judged when they have ended.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.harness.stepping import Stepped

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext

__all__ = ["Ending", "Interleaving", "interleave"]

_MOST_STEPS = 48
_SHORTEST_PATIENCE_S = 0.012
_WAIT_S = 20.0


@dataclass(slots=True)
class Ending:
    """How one of the two calls ended; ``inside`` when the other one stood still meanwhile."""

    value: object = None
    error: Exception | None = None
    inside: bool = False

    @property
    def returned(self) -> bool:
        """Whether it returned."""
        return self.error is None

    def words(self) -> str:
        """Return the ending in words."""
        return "it returned" if self.error is None else repr(self.error)


@dataclass(frozen=True, slots=True)
class Interleaving:
    """One meeting: the call that is stopped, the one that is made then, and the judge of both.

    The judge is called with the two endings and where the first call stood.
    """

    first: Callable[[], object]
    second: Callable[[], object]
    judge: Callable[[Ending, Ending, str], None]


def interleave(
    check: CheckContext, meet: Callable[[], Interleaving], *, most: int = _MOST_STEPS
) -> None:
    """Have two calls meet at every step of the first one, or at ``most`` of them.

    ``meet`` prepares each meeting anew. Fails the clause when a call hangs.
    """
    total, patience_s = _measure(check, meet())
    stride = max(1, -(-total // most))
    for stop_at in range(1 + check.random.randrange(stride), total + 1, stride):
        _meet(check, meet(), stop_at, patience_s)
    check.count("meetings of two calls", total // stride)


def _ending(call: Callable[[], object], ending: Ending) -> Callable[[], None]:
    def run() -> None:
        try:
            ending.value = call()
        except Exception as error:  # noqa: BLE001 - the judge decides
            ending.error = error

    return run


def _measure(check: CheckContext, crossing: Interleaving) -> tuple[int, float]:
    """Make both calls one after the other; return the steps of the first, and a patience."""
    first, second = Ending(), Ending()
    call = Stepped(_ending(crossing.first, first), stop_at=0)
    call.start(_WAIT_S)
    _end(check, call)
    began = time.monotonic()
    _ending(crossing.second, second)()
    took_s = time.monotonic() - began
    crossing.judge(first, second, "one after the other")
    return call.steps, max(_SHORTEST_PATIENCE_S, 2.5 * took_s)


def _meet(check: CheckContext, crossing: Interleaving, stop_at: int, patience_s: float) -> None:
    first, second = Ending(), Ending()
    call = Stepped(_ending(crossing.first, first), stop_at=stop_at)
    call.start(_WAIT_S)
    thread = threading.Thread(target=_ending(crossing.second, second), daemon=True)
    thread.start()
    thread.join(patience_s)
    second.inside = call.stopped and not thread.is_alive()
    call.go_on()
    _end(check, call)
    thread.join(_WAIT_S)
    if thread.is_alive():
        check.fail("both of two calls that cross end", f"one hangs ({_where(call)})")
    crossing.judge(first, second, _where(call))


def _end(check: CheckContext, call: Stepped) -> None:
    if not call.join(_WAIT_S):
        check.fail("both of two calls that cross end", f"one hangs ({_where(call)})")


def _where(call: Stepped) -> str:
    return f"while the first stood at {call.where}" if call.stopped else "one after the other"
