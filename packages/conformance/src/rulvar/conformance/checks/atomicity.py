"""The fence's check and the write it guards are one unit, on each mutation (family F)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.clauses import Level, Section
from rulvar.conformance.races import step_through, storm
from rulvar.conformance.surfaces import SURFACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.surfaces import Surface
    from rulvar.conformance.trial import Trial

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.LEASABLE, source="the fence: check and mutation are one unit")

_LEFT_OUT = {"append-stale", "blob-new", "blob-delete-missing"}
"""They share their code with a mutation that is tried."""


def _both(surface: Surface) -> Callable[[Trial], None]:
    def check(trial: Trial) -> None:
        step_through(trial, surface)
        storm(trial, surface)

    return check


def _fill() -> None:
    for surface in SURFACES:
        if surface.name in _LEFT_OUT:
            continue
        CLAUSES.clause(
            f"F-{surface.name}-atomic",
            f"Nobody can take the run over between the check and the write of {surface.words}.",
            level=surface.level,
            capability=surface.capability,
        )(_both(surface))


_fill()
