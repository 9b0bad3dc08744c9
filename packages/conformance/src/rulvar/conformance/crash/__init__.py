"""Kill points: a process dies at every store call, and another one finishes what it began.

    from rulvar.conformance import StoreAtUrl
    from rulvar.conformance.crash import kill_points

    report = kill_points(StoreAtUrl("acme:///runs.db"))
    print(report.text())

Nobody picks the points: the n-th call kills its own process (SIGKILL, really), before it is
made or when it has been answered, for n = 1, 2, 3, until a run makes fewer calls than that and
finishes unharmed. After each death a fresh process takes over and finishes through the
engine's public calls, and a third one judges.

Reading order: `workloads` (the table) and `workflows` (their bodies), `call_log` (what a process
notes, and where it dies), `expected_state` and `invariants` (what must be true, without any I/O),
`phases` (what each process does), `forking` (where they come from), `crash_case`, `runner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.harness.lazy import lazy_names

if TYPE_CHECKING:
    from rulvar.conformance.crash.call_log import KillPoint
    from rulvar.conformance.crash.crash_case import Death
    from rulvar.conformance.crash.report import Failure, KillPointReport, WorkloadReport
    from rulvar.conformance.crash.runner import kill_points
    from rulvar.conformance.crash.workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "Death",
    "Failure",
    "KillPoint",
    "KillPointReport",
    "Workload",
    "WorkloadReport",
    "kill_points",
]

# At first use: the command line lists this command without importing the engine.
_HOMES = {
    "WORKLOADS": "workloads",
    "Death": "crash_case",
    "Failure": "report",
    "KillPoint": "call_log",
    "KillPointReport": "report",
    "Workload": "workloads",
    "WorkloadReport": "report",
    "kill_points": "runner",
}


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
