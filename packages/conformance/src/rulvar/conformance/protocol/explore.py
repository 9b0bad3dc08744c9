"""Breadth first through every state within the bounds, and the shortest way to a broken one.

A level is finished before a verdict is given: among the counterexamples of the least length,
the gravest is told. The graph that is kept for the replay holds every transition within the
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rulvar.conformance.protocol.actions import actions
from rulvar.conformance.protocol.invariants import (
    INNER,
    INVARIANTS,
    RECOVERY,
    WORDS,
    Moment,
    begin_truth,
)
from rulvar.conformance.protocol.rules import SOUND, step

if TYPE_CHECKING:
    from rulvar.conformance.protocol.invariants import Invariant, Truth
    from rulvar.conformance.protocol.rules import Off
    from rulvar.conformance.protocol.state import Action, Answer, Bounds, State

__all__ = ["Counterexample", "Edge", "Exploration", "Node", "explore"]


class Node(NamedTuple):
    """A state of the model, and the truth beside it."""

    state: State
    truth: tuple[Truth, ...]


class Edge(NamedTuple):
    """A transition: what is done, what it answers, and the number of the node after it."""

    action: Action
    answer: Answer
    target: int


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest interleaving that breaks an invariant: its last step is the wrong one.

    ``off`` are the guards that were missing.
    """

    invariant: Invariant
    moments: tuple[Moment, ...]
    off: Off = SOUND

    def __len__(self) -> int:
        return len(self.moments)


@dataclass(slots=True)
class Exploration:
    """What was explored, up to the counterexample if there is one."""

    bounds: Bounds
    off: Off
    nodes: list[Node] = field(default_factory=list)
    parents: list[tuple[int, Action] | None] = field(default_factory=list)
    edges: list[list[Edge]] = field(default_factory=list)
    transitions: int = 0
    depth: int = 0
    counterexample: Counterexample | None = None

    @property
    def states(self) -> int:
        """How many states there are."""
        return len(self.nodes)

    def path_to(self, node: int) -> list[Action]:
        """Return the shortest way to a node."""
        path = []
        while (parent := self.parents[node]) is not None:
            node, action = parent
            path.append(action)
        return path[::-1]


def explore(
    bounds: Bounds,
    off: Off = SOUND,
    *,
    keep: bool = False,
    judged: tuple[Invariant, ...] | None = None,
) -> Exploration:
    """Explore every state within the bounds, or up to the first level with a broken invariant.

    ``keep`` keeps every transition. ``judged`` are the invariants; by default those that a
    caller can see, and of the protocol as it is the inner ones too. That no run is lost is
    looked at last, over the whole graph.
    """
    if judged is None:
        judged = INVARIANTS if off else INVARIANTS + INNER
    return _Explorer(bounds, off, keep=keep, judged=judged).run()


class _Explorer:
    def __init__(
        self, bounds: Bounds, off: Off, *, keep: bool, judged: tuple[Invariant, ...]
    ) -> None:
        self.found = Exploration(bounds, off)
        self.keep = keep
        self.judged = judged
        self.tables = {
            (word, changed): [
                (rank, invariant)
                for rank, invariant in enumerate(judged)
                if word in invariant.words and (changed or not invariant.of_change)
            ]
            for word in WORDS
            for changed in (False, True)
        }
        self.numbers: dict[Node, int] = {}
        self.broken: tuple[int, int, Moment] | None = None
        self.grants: list[bool] = []
        self.ways: list[tuple[int, int]] = []

    def run(self) -> Exploration:
        found = self.found
        bounds = found.bounds
        self.number(Node(bounds.start(), begin_truth(bounds.runs)), None)
        level = [0]
        while level:
            following: list[int] = []
            for node in level:
                following += self.expand(node)
            if self.broken is not None:
                rank, node, moment = self.broken
                found.counterexample = self.story(rank, node, moment)
                return found
            level = following
            found.depth += bool(level)
        lost = self.lost()
        if lost is not None:
            moments = self.retrace(found.path_to(lost))
            found.counterexample = Counterexample(RECOVERY, tuple(moments), found.off)
        return found

    def number(self, node: Node, parent: tuple[int, Action] | None) -> int:
        found = self.found
        number = self.numbers[node] = len(found.nodes)
        found.nodes.append(node)
        found.parents.append(parent)
        self.grants.append(False)
        if self.keep:
            found.edges.append([])
        return number

    def expand(self, number: int) -> list[int]:
        """Take every action of a node; return the nodes that are new."""
        found = self.found
        state, truth = found.nodes[number]
        new = []
        for action in actions(state, found.bounds, found.off):
            after, answer = step(state, action, found.off)
            moment = Moment(state, truth[action.run], action, answer, after)
            self.judge(number, moment)
            recovers = action.call in {"acquire", "revive", "time"} or action.phase == "crash"
            if answer.word == "granted" and recovers:
                self.grants[number] = True
            if after is not state and not found.bounds.hold(after):
                continue
            found.transitions += 1
            true = truth[action.run].after(action, answer) if action.phase != "begin" else None
            changed = truth
            if true is not None and true != truth[action.run]:
                changed = (*truth[: action.run], true, *truth[action.run + 1 :])
            node = Node(after, changed)
            target = self.numbers.get(node)
            if target is None:
                target = self.number(node, (number, action))
                new.append(target)
            if self.keep:
                found.edges[number].append(Edge(action, answer, target))
            if recovers and target != number:
                self.ways.append((number, target))
        return new

    def judge(self, number: int, moment: Moment) -> None:
        changed = moment.after is not moment.before
        for rank, invariant in self.tables[moment.answer.word, changed]:
            if self.broken is not None and rank >= self.broken[0]:
                return
            if not invariant.holds(moment):
                self.broken = (rank, number, moment)

    def lost(self) -> int | None:
        """Return a node from which no grant can be reached without an operator, or None."""
        back: dict[int, list[int]] = {}
        for source, target in self.ways:
            back.setdefault(target, []).append(source)
        reached = list(self.grants)
        todo = [number for number, grants in enumerate(reached) if grants]
        while todo:
            for source in back.get(todo.pop(), ()):
                if not reached[source]:
                    reached[source] = True
                    todo.append(source)
        return next((number for number, fine in enumerate(reached) if not fine), None)

    def story(self, rank: int, number: int, moment: Moment) -> Counterexample:
        moments = self.retrace(self.found.path_to(number))
        return Counterexample(self.judged[rank], (*moments, moment), self.found.off)

    def retrace(self, path: list[Action]) -> list[Moment]:
        state, truth = self.found.nodes[0]
        moments = []
        for action in path:
            after, answer = step(state, action, self.found.off)
            true = truth[action.run]
            moments.append(Moment(state, true, action, answer, after))
            true = true.after(action, answer)
            truth = (*truth[: action.run], true, *truth[action.run + 1 :])
            state = after
        return moments
