"""A few long interleavings that together take every transition of an explored graph.

A store cannot be set back to an earlier state cheaply, but a new run id can always begin at the
first one. So a trace begins there, goes the shortest way to a state with something untried,
tries there all that changes nothing (most of it: refusals), and goes on through something that
changes the state and was not yet tried, until there is nothing new where it stands.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.conformance.protocol.explore import Edge, Exploration

__all__ = ["Stride", "covering"]


class Stride(NamedTuple):
    """One step of a trace; ``new`` when no earlier one has taken it."""

    edge: Edge
    new: bool


class _Untried:
    """What is left to try, by node: what stays there, and what leads away."""

    def __init__(self, explored: Exploration) -> None:
        self.loops = [
            [edge for edge in edges if edge.target == node]
            for node, edges in enumerate(explored.edges)
        ]
        self.ways = [
            deque(edge for edge in edges if edge.target != node)
            for node, edges in enumerate(explored.edges)
        ]

    def any(self, node: int) -> bool:
        """Whether there is something untried at a node."""
        return bool(self.loops[node] or self.ways[node])

    def next_way(self, node: int) -> Edge | None:
        """Take one that leads away, to where something is untried if there is such a one."""
        ways = self.ways[node]
        for _ in range(len(ways)):
            if self.any(ways[0].target):
                return ways.popleft()
            ways.rotate(-1)
        return ways.popleft() if ways else None


def covering(explored: Exploration) -> Iterator[list[Stride]]:
    """Return traces from the first state that take every transition at least once."""
    untried = _Untried(explored)
    tree = _tree(explored)
    for start in range(explored.states):
        while untried.any(start):
            trace = [Stride(edge, new=False) for edge in _way_to(tree, start)]
            node = start
            while True:
                trace += [Stride(edge, new=True) for edge in untried.loops[node]]
                untried.loops[node] = []
                edge = untried.next_way(node)
                if edge is None:
                    break
                trace.append(Stride(edge, new=True))
                node = edge.target
            yield trace


def _tree(explored: Exploration) -> list[tuple[int, Edge] | None]:
    """Return how each node was reached first."""
    tree: list[tuple[int, Edge] | None] = [None] * explored.states
    for node, edges in enumerate(explored.edges):
        for edge in edges:
            if edge.target and tree[edge.target] is None:
                tree[edge.target] = (node, edge)
    return tree


def _way_to(tree: list[tuple[int, Edge] | None], node: int) -> list[Edge]:
    way = []
    while (step := tree[node]) is not None:
        node, edge = step
        way.append(edge)
    return way[::-1]
