"""What a process of a storm is told when it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.plan import Plan

__all__ = ["WorkerConfig"]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One life of one process: where it reports, who it is, and what opens its store."""

    plan: Plan
    matrix: CoverageMatrix
    folder: str
    process: int
    opener: Opener
    life: int = 0

    def choices(self) -> random.Random:
        """Return the source of its choices."""
        return self.plan.choices(self.process, self.life)
