"""What a store can claim to be, and how far its state is shared."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

__all__ = ["LEVELS", "Level", "Sharing", "Strength", "reaches"]


class Level(StrEnum):
    """What a store claims to be; each level is checked by the clauses of its own name."""

    JOURNAL = "journal"
    LEASABLE = "leasable"
    FENCED = "fenced"
    TRANSCRIPTS = "transcripts"
    FENCED_PAIR = "fenced-pair"


class Sharing(StrEnum):
    """How far a store's state reaches: one object, one process, or several processes."""

    OBJECT = "object"
    PROCESS = "process"
    SHARED = "shared"


Strength = Literal["MUST", "SHOULD"]

LEVELS: dict[Level, frozenset[Level]] = {
    Level.JOURNAL: frozenset({Level.JOURNAL}),
    Level.LEASABLE: frozenset({Level.JOURNAL, Level.LEASABLE}),
    Level.FENCED: frozenset({Level.JOURNAL, Level.LEASABLE, Level.FENCED}),
    Level.TRANSCRIPTS: frozenset({Level.TRANSCRIPTS}),
    Level.FENCED_PAIR: frozenset(Level),
}
"""Each level with those that it includes."""

_FARTHEST = tuple(Sharing)


def reaches(have: Sharing, need: Sharing) -> bool:
    """Whether a store of reach ``have`` can be tried where ``need`` is needed."""
    return _FARTHEST.index(have) >= _FARTHEST.index(need)
