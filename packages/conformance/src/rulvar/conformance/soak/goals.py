"""When a storm is enough: what is still thin, by name, and never a pass while anything is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.soak.history import FORKED

if TYPE_CHECKING:
    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.plan import CoverageGoals
    from rulvar.conformance.soak.progress import Progress

__all__ = ["Shortfall", "shortfall", "thin_names"]


@dataclass(frozen=True, slots=True, order=True)
class Shortfall:
    """One number that is below its minimum.

    ``surface`` and ``death`` say which; a name in angle brackets stands for a whole.
    """

    surface: str
    death: str
    have: int
    need: int

    @property
    def missing(self) -> int:
        """How many are missing."""
        return self.need - self.have

    def __str__(self) -> str:
        what = {
            "<accepted>": "accepted mutations",
            "<refused>": "refused mutations",
            "<takeovers>": "takeovers",
            "<stops>": "stops",
            "<kills>": "kills",
        }.get(self.surface)
        if self.death == FORKED:
            what = "forks of a process with its store open"
        if what is None and not self.surface:
            what = f"takeovers from the {self.death}"
        if what is None and not self.death:
            what = f"{self.surface} accepted"
        if what is None and self.death == "overtaken":
            what = f"{self.surface} overtaken in the middle of a call"
        if what is None:
            what = f"{self.surface} refused to the {self.death}"
        return f"{what}: {self.have} of {self.need}"


def shortfall(progress: Progress, matrix: CoverageMatrix, goals: CoverageGoals) -> list[Shortfall]:
    """Return everything that is below its minimum, the thinnest first."""
    faults, takeovers = progress.faults, progress.takeovers
    mutations = sum(progress.accepted[op] for op in matrix.surfaces)
    numbers = [
        Shortfall("<accepted>", "", mutations, goals.accepted),
        Shortfall("<refused>", "", progress.refusals, goals.refused),
        Shortfall("<takeovers>", "", takeovers.total(), goals.takeovers),
        Shortfall("<stops>", "", faults["stopped"], goals.stops),
        Shortfall("<kills>", "", faults["killed"], goals.kills),
        Shortfall("", FORKED, faults[FORKED], goals.forks),
        *(
            Shortfall(op, "", progress.accepted[op], goals.per_surface)
            for op in (*matrix.surfaces, *matrix.grants)
        ),
        *(
            Shortfall(op, "overtaken", progress.overtaken[op], _overtaken(op, goals))
            for op in (*matrix.surfaces, *matrix.grants)
        ),
        *(
            Shortfall(op, death, progress.refused[op, death], goals.per_cell)
            for op, death in matrix.cells
        ),
        *(Shortfall("", death, takeovers[death], goals.per_death) for death in matrix.fatal),
    ]
    thin = [each for each in numbers if each.missing > 0]
    return sorted(thin, key=lambda each: each.have / each.need)


def _overtaken(op: Operation, goals: CoverageGoals) -> int:
    # There is little time in which a lease has run out and nobody else has the run.
    return max(1, goals.overtaken // 2) if op == "revive" else goals.overtaken


def thin_names(thin: list[Shortfall]) -> dict[str, int]:
    """Return what the processes are told: names of cells to what is missing there."""
    return {
        f"{each.surface} {each.death}": each.missing
        for each in thin
        if not each.surface.startswith("<")
    }
