"""The dead tenures of one process, all of which go on striking."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rulvar.conformance.soak.coverage import ABOUT_LEASE
from rulvar.core.records import Lease

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.leases import Tenure

__all__ = ["DeadLeasePool"]

_KEPT = 10
_MOST_WISHED = 30
_FAR = 1_000_000


class DeadLeasePool:
    """Some tenures of each kind of death; those that have just died strike in a burst."""

    def __init__(self, matrix: CoverageMatrix, choices: random.Random, process: int) -> None:
        self._matrix = matrix
        self._choices = choices
        self._forger = f"forger-{process}"
        self._kept: dict[str, deque[Tenure]] = {}
        self._bursts: deque[tuple[Tenure, int]] = deque()

    def add(self, tenure: Tenure, strikes: int) -> None:
        """Keep a dead tenure, and let it strike so many times at once."""
        self._kept.setdefault(tenure.death, deque(maxlen=_KEPT)).append(tenure)
        self._bursts.append((tenure, strikes))

    def forget(self, tenure: Tenure) -> None:
        """Let go of one that was alive after all, and has ended since."""
        for kept in self._kept.values():
            if tenure in kept:
                kept.remove(tenure)

    @property
    def in_burst(self) -> bool:
        """Whether one is in the middle of a burst."""
        return bool(self._bursts)

    def next_in_burst(self) -> Tenure:
        """Return the one whose turn it is."""
        tenure, left = self._bursts.popleft()
        if left > 1:
            self._bursts.append((tenure, left - 1))
        return tenure

    def unaware(self) -> tuple[Tenure, ...]:
        """Return those of which nobody knows what has befallen them."""
        return tuple(self._kept.get("", ()))

    def everybody(self) -> list[Tenure]:
        """Return all of them."""
        return [tenure for kept in self._kept.values() for tenure in kept]

    def kind(self, thin: Mapping[str, int]) -> str:
        """Choose a kind of death to strike with, most often one of which there is too little."""
        kinds = [death for death, kept in self._kept.items() if kept]
        kinds += ["forged", "foreign"]
        wanted = {name.partition(" ")[2] for name in thin}
        return self._choices.choices(kinds, [4 if kind in wanted else 1 for kind in kinds])[0]

    def some(self, death: str) -> Tenure | None:
        """Return some tenure that died of it; None for what is no tenure's death."""
        kept = self._kept.get(death)
        return self._choices.choice(kept) if kept else None

    def surface(self, death: str, thin: Mapping[str, int]) -> Operation:
        """Choose what to strike with, most often what is thin."""
        surfaces = [
            op for op in self._matrix.surfaces if not (death == "foreign" and op in ABOUT_LEASE)
        ]
        shares = [1 + min(_MOST_WISHED, thin.get(f"{op} {death}", 0)) for op in surfaces]
        return self._choices.choices(surfaces, shares)[0]

    def forge(self, lease: Lease) -> Lease:
        """Return a lease that nobody was ever granted."""
        if self._choices.choice((True, False)):
            return Lease(run_id=lease.run_id, owner=self._forger, epoch=lease.epoch)
        return Lease(run_id=lease.run_id, owner=lease.owner, epoch=lease.epoch + _FAR)
