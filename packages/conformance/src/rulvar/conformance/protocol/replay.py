"""The model's interleavings against a real store: every answer, and everything that can be read.

Each trace has run ids of its own, so thousands of them share one store. Time is the run's: before
a call the clock is set to the hour of the run that the call is about, so that one run's lease
runs out and another's does not. A call in flight is made when the model writes: a store is
called as one unit, and what is between its own steps is for the clauses F-*-atomic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.harness import machine_clock
from rulvar.conformance.protocol.adapter import Trace
from rulvar.conformance.protocol.replay_clock import LEASE_TTL_MS, ReplayClock
from rulvar.conformance.protocol.rules import SOUND, step
from rulvar.conformance.protocol.state import Action, LeaseValue
from rulvar.conformance.protocol.traces import covering
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.fencing import assert_fenced_writes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.conformance.harness.store_under_test import StoreUnderTest, TestLocation
    from rulvar.conformance.protocol.explore import Counterexample, Exploration
    from rulvar.conformance.protocol.state import Answer, Call, State
    from rulvar.core.stores import Stores

__all__ = ["Difference", "Replay", "Stage", "sound_steps"]

_OPTIONAL: tuple[Call, ...] = ("seize", "revive", "raise_epoch", "renew_all", "delete_whole_run")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a store did not do what the model does: the actions, the last of them the one."""

    actions: tuple[Action, ...]
    answers: tuple[Answer, ...]
    expected: str
    got: str


@dataclass(slots=True)
class Replay:
    """What was replayed against one store."""

    store: str
    traces: int = 0
    calls: int = 0
    transitions: int = 0
    counterexamples: int = 0
    difference: Difference | None = None


def _missing_calls(stores: Stores) -> frozenset[Call]:
    """Return the calls of the model that these stores do not have."""
    return frozenset(
        call for call in _OPTIONAL if not callable(getattr(stores.journal, call, None))
    )


class Stage:
    """A store under replay. Close it after use.

    Raises `ConfigError` for a subject whose store is no fenced pair, whose place is not its
    own, or whose leases do not believe the clock that they are given.
    """

    def __init__(self, subject: StoreUnderTest) -> None:
        self._place = place = subject.fresh(lease_ttl_ms=LEASE_TTL_MS, manual_clock=True)
        self.replay = Replay(subject.name)
        self._number = 0
        try:
            self._open(subject, place)
        except BaseException:
            self.close()
            raise

    def _open(self, subject: StoreUnderTest, place: TestLocation) -> None:
        if not place.fresh:
            message = (
                f"{subject.name} is a place that others may use: give @tmp@/ or a relative path"
            )
            raise ConfigError(message)
        self.stores = place.open()
        assert_fenced_writes(self.stores)
        if not place.honours_ttl:
            message = f"{subject.name} takes no lease_ttl_ms: its leases cannot be made to run out"
            raise ConfigError(message)
        self.missing = _missing_calls(self.stores)
        self._clock = ReplayClock(place)
        if not self._clock.exact:
            self._look_at_the_clock(subject.name)

    def _look_at_the_clock(self, name: str) -> None:
        """Let a lease run out, so that a store with a clock elsewhere is not called wrong."""
        self._clock.set(0)
        self.stores.journal.acquire("model-clock", "ann")  # type: ignore[attr-defined]
        self._clock.set(LEASE_TTL_MS)
        try:
            self.stores.journal.acquire("model-clock", "bob")  # type: ignore[attr-defined]
        except LeaseHeldError:
            message = (
                f"the leases of {name} do not run out by this process's clock: replay a factory "
                "that takes home.clock (StoreFromFactory) instead"
            )
            raise ConfigError(message) from None

    def close(self) -> None:
        """Remove the place, and give the machine its clock back."""
        if machine_clock.offset_ms():
            machine_clock.set_offset(0)
        self._place.discard()

    # --- what is replayed -------------------------------------------------------------------

    def cover(self, explored: Exploration) -> bool:
        """Replay every transition of an explored graph; return whether all were as they should."""
        for trace in covering(explored):
            edges = (stride.edge for stride in trace)
            if not self._run(
                (edge.action, edge.answer, explored.nodes[edge.target].state) for edge in edges
            ):
                return False
            self.replay.traces += 1
            self.replay.transitions += sum(stride.new for stride in trace)
        return True

    def can(self, found: Counterexample) -> bool:
        """Whether the store has every call of a counterexample."""
        return self.missing.isdisjoint(moment.action.call for moment in found.moments)

    def refute(self, found: Counterexample) -> bool:
        """Replay a counterexample of a missing guard: the store must do as the protocol does."""
        steps = sound_steps(found)
        if not self._run(steps):
            return False
        self.replay.counterexamples += 1
        return True

    def _run(self, steps: Iterable[tuple[Action, Answer, State]]) -> bool:
        self._number += 1
        trace = Trace(self.stores, self._clock, self._number)
        state = None
        for action, answer, state in steps:
            if not self._take(trace, action, answer, state):
                return False
        # What cannot be read of a run, its tombstone, shows in one more grant, and in a write.
        if state is None or "seize" in self.missing:
            return True
        seize = Action("seize", 0, 0)
        state, granted = step(state, seize)
        append = Action("append", 0, 0, LeaseValue(0, 0, granted.epoch))
        written, landed = step(state, append)
        return self._take(trace, seize, granted, state) and self._take(
            trace, append, landed, written
        )

    def _take(self, trace: Trace, action: Action, answer: Answer, after: State) -> bool:
        wrong = trace.take(action, answer, after)
        if wrong is not None:
            expected, got = wrong
            self.replay.difference = Difference(
                tuple(trace.actions), tuple(trace.answers), expected, got
            )
            return False
        self.replay.calls += 1
        return True


def sound_steps(found: Counterexample) -> list[tuple[Action, Answer, State]]:
    """Return what the protocol, with all its guards, does with a counterexample's actions."""
    state = found.moments[0].before
    steps = []
    for moment in found.moments:
        state, answer = step(state, moment.action, SOUND)
        steps.append((moment.action, answer, state))
    return steps
