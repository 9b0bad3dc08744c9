"""Repair: a row's status and time rewritten from the journal, and nothing else of it.

Only what is sound is repaired: ``meta-behind`` and ``stranded``. The verdict is reached again
under a brief lease, from what is read under it; only then is the row written, with every other
known field as it is and every unknown one in its own text. No workflow is needed and no step
executed. A run that a live owner holds is skipped and named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rulvar.core.audit.findings import REPAIRABLE, Repair
from rulvar.core.audit.scan import audit_run, audit_runs
from rulvar.core.audit.verdicts import Reading, judge
from rulvar.core.engine.repair import RowRewriter
from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    SupersededError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rulvar.core.audit.findings import RepairOutcome, RowChange, RunAudit
    from rulvar.core.audit.scan import Progress
    from rulvar.core.clock import Clock
    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.ids import IdSource
    from rulvar.core.records import JournalRecord, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["reconcile_run_meta", "repair_runs"]


def reconcile_run_meta(
    stores: StorePair,
    run_id: str,
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    lease_ttl: Duration | None = None,
) -> Repair:
    """Rewrite a run's row from its journal where that is sound; return what was done.

    With ``dry_run`` nothing is written and no lease is taken. ``lease_ttl`` (seconds or a
    `timedelta`) is for a leasable store that does not say how long its leases live.
    Executes no step and needs no workflow (contract.md#audit-and-repair).

    Raises `ConfigError` for an invalid run id or a pair that cannot be worked on, and what the
    store raises when it cannot answer.
    """
    before = audit_run(stores, run_id, clock=clock)
    if dry_run:
        return _unwritten(before)
    with RowRewriter(stores, clock=clock, ids=ids, lease_ttl=lease_ttl) as rewriter:
        return _repair(stores, rewriter, before, clock)


def repair_runs(
    stores: StorePair,
    *,
    run_ids: Iterable[str] | None = None,
    statuses: tuple[str, ...] | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    lease_ttl: Duration | None = None,
    progress: Progress | None = None,
) -> Iterator[Repair]:
    """Audit runs as `audit_runs` does, and repair each as `reconcile_run_meta` does.

    Yields one `Repair` for each run, those that need none too. A run that the store is too
    busy to repair is skipped and named, and so is one whose row another writer has made larger
    than it may be here; the others go on. Raises as `audit_runs` does.
    """
    audits = audit_runs(stores, run_ids=run_ids, statuses=statuses, clock=clock, progress=progress)
    return _repairs(stores, audits, dry_run=dry_run, clock=clock, ids=ids, lease_ttl=lease_ttl)


def _repairs(
    stores: StorePair,
    audits: Iterator[RunAudit],
    *,
    dry_run: bool,
    clock: Clock | None,
    ids: IdSource | None,
    lease_ttl: Duration | None,
) -> Iterator[Repair]:
    if dry_run:
        yield from map(_unwritten, audits)
        return
    with RowRewriter(stores, clock=clock, ids=ids, lease_ttl=lease_ttl) as rewriter:
        for before in audits:
            try:
                yield _repair(stores, rewriter, before, clock)
            except (StoreBusyError, OutcomeUnknownError) as error:
                yield _skipped(before, before, str(error))


def _unwritten(before: RunAudit) -> Repair:
    """Return what is known without writing: the plan."""
    if before.verdict in REPAIRABLE:
        return Repair(
            run_id=before.run_id,
            outcome="planned",
            before=before,
            after=before,
            change=before.change,
        )
    if before.verdict == "owned":
        return _skipped(before, before, _held(before))
    outcome: RepairOutcome = "unneeded" if before.verdict == "consistent" else "left"
    return Repair(run_id=before.run_id, outcome=outcome, before=before, after=before)


def _skipped(before: RunAudit, after: RunAudit, why: str) -> Repair:
    return Repair(run_id=before.run_id, outcome="skipped", before=before, after=after, why=why)


def _held(audit: RunAudit) -> str:
    holder = audit.holder
    if holder is None:
        return "it is held"
    return f"held by {holder.owner!r} under epoch {holder.epoch}"


@dataclass(slots=True)
class _Decision:
    """The verdict under the lease, and what came of it."""

    run_id: str
    change: RowChange | None = None

    def __call__(self, row: RunMeta | None, records: Sequence[JournalRecord]) -> RunMeta | None:
        audit, _ = judge(Reading(run_id=self.run_id, row=row, records=records))
        self.change = audit.change
        if row is None or audit.change is None:
            return None
        return replace(row, status=audit.change.status, updated_at=audit.change.updated_at)


def _repair(
    stores: StorePair, rewriter: RowRewriter, before: RunAudit, clock: Clock | None
) -> Repair:
    if before.verdict not in REPAIRABLE:
        return _unwritten(before)
    run_id = before.run_id
    decision = _Decision(run_id)
    try:
        epoch = rewriter.rewrite(run_id, decision)
    except (LeaseHeldError, SupersededError) as error:
        return _skipped(before, audit_run(stores, run_id, clock=clock), str(error))
    except ConfigError as error:
        # Another writer's limits are not ours: its row is read here, and not written.
        return _skipped(before, before, f"its row cannot be written here: {error}")
    except StoreCorruptError:
        # It has become unreadable since it was audited: the audit below says so.
        decision.change = None
        epoch = None
    after = audit_run(stores, run_id, clock=clock)
    if decision.change is None:
        return replace(_unwritten(after), before=before)
    return Repair(
        run_id=run_id,
        outcome="repaired",
        before=before,
        after=after,
        change=decision.change,
        epoch=epoch,
    )
