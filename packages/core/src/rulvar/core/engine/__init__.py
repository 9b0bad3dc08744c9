"""The engine: replays a body from its journal and performs what is new, under a lease.

CONTRIBUTING.md has the reading order, and follows one step from `ctx.step` to the commit.
"""

from __future__ import annotations

from rulvar.core.engine.admin.retention import PruneReport, RetentionPolicy, RetentionReport
from rulvar.core.engine.calls.context import Context
from rulvar.core.engine.calls.turns import Compaction, Continue, Done, Turns
from rulvar.core.engine.calls.worktree import WorktreeResult
from rulvar.core.engine.code.workflow import Workflow, workflow
from rulvar.core.engine.engine import Engine
from rulvar.core.engine.handle import RunHandle
from rulvar.core.engine.io.event_bus import Event, EventStream
from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.engine.kernel.outcome import Failure, RunOutcome, Suspension
from rulvar.core.engine.kernel.retry import RetryPolicy
from rulvar.core.engine.worker import Worker, WorkerReport, WorkerResult

__all__ = [
    "Compaction",
    "Context",
    "Continue",
    "Done",
    "Engine",
    "Event",
    "EventStream",
    "Failure",
    "PruneReport",
    "RetentionPolicy",
    "RetentionReport",
    "RetryPolicy",
    "RunHandle",
    "RunOutcome",
    "SegmentEnded",
    "Suspension",
    "Turns",
    "Worker",
    "WorkerReport",
    "WorkerResult",
    "Workflow",
    "WorktreeResult",
    "workflow",
]
