"""Whether what was found after a power cut is what was promised: pure.

At full durability: of each run, everything that was acknowledged is there; the call that was
in flight may be there, whole; nothing else is. At normal durability the newest calls may be
missing, in order: where a call is there, so is every call that was acknowledged before it was
made, in its own run and in every other; and no epoch that was granted is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from power_history import Call, History, Line, RunState
    from power_observe import Observation

    from rulvar.stores.sqlite.connection import Durability

__all__ = ["Judge", "Kind", "Verdict", "Violation"]

Kind = Literal[
    "does not open",
    "damaged",
    "lost",
    "reused epoch",
    "resurrected",
    "half a transaction",
    "hole",
    "stranger",
    "no way on",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """What was promised and is not so; the text names the calls."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The violations, and how many acknowledged calls are missing as the setting allows."""

    violations: tuple[Violation, ...] = ()
    missing: int = 0


class Judge:
    """Judges observations against one history."""

    def __init__(self, history: History, durability: Durability) -> None:
        self._history = history
        self._lines = history.lines()
        self._durability = durability

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that the workload ever named."""
        return tuple(self._lines)

    def verdict(self, observation: Observation, position: int) -> Verdict:
        """Judge what was found in an image of the cut at this position."""
        if observation.problem is not None:
            return Verdict((Violation(*observation.problem),))
        violations: list[Violation] = []
        if observation.strangers:
            text = f"runs that nobody made: {', '.join(observation.strangers)}"
            violations.append(Violation("stranger", text))
        points: dict[str, list[int]] = {}
        for run_id, line in self._lines.items():
            found = observation.states[run_id]
            points[run_id] = self._points(run_id, line, found, position)
            if not points[run_id]:
                violations.append(_misfit(run_id, line, found, position))
        if violations:
            return Verdict(tuple(violations))
        if self._durability == "full":
            return self._all_there(points, position)
        return self._in_order(points, position)

    def _points(self, run_id: str, line: Line, found: RunState, position: int) -> list[int]:
        """Return the points of the line that the state may be; after how many calls."""
        invoked = line.invoked_at(position)
        points = [number for number in range(invoked + 1) if line.states[number] == found]
        doubtful = self._history.doubtful(run_id, position)
        acknowledged = line.acknowledged_at(position)
        if (
            doubtful is not None
            and invoked == acknowledged
            and doubtful.effect(line.states[acknowledged]) == found
        ):
            points.append(acknowledged)
        return points

    def _all_there(self, points: dict[str, list[int]], position: int) -> Verdict:
        violations: list[Violation] = []
        for run_id, line in self._lines.items():
            acknowledged = line.acknowledged_at(position)
            newest = max(points[run_id])
            if newest < acknowledged:
                violations.extend(_losses(line.calls[newest:acknowledged], "lost"))
        return Verdict(tuple(violations))

    def _in_order(self, points: dict[str, list[int]], position: int) -> Verdict:
        """Find how far each run came, so that no call is there without those before it."""
        lines = self._lines
        least = {run_id: _granted(line, position) for run_id, line in lines.items()}
        because: dict[str, Call] = {}
        reached = dict.fromkeys(lines, -1)
        while True:
            for run_id, line in lines.items():
                enough = [point for point in points[run_id] if point >= least[run_id]]
                if not enough:
                    there = max(points[run_id])
                    missing = line.calls[there : least[run_id]]
                    later = because.get(run_id)
                    return Verdict(
                        tuple(_losses(missing, "lost" if later is None else "hole", later))
                    )
                reached[run_id] = min(enough)
            raised = False
            for run_id, line in lines.items():
                if reached[run_id] == 0:
                    continue
                newest = line.calls[reached[run_id] - 1]
                for other, line_of_other in lines.items():
                    before = line_of_other.acknowledged_at(newest.invoked)
                    if before > least[other]:
                        least[other], because[other] = before, newest
                        raised = raised or before > reached[other]
            if not raised:
                break
        missing_calls = sum(
            max(0, line.acknowledged_at(position) - max(points[run_id]))
            for run_id, line in lines.items()
        )
        return Verdict(missing=missing_calls)


def _granted(line: Line, position: int) -> int:
    """Return the point after the last acknowledged grant: that one is durable at every setting."""
    grants = [
        number
        for number, call in enumerate(line.calls, start=1)
        if call.grants and call.acknowledged_at(position)
    ]
    return max(grants, default=0)


def _losses(missing: list[Call], kind: Kind, later: Call | None = None) -> Iterator[Violation]:
    named = "; ".join(f"{call}, acknowledged at {call.answered}" for call in missing)
    what = "is missing" if len(missing) == 1 else "are missing"
    beside = "" if later is None else f", and what was called after it is there: {later}"
    yield Violation(kind, f"{named} {what}{beside}")
    grants = [call for call in missing if call.grants]
    if grants:
        text = "; ".join(f"{call} would be granted again" for call in grants)
        yield Violation("reused epoch", text)


def _misfit(run_id: str, line: Line, found: RunState, position: int) -> Violation:
    """Say what a state is that the run never had."""
    for call in line.refused:
        if call.invoked > position:
            continue
        imagined = any(call.effect(state) == found for state in line.states)
        if imagined or (call.token is not None and found.says(call.token)):
            return Violation("resurrected", f"{call} was refused, and what it does is there")
    grants = [call for call in line.calls if call.grants and call.acknowledged_at(position)]
    marks = [line.states[line.calls.index(call) + 1].mark for call in grants]
    if marks and found.mark < max(marks):
        text = f"{run_id}: epoch {found.mark + 1} was granted already: {grants[-1]}"
        return Violation("reused epoch", text)
    parts = ", ".join(_parts(line, found))
    return Violation("half a transaction", f"{run_id} never was like this: {parts}")


def _parts(line: Line, found: RunState) -> Iterator[str]:
    for name, value in found._asdict().items():
        at = [number for number, state in enumerate(line.states) if getattr(state, name) == value]
        if not at:
            yield f"its {name} was never {value!r}"
        else:
            calls = f"{at[0]}" if len(at) == 1 else f"{at[0]} to {at[-1]}"
            yield f"its {name} as after {calls} calls"
