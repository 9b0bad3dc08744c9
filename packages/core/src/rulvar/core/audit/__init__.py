"""Audit and repair of rows against their journals (contract.md#audit-and-repair).

Read in this order: `findings` (the verdicts), `verdicts` (how one is reached, no I/O), `scan`
(reading a store, changing nothing), `reconcile` (the repair, under a brief lease per run).
"""

from __future__ import annotations

from rulvar.core.audit.findings import (
    REPAIRABLE,
    VERDICTS,
    BlobFinding,
    Finding,
    Repair,
    RowChange,
    RunAudit,
    Verdict,
)
from rulvar.core.audit.reconcile import reconcile_run_meta, repair_runs
from rulvar.core.audit.scan import audit_run, audit_runs, count_runs

__all__ = [
    "REPAIRABLE",
    "VERDICTS",
    "BlobFinding",
    "Finding",
    "Repair",
    "RowChange",
    "RunAudit",
    "Verdict",
    "audit_run",
    "audit_runs",
    "count_runs",
    "reconcile_run_meta",
    "repair_runs",
]
