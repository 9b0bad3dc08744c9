"""All of it: the views, every guard taken away, and the stores held against the model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from rulvar.conformance.protocol.explore import explore
from rulvar.conformance.protocol.guards import GUARDS, REDUNDANT
from rulvar.conformance.protocol.invariants import INNER, INVARIANTS
from rulvar.conformance.protocol.replay import Stage, sound_steps
from rulvar.conformance.protocol.rules import SOUND
from rulvar.conformance.protocol.state import OWNERS, WRITES, Bounds, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rulvar.conformance.harness.store_under_test import StoreUnderTest
    from rulvar.conformance.protocol.explore import Counterexample, Exploration
    from rulvar.conformance.protocol.guards import Guard
    from rulvar.conformance.protocol.replay import Replay

__all__ = ["Found", "Plan", "Results", "View", "look_for", "run_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is explored, and what is replayed.

    ``views`` are explored whole; no one of them is everything, for the sake of the time that
    it takes. Every transition of ``replayed`` is taken on every store.
    """

    views: tuple[tuple[str, Bounds], ...]
    replayed: tuple[Bounds, ...]

    @classmethod
    def of(
        cls,
        *,
        owners: int = 2,
        epochs: int = 2,
        things: int = 1,
        flights: int = 1,
        wide: bool = False,
    ) -> Plan:
        """Return a plan: calls in flight; none, but one more of all the rest; two runs.

        Replayed are calls as one unit, since that is how a store is called. ``wide`` replays
        more: with the owner and epoch more, and two runs with every call.
        """
        steps = Bounds(owners=owners, epochs=epochs, things=things, flights=flights)
        more = replace(
            steps,
            owners=min(owners + 1, len(OWNERS)),
            epochs=epochs + 1,
            things=things + 1,
            flights=0,
        )
        two = replace(steps, runs=2, flights=0)
        interleave = replace(two, epochs=1, calls=frozenset[Call]((*WRITES, "acquire", "release")))
        return cls(
            views=(("in flight", steps), ("as one unit", more), ("two runs", two)),
            replayed=(
                (replace(more, things=things), replace(two, epochs=1))
                if wide
                else (replace(steps, flights=0), interleave)
            ),
        )


class View(NamedTuple):
    """A part of the protocol that was explored whole."""

    name: str
    explored: Exploration


class Found(NamedTuple):
    """A guard, and what is found without it."""

    guard: Guard
    explored: Exploration

    @property
    def counterexample(self) -> Counterexample | None:
        """The shortest interleaving that shows that it is gone."""
        return self.explored.counterexample

    def differs(self) -> bool:
        """Whether the protocol, given the same actions, does otherwise at the last step alone."""
        found = self.counterexample
        if found is None:
            return False
        *before, last = zip(found.moments, sound_steps(found), strict=True)
        same = [
            moment.answer == answer
            and [run.visible() for run in moment.after.runs]
            == [run.visible() for run in state.runs]
            for moment, (_, answer, state) in (*before, last)
        ]
        return all(same[:-1]) and not same[-1]


@dataclass(slots=True)
class Results:
    """What was found; `holds` when it is all as it should be."""

    views: list[View] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    redundant: Exploration | None = None
    redundant_same: bool = True
    replays: list[Replay] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every invariant, every guard and every store is as it should be."""
        return (
            all(view.explored.counterexample is None for view in self.views)
            and all(found.differs() for found in self.found)
            and self.redundant_same
            and all(replay.difference is None for replay in self.replays)
        )


def _quiet(_: str) -> None:
    """Tell nobody."""


def run_all(
    plan: Plan,
    subjects: Sequence[StoreUnderTest] = (),
    *,
    guards: Iterable[Guard] = GUARDS,
    tell: Callable[[str], None] = _quiet,
) -> Results:
    """Explore, take every guard away, and replay on every store.

    Raises `ConfigError` for a store that cannot be replayed.
    """
    began = time.monotonic()
    done = Results()
    for name, bounds in plan.views:
        tell(f"exploring: {name} ({bounds.words()})")
        done.views.append(View(name, explore(bounds)))
    tell("taking the guards away, one by one")
    done.found = [Found(guard, look_for(guard)) for guard in guards]
    _without_the_redundant(done, tell)
    graphs: dict[Bounds, Exploration] = {}
    for subject in subjects:
        tell(f"replaying: {subject.name}")
        done.replays.append(_replayed(subject, plan, done.found, graphs))
    done.seconds = time.monotonic() - began
    return done


def look_for(guard: Guard) -> Exploration:
    """Explore the protocol without one guard, up to the shortest interleaving that shows it.

    The owners use the leases that they were granted, and no forged ones, unless the guard is
    about those.
    """
    bounds = Bounds(
        owners=2,
        runs=2 if guard.second_run else 1,
        epochs=2,
        things=1,
        flights=0 if guard.second_run else 1,
        forged=guard.forged,
    )
    return explore(bounds, guard.off())


def _without_the_redundant(done: Results, tell: Callable[[str], None]) -> None:
    """Take all the redundant guards away at once: nothing that is explored may change."""
    tell("taking the redundant guards away, all at once")
    bounds = Bounds(owners=3, epochs=3, things=1, flights=0)
    off = SOUND.union(*(guard.off() for guard in REDUNDANT))
    explored = explore(bounds, off, judged=INVARIANTS + INNER)
    whole = next((v.explored for v in done.views if v.explored.bounds == bounds), None)
    whole = whole or explore(bounds)
    done.redundant = explored
    done.redundant_same = (
        explored.counterexample is None
        and (explored.states, explored.transitions) == (whole.states, whole.transitions)
        and explored.nodes == whole.nodes
    )


def _replayed(
    subject: StoreUnderTest, plan: Plan, found: list[Found], graphs: dict[Bounds, Exploration]
) -> Replay:
    stage = Stage(subject)
    try:
        for bounds in plan.replayed:
            offered = replace(bounds, calls=bounds.calls - stage.missing)
            if offered not in graphs:
                graphs[offered] = explore(offered, keep=True)
            if not stage.cover(graphs[offered]):
                return stage.replay
        for each in found:
            if each.counterexample is None or not stage.can(each.counterexample):
                continue
            if not stage.refute(each.counterexample):
                break
        return stage.replay
    finally:
        stage.close()
