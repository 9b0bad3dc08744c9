"""What was called and answered, and what a run must then hold: pure.

A `Call` has an effect on the state of one run and two positions in the log of the disk: where
it was invoked, and where it was answered. Calls on one run are made one after the other, so
its states form a line: the first, then one after each call that landed. What a power cut
leaves of a run must be a point on that line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "History", "Outcome", "RunState", "shown"]

Outcome = Literal["in flight", "landed", "refused", "doubtful"]
"""``refused`` lands at no time; ``doubtful`` is one whose caller was told "unknown": it may have
landed until the store has told what became of it."""

_SHOWN = 90


def shown(data: bytes) -> str:
    """Return a text that equal bytes have in common, and no others: short, with their head."""
    if len(data) <= _SHOWN:
        return data.decode("utf-8", "backslashreplace")
    head = data[:_SHOWN].decode("utf-8", "backslashreplace")
    return f"{head}... {len(data)} bytes {hashlib.blake2b(data, digest_size=8).hexdigest()}"


class RunState(NamedTuple):
    """Everything that a store holds of one run; ``mark`` is the highest epoch granted."""

    journal: tuple[str, ...] = ()
    meta: str | None = None
    lease: tuple[str, int, int] | None = None
    mark: int = 0
    blobs: tuple[tuple[str, str], ...] = ()

    def says(self, token: str) -> bool:
        """Whether something in it was written by the call with this token."""
        texts = [*self.journal, self.meta or "", *(text for _, text in self.blobs)]
        return any(token in text for text in texts)


Effect = "Callable[[RunState], RunState]"


@dataclass(slots=True)
class Call:
    """One call: who made it, under which epoch, and what it does to its run if it lands.

    ``token`` stands in what it writes and nowhere else. ``grants`` says that it hands out an
    epoch.
    """

    number: int
    run_id: str
    what: str
    actor: str
    effect: Callable[[RunState], RunState]
    invoked: int
    epoch: int | None = None
    token: str | None = None
    grants: bool = False
    answered: int | None = None
    outcome: Outcome = "in flight"

    def acknowledged_at(self, position: int) -> bool:
        """Whether its caller knew by then that it had landed."""
        return self.outcome == "landed" and self.answered is not None and self.answered <= position

    def in_flight_at(self, position: int) -> bool:
        """Whether it had been invoked and not yet answered."""
        return self.invoked <= position and (self.answered is None or position < self.answered)

    def __str__(self) -> str:
        under = "" if self.epoch is None else f" under epoch {self.epoch}"
        return f"call {self.number}: {self.actor} {self.what} on {self.run_id}{under}"


@dataclass(slots=True)
class Line:
    """One run's calls that landed or may have, with the state before and after each."""

    calls: list[Call] = field(default_factory=list)
    states: list[RunState] = field(default_factory=lambda: [RunState()])
    refused: list[Call] = field(default_factory=list)

    def acknowledged_at(self, position: int) -> int:
        """Return how many of the calls were known to have landed by then."""
        return sum(call.acknowledged_at(position) for call in self.calls)

    def invoked_at(self, position: int) -> int:
        """Return how many had been invoked by then."""
        return sum(call.invoked <= position for call in self.calls)


@dataclass(slots=True)
class History:
    """The calls of one workload, and each run's line; ``first`` is what was there before."""

    calls: list[Call] = field(default_factory=list)
    first: dict[str, RunState] = field(default_factory=dict)

    def add(self, call: Call) -> Call:
        """Take a call that is being made."""
        self.calls.append(call)
        return call

    def lines(self) -> dict[str, Line]:
        """Return the line of each run; asked once, when all calls are known."""
        found = {run_id: Line(states=[state]) for run_id, state in self.first.items()}
        for call in self.calls:
            line = found.setdefault(call.run_id, Line())
            if call.outcome == "refused":
                line.refused.append(call)
            elif call.outcome == "landed":
                line.calls.append(call)
                line.states.append(call.effect(line.states[-1]))
        return found

    def doubtful(self, run_id: str, position: int) -> Call | None:
        """Return the run's call whose outcome nobody knew then and that did not land at last."""
        for call in self.calls:
            if call.run_id == run_id and call.outcome == "doubtful" and call.in_flight_at(position):
                return call
        return None

    def count(self, outcome: Outcome) -> int:
        """Return how many calls ended like this."""
        return sum(call.outcome == outcome for call in self.calls)
