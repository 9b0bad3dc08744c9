"""The soak: worker processes attack one store at once, and a checker judges the history.

    from rulvar.conformance import StoreAtUrl
    from rulvar.conformance.soak import Plan, soak

    report = soak(StoreAtUrl("acme:///runs.db"), Plan(seed=7))
    print(report.text())
    assert report.passed

Reading order: `history` (what is recorded of every attempt, in a form that survives SIGKILL),
`serial_order` and `checker` (the one serial history that the epochs promise, held against what was
seen); then `plan` (what is chosen) and `coverage` (when it is enough), `worker` (what a process
does), `faults` (what is done to it) and `run` (which brings it all together).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.harness.lazy import lazy_names

if TYPE_CHECKING:
    from rulvar.conformance.soak.plan import CI, LONG, CoverageGoals, Plan
    from rulvar.conformance.soak.report import SoakReport
    from rulvar.conformance.soak.run import soak

__all__ = ["CI", "LONG", "CoverageGoals", "Plan", "SoakReport", "soak"]

# At first use: reading a history needs none of it.
_HOMES = {
    "CI": "plan",
    "LONG": "plan",
    "Plan": "plan",
    "CoverageGoals": "plan",
    "SoakReport": "report",
    "soak": "run",
}


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
