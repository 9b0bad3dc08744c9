"""Durable runs with fenced ownership: the front door of ``rulvar-core``.

Reading order for a newcomer:

1. `rulvar.core.records`: the values that cross the store contract;
2. `rulvar.core.spi`: what a store promises, method by method;
3. `rulvar.core.testing.reference`: the whole contract in the simplest code;
4. `rulvar.core.engine`: how a run survives its worker;
5. any store.

What applications use comes first: `open_stores`, `assert_fenced_writes`, `workflow`,
`Engine`, `Worker`. Store authors need the protocols, `check_record` and its kin,
`hookimpl` and `StoreURL`. Everything here is public; a name with a leading underscore, here
or in a module's name, is not.

The engine and the plugin machinery are imported at their first use, so that a store or a
start-up check that needs neither pays for neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.capabilities import (
    busy_timeout_ms_of,
    declares_fenced_writes,
    fencing_domain_of,
    has_blob_info,
    has_close,
    has_epoch_floor,
    has_fenced_journal,
    has_fenced_transcripts,
    has_journal_tail,
    has_lease_admin,
    has_lease_revival,
    has_leases,
    has_meta_lookup,
    has_run_inventory,
    has_whole_run_delete,
    lease_ttl_ms_of,
)
from rulvar.core.checks import (
    check_after_seq,
    check_blob,
    check_epoch,
    check_filter,
    check_lease,
    check_limit,
    check_meta,
    check_owner,
    check_record,
    check_ref,
    check_run_id,
    check_seq,
    check_ttl_ms,
    run_of_ref,
)
from rulvar.core.clock import Clock, SystemClock
from rulvar.core.errors import (
    ConfigError,
    InvalidResolutionError,
    JournalCompatibilityError,
    JournalOrderViolation,
    LeaseHeldError,
    NonDeterminismError,
    OutcomeUnknownError,
    PluginError,
    RefusalReason,
    RulvarError,
    RunCancelledError,
    RunError,
    RunFailedError,
    SettlementError,
    StepFailedError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForkedError,
    StoreFullError,
    StoreInUseError,
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
from rulvar.core.filters import matches
from rulvar.core.ids import IdSource, SystemIds
from rulvar.core.memory import (
    EphemeralStoreWarning,
    MemoryJournalStore,
    MemoryStores,
    MemoryTranscriptStore,
)
from rulvar.core.records import (
    RUN_STATUSES,
    TERMINAL_STATUSES,
    BlobStat,
    JournalRecord,
    JsonMembers,
    Lease,
    LeaseInfo,
    RunFilter,
    RunMeta,
    RunStatus,
)
from rulvar.core.spi import (
    BlobInfo,
    Closable,
    EpochFloor,
    FencedJournalStore,
    FencedTranscriptStore,
    JournalStore,
    JournalTail,
    LeasableStore,
    LeaseAdmin,
    LeaseRevival,
    MetaLookup,
    RunInventory,
    TranscriptStore,
    WholeRunDelete,
)
from rulvar.core.stores import FencedStores, StorePair, Stores
from rulvar.core.urls import StoreOptions, StoreURL
from rulvar.core.wire import format_time, parse_time

if TYPE_CHECKING:
    from rulvar.core.audit import (
        BlobFinding,
        Finding,
        Repair,
        RowChange,
        RunAudit,
        Verdict,
        audit_run,
        audit_runs,
        count_runs,
        reconcile_run_meta,
        repair_runs,
    )
    from rulvar.core.engine import (
        Compaction,
        Context,
        Done,
        Engine,
        Event,
        EventStream,
        Failure,
        GoOn,
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
    from rulvar.core.engine.workflow import Workflow, workflow
    from rulvar.core.hookspecs import hookimpl
    from rulvar.core.plugins import installed_stores, open_stores
else:
    # Name to module, imported at first use. Hidden from type checkers: a visible module
    # __getattr__ would make every misspelt name an object instead of an error.
    _LAZY = {
        "BlobFinding": "rulvar.core.audit",
        "Finding": "rulvar.core.audit",
        "Repair": "rulvar.core.audit",
        "RowChange": "rulvar.core.audit",
        "RunAudit": "rulvar.core.audit",
        "Verdict": "rulvar.core.audit",
        "audit_run": "rulvar.core.audit",
        "audit_runs": "rulvar.core.audit",
        "count_runs": "rulvar.core.audit",
        "reconcile_run_meta": "rulvar.core.audit",
        "repair_runs": "rulvar.core.audit",
        "Context": "rulvar.core.engine",
        "Engine": "rulvar.core.engine",
        "Event": "rulvar.core.engine",
        "Failure": "rulvar.core.engine",
        "RetryPolicy": "rulvar.core.engine",
        "RunHandle": "rulvar.core.engine",
        "RunOutcome": "rulvar.core.engine",
        "SegmentEnded": "rulvar.core.engine",
        "Suspension": "rulvar.core.engine",
        "Compaction": "rulvar.core.engine",
        "Done": "rulvar.core.engine",
        "EventStream": "rulvar.core.engine",
        "GoOn": "rulvar.core.engine",
        "Turns": "rulvar.core.engine",
        "WorktreeResult": "rulvar.core.engine",
        "Worker": "rulvar.core.engine",
        "WorkerReport": "rulvar.core.engine",
        "WorkerResult": "rulvar.core.engine",
        "Workflow": "rulvar.core.engine.workflow",
        "workflow": "rulvar.core.engine.workflow",
        "hookimpl": "rulvar.core.hookspecs",
        "installed_stores": "rulvar.core.plugins",
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
    "RUN_STATUSES",
    "TERMINAL_STATUSES",
    "BlobFinding",
    "BlobInfo",
    "BlobStat",
    "Clock",
    "Closable",
    "Compaction",
    "ConfigError",
    "Context",
    "Done",
    "Engine",
    "EphemeralStoreWarning",
    "EpochFloor",
    "Event",
    "EventStream",
    "Failure",
    "FencedJournalStore",
    "FencedStores",
    "FencedTranscriptStore",
    "FencingReport",
    "Finding",
    "GoOn",
    "IdSource",
    "InvalidResolutionError",
    "JournalCompatibilityError",
    "JournalOrderViolation",
    "JournalRecord",
    "JournalStore",
    "JournalTail",
    "JsonMembers",
    "LeasableStore",
    "Lease",
    "LeaseAdmin",
    "LeaseHeldError",
    "LeaseInfo",
    "LeaseRevival",
    "MemoryJournalStore",
    "MemoryStores",
    "MemoryTranscriptStore",
    "MetaLookup",
    "NonDeterminismError",
    "OutcomeUnknownError",
    "PluginError",
    "RefusalReason",
    "Repair",
    "RetryPolicy",
    "RowChange",
    "RulvarError",
    "RunAudit",
    "RunCancelledError",
    "RunError",
    "RunFailedError",
    "RunFilter",
    "RunHandle",
    "RunInventory",
    "RunMeta",
    "RunOutcome",
    "RunStatus",
    "SegmentEnded",
    "SettlementError",
    "StepFailedError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreForkedError",
    "StoreFullError",
    "StoreInUseError",
    "StoreOptions",
    "StorePair",
    "StoreURL",
    "Stores",
    "SupersededError",
    "Suspension",
    "SystemClock",
    "SystemIds",
    "TranscriptStore",
    "Turns",
    "Verdict",
    "WholeRunDelete",
    "Worker",
    "WorkerReport",
    "WorkerResult",
    "Workflow",
    "WorktreeResult",
    "assertFencedWrites",
    "assert_fenced_writes",
    "audit_run",
    "audit_runs",
    "busy_timeout_ms_of",
    "check_after_seq",
    "check_blob",
    "check_epoch",
    "check_filter",
    "check_lease",
    "check_limit",
    "check_meta",
    "check_owner",
    "check_record",
    "check_ref",
    "check_run_id",
    "check_seq",
    "check_ttl_ms",
    "count_runs",
    "declares_fenced_writes",
    "fencing_domain_of",
    "format_time",
    "hasFencedWrites",
    "has_blob_info",
    "has_close",
    "has_epoch_floor",
    "has_fenced_journal",
    "has_fenced_transcripts",
    "has_fenced_writes",
    "has_journal_tail",
    "has_lease_admin",
    "has_lease_revival",
    "has_leases",
    "has_meta_lookup",
    "has_run_inventory",
    "has_whole_run_delete",
    "hookimpl",
    "installed_stores",
    "lease_ttl_ms_of",
    "matches",
    "open_stores",
    "parse_time",
    "probe_fencing",
    "reconcile_run_meta",
    "repair_runs",
    "run_of_ref",
    "workflow",
]
