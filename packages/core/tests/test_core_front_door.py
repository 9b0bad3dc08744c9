"""The front doors: what each lists is frozen, and costs nothing that was not asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rulvar.core

HEAVY = ("pluggy", "importlib_metadata", "rfc8785", "tenacity", "asyncio", "rulvar.core.engine")

IMPORT_ALONE = f"""
import sys
import rulvar.core
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
from rulvar.core.urls import StoreURL
StoreURL.parse("sqlite:///x")
rulvar.core.assert_fenced_writes
assert "pluggy" not in sys.modules
from rulvar.core.hookspecs import hookimpl
assert "pluggy" in sys.modules
assert "importlib_metadata" not in sys.modules
"""


DOORS = {
    "rulvar.core": """
        AlreadyAnsweredError Compaction ConfigError Context Continue Done Engine Event
        EventStream Failure FencedStores FencingReport InvalidResolutionError
        JournalCompatibilityError Lease LeaseHeldError MemoryStores NonDeterminismError
        NotAskedError PruneReport RetentionPolicy RetentionReport RetryPolicy RulvarError
        RunCancelledError RunError RunFailedError RunHandle RunOutcome SegmentEnded
        SettlementError StepFailedError StoreBusyError StoreError StorePair Stores
        SupersededError Suspension Turns Worker WorkerReport WorkerResult Workflow
        WorktreeResult assertFencedWrites assert_fenced_writes hasFencedWrites
        has_fenced_writes open_stores probe_fencing workflow
    """,
    "rulvar.core.spi": """
        BlobInfo BlobStat Blocked Clock Closable ConfigError EpochFloor FencedJournalStore
        FencedStores FencedTranscriptStore InvalidJSONError JournalOrderViolation
        JournalRecord JournalStore JournalTail JsonMembers LeasableStore Lease LeaseAdmin
        LeaseBatch LeaseHeldError LeaseInfo LeaseRevival LeaseState MAX_INTEGER MetaLookup
        OutcomeUnknownError RefusalReason RunFilter RunInventory RunMeta StoreBusyError
        StoreClosedError StoreCorruptError StoreError StoreForkedError StoreFullError
        StoreInUseError StoreLife StoreOptions StorePair StoreURL Stores SystemClock
        TranscriptStore WholeRunDelete busy_timeout_ms_of check_after_seq check_blob
        check_epoch check_filter check_lease check_limit check_meta check_owner check_record
        check_ref check_run_id check_seq check_ttl_ms declares_fenced_writes decode_meta
        encode_meta fencing_domain_of has_blob_info has_close has_epoch_floor
        has_fenced_journal has_fenced_transcripts has_journal_tail has_lease_admin
        has_lease_batch has_lease_revival has_leases has_meta_lookup has_run_inventory
        has_whole_run_delete hookimpl lease_status lease_ttl_ms_of matches refusal
        refuse_foreign run_of_ref
    """,
    "rulvar.core.audit": """
        BlobFinding Finding REPAIRABLE Repair RowChange RunAudit VERDICTS Verdict audit_run
        audit_runs count_runs reconcile_run_meta repair_runs
    """,
    "rulvar.core.testing": """
        ManualClock ReferenceStore ReferenceTranscripts SeededIds StoreCall StoreSnapshot
        WatchedStores reference_stores
    """,
    "rulvar.core.otel": """
        OpenTelemetryObserver
    """,
}
"""Every name of each front door. A change here is a change of what users may rely on."""


@pytest.mark.slow
def test_an_import_brings_neither_plugins_nor_the_engine() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALONE], timeout=60, check=True)


@pytest.mark.parametrize("door", DOORS)
def test_a_front_door_has_exactly_its_names(door: str) -> None:
    module = import_module(door)
    assert sorted(module.__all__) == DOORS[door].split()
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_lazy_names_are_those_that_a_type_checker_sees() -> None:
    tree = ast.parse(Path(rulvar.core.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rulvar.core._LAZY  # type: ignore[attr-defined] # hidden from type checkers
    assert set(seen) <= set(rulvar.core.__all__)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enginee'"):
        rulvar.core.Enginee  # type: ignore[attr-defined] # noqa: B018
