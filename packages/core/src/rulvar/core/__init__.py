"""Durable runs with fenced ownership: the front door of ``rulvar-core`` for applications.

    stores = open_stores("sqlite:///runs.db")      # or MemoryStores(), in a test
    assert_fenced_writes(stores)
    async with Engine(stores, [order]) as engine:  # `order` is a function under `@workflow`
        await engine.run(order, {"item": "lamp"}, run_id="order-1")

Authors of stores import from `rulvar.core.spi`, those who audit and repair from
`rulvar.core.audit`, tests from `rulvar.core.testing`, and `rulvar.core.otel` has the counters
and traces. Every name of `rulvar.core.errors` is public too. docs/contract.md is what is promised.

The engine and the plugin machinery are imported at their first use, so that a store or a
start-up check that needs neither pays for neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import (
    AlreadyAnsweredError,
    ConfigError,
    InvalidResolutionError,
    JournalCompatibilityError,
    LeaseHeldError,
    NonDeterminismError,
    NotAskedError,
    RulvarError,
    RunCancelledError,
    RunError,
    RunFailedError,
    SettlementError,
    StepFailedError,
    StoreBusyError,
    StoreError,
    SupersededError,
)
from rulvar.core.fencing import (
    FencingReport,
    assert_fenced_writes,
    assertFencedWrites,
    has_fenced_writes,
    hasFencedWrites,
    probe_fencing,
)
from rulvar.core.memory import MemoryStores
from rulvar.core.records import Lease
from rulvar.core.stores import FencedStores, StorePair, Stores

if TYPE_CHECKING:
    from rulvar.core.engine import (
        Compaction,
        Context,
        Continue,
        Done,
        Engine,
        Event,
        EventStream,
        Failure,
        PruneReport,
        RetentionPolicy,
        RetentionReport,
        RetryPolicy,
        RunHandle,
        RunOutcome,
        SegmentEnded,
        Suspension,
        Turns,
        Worker,
        WorkerReport,
        WorkerResult,
        WorktreeResult,
    )
    from rulvar.core.engine.code.workflow import Workflow, workflow
    from rulvar.core.plugins import open_stores
else:
    # Name to module, imported at first use. Hidden from type checkers: a visible module
    # __getattr__ would make every misspelt name an object instead of an error.
    _LAZY = {
        "Compaction": "rulvar.core.engine",
        "Context": "rulvar.core.engine",
        "Continue": "rulvar.core.engine",
        "Done": "rulvar.core.engine",
        "Engine": "rulvar.core.engine",
        "Event": "rulvar.core.engine",
        "EventStream": "rulvar.core.engine",
        "Failure": "rulvar.core.engine",
        "PruneReport": "rulvar.core.engine",
        "RetentionPolicy": "rulvar.core.engine",
        "RetentionReport": "rulvar.core.engine",
        "RetryPolicy": "rulvar.core.engine",
        "RunHandle": "rulvar.core.engine",
        "RunOutcome": "rulvar.core.engine",
        "SegmentEnded": "rulvar.core.engine",
        "Suspension": "rulvar.core.engine",
        "Turns": "rulvar.core.engine",
        "Worker": "rulvar.core.engine",
        "WorkerReport": "rulvar.core.engine",
        "WorkerResult": "rulvar.core.engine",
        "WorktreeResult": "rulvar.core.engine",
        "Workflow": "rulvar.core.engine.code.workflow",
        "workflow": "rulvar.core.engine.code.workflow",
        "open_stores": "rulvar.core.plugins",
    }

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            from importlib import import_module  # noqa: PLC0415 - only for these

            found = globals()[name] = getattr(import_module(_LAZY[name]), name)
            return found
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})


__all__ = [
    "AlreadyAnsweredError",
    "Compaction",
    "ConfigError",
    "Context",
    "Continue",
    "Done",
    "Engine",
    "Event",
    "EventStream",
    "Failure",
    "FencedStores",
    "FencingReport",
    "InvalidResolutionError",
    "JournalCompatibilityError",
    "Lease",
    "LeaseHeldError",
    "MemoryStores",
    "NonDeterminismError",
    "NotAskedError",
    "PruneReport",
    "RetentionPolicy",
    "RetentionReport",
    "RetryPolicy",
    "RulvarError",
    "RunCancelledError",
    "RunError",
    "RunFailedError",
    "RunHandle",
    "RunOutcome",
    "SegmentEnded",
    "SettlementError",
    "StepFailedError",
    "StoreBusyError",
    "StoreError",
    "StorePair",
    "Stores",
    "SupersededError",
    "Suspension",
    "Turns",
    "Worker",
    "WorkerReport",
    "WorkerResult",
    "Workflow",
    "WorktreeResult",
    "assertFencedWrites",
    "assert_fenced_writes",
    "hasFencedWrites",
    "has_fenced_writes",
    "open_stores",
    "probe_fencing",
    "workflow",
]
