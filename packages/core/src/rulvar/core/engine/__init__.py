"""The engine: replays a body from its journal and performs what is new, under a lease.

CONTRIBUTING.md has the reading order, and follows one step from `ctx.step` to the commit.
"""

from __future__ import annotations

from rulvar.core.engine.context import Context
from rulvar.core.engine.control import SegmentEnded
from rulvar.core.engine.engine import Engine
from rulvar.core.engine.events import Event, EventStream
from rulvar.core.engine.handle import RunHandle
from rulvar.core.engine.outcome import Failure, RunOutcome, Suspension
from rulvar.core.engine.retention import PruneReport, RetentionPolicy, RetentionReport
from rulvar.core.engine.retry import RetryPolicy
from rulvar.core.engine.turns import Compaction, Done, GoOn, Turns
from rulvar.core.engine.worker import Worker, WorkerReport, WorkerResult
from rulvar.core.engine.workflow import Workflow, workflow
from rulvar.core.engine.worktree import WorktreeResult

__all__ = [
    "Compaction",
    "Context",
    "Done",
    "Engine",
    "Event",
    "EventStream",
    "Failure",
    "GoOn",
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
