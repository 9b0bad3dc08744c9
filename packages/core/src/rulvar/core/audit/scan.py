"""Reading a pair of stores for an audit: nothing is changed, and one run is in memory at a time.

A store's calls are transactions by themselves, so row, journal and lease may be of different
moments. A verdict against a run is only given when the row was the same before and after the
journal was read, and the run was not held in between: an owner appends its settle, writes the
row, then releases its lease, so an owner between two of these either still holds the run or
has changed the row.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rulvar.core.audit.findings import BlobFinding, Finding, RunAudit
from rulvar.core.audit.verdicts import Reading, judge
from rulvar.core.capabilities import (
    has_blob_info,
    has_lease_admin,
    has_meta_lookup,
    has_run_inventory,
)
from rulvar.core.checks import check_filter, check_run_id
from rulvar.core.clock import SystemClock
from rulvar.core.errors import (
    ConfigError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForkedError,
)
from rulvar.core.inventory import every_run_id
from rulvar.core.journal import HASH_WINDOW, hash_versions, referenced_blobs
from rulvar.core.records import RunFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.core.clock import Clock
    from rulvar.core.journal import JournalEntry
    from rulvar.core.protocols import JournalStore, TranscriptStore
    from rulvar.core.records import BlobStat, LeaseInfo, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["Progress", "audit_run", "audit_runs", "count_runs"]

_PAGE = 500
_MOST_READINGS = 5
_NOT_DIVERGENT = frozenset({"consistent", "owned", "damaged"})


class Progress(Protocol):
    """The progress callback, called after each run of a sweep."""

    def __call__(self, done: int, /) -> None:
        """Learn how many runs are done."""
        ...


def audit_run(stores: StorePair, run_id: str, *, clock: Clock | None = None) -> RunAudit:
    """Say whether a run's row is what its journal supports (contract.md#audit-and-repair).

    Reads only.

    ``clock`` tells how old an orphaned blob is (the system's by default). What cannot be read
    becomes the verdict ``damaged``. Raises `ConfigError` for an invalid run id, and what the
    store raises when it cannot answer at all: busy, closed, a disk that fails.
    """
    check_run_id(run_id)
    return _audit(stores, run_id, SystemClock() if clock is None else clock)


def audit_runs(
    stores: StorePair,
    *,
    run_ids: Iterable[str] | None = None,
    statuses: tuple[str, ...] | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Iterator[RunAudit]:
    """Audit every run of which the stores have any trace, one after another; reads only.

    Goes over the union of journals, rows, leases and blobs where the store tells its
    inventory, else over rows and leases, in pages. ``run_ids`` names the runs instead;
    ``statuses`` takes only runs whose row says one of these. One unreadable run is reported
    and hides no other. ``progress`` is called after each run.

    Raises `ConfigError` at once for wrong arguments, and while iterating what the store
    raises when it cannot answer at all.
    """
    check_filter(RunFilter(statuses=statuses))
    chosen = None if run_ids is None else [check_run_id(run_id) for run_id in run_ids]
    return _audits(stores, chosen, statuses, SystemClock() if clock is None else clock, progress)


def _audits(
    stores: StorePair,
    run_ids: list[str] | None,
    statuses: tuple[str, ...] | None,
    clock: Clock,
    progress: Progress | None,
) -> Iterator[RunAudit]:
    for done, run_id in enumerate(_chosen(stores.journal, run_ids, statuses), 1):
        yield _audit(stores, run_id, clock)
        if progress is not None:
            progress(done)


def count_runs(
    stores: StorePair,
    *,
    run_ids: Iterable[str] | None = None,
    statuses: tuple[str, ...] | None = None,
) -> int:
    """Return how many runs `audit_runs` would go over now, for a progress bar; reads ids only."""
    chosen = None if run_ids is None else list(run_ids)
    return sum(1 for _ in _chosen(stores.journal, chosen, statuses))


# --- which runs ---------------------------------------------------------------------------


def _chosen(
    journal: JournalStore, run_ids: list[str] | None, statuses: tuple[str, ...] | None
) -> Iterator[str]:
    if run_ids is not None:
        wanted = dict.fromkeys(run_ids)
        if statuses is None:
            yield from wanted
            return
        rows = ((run_id, _row(journal, run_id)[0]) for run_id in wanted)
        yield from (run_id for run_id, row in rows if row is not None and row.status in statuses)
    elif statuses is not None:
        yield from (row.run_id for row in _rows(journal, statuses))
    elif has_run_inventory(journal):
        yield from every_run_id(journal)
    else:
        last = None
        for run_id in heapq.merge((row.run_id for row in _rows(journal, None)), _leased(journal)):
            if run_id != last:
                yield run_id
            last = run_id


def _rows(journal: JournalStore, statuses: tuple[str, ...] | None) -> Iterator[RunMeta]:
    after: str | None = None
    while True:
        page = journal.list_runs(RunFilter(statuses=statuses, limit=_PAGE, after_run_id=after))
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].run_id


def _leased(journal: JournalStore) -> Iterator[str]:
    if not has_lease_admin(journal):
        return
    after: str | None = None
    while page := journal.list_leases(after, _PAGE):
        yield from (info.run_id for info in page)
        after = page[-1].run_id


# --- one run ------------------------------------------------------------------------------


def _audit(stores: StorePair, run_id: str, clock: Clock) -> RunAudit:
    try:
        check_run_id(run_id)
    except ConfigError as error:
        # The store itself has named it, and no call of any store would take it.
        return RunAudit(
            run_id=run_id,
            verdict="damaged",
            row=None,
            journal_status=None,
            entries=None,
            findings=(Finding(code="run-id", message=str(error)),),
        )
    audit, entries = _judged(stores.journal, run_id)
    if audit.verdict in {"owned", "damaged"} or entries is None:
        return audit
    return _with_blobs(stores.transcripts, audit, entries, clock)


def _judged(journal: JournalStore, run_id: str) -> tuple[RunAudit, list[JournalEntry] | None]:
    for _ in range(_MOST_READINGS):
        reading = _read(journal, run_id)
        audit, entries = judge(reading)
        if audit.verdict in _NOT_DIVERGENT:
            return audit, entries
        # The order matters: see the module's docstring.
        holder, _ = _holder(journal, run_id)
        row, problem = _row(journal, run_id)
        if holder is not None:
            return judge(replace(reading, holder=holder))
        if (row, problem) == (reading.row, reading.row_problem):
            return audit, entries
    # It changes faster than it can be read, so an owner is at work on it.
    return replace(audit, verdict="owned", change=None), entries


def _read(journal: JournalStore, run_id: str) -> Reading:
    holder, lease_problem = _holder(journal, run_id)
    row, row_problem = _row(journal, run_id)
    reading = Reading(
        run_id=run_id,
        row=row,
        records=(),
        holder=holder,
        row_problem=row_problem,
        lease_problem=lease_problem,
    )
    try:
        return replace(reading, records=journal.load(run_id))
    except StoreError as error:
        problem = Finding(
            code="journal-unreadable",
            message=_unreadable(error),
            position=error.position if isinstance(error, StoreCorruptError) else None,
        )
        return replace(reading, journal_problem=problem)


def _unreadable(error: StoreError) -> str:
    """Return what is wrong with one run, or raise what is wrong with the whole store."""
    if isinstance(error, StoreBusyError | StoreClosedError | StoreForkedError):
        raise error
    return str(error)


def _holder(journal: JournalStore, run_id: str) -> tuple[LeaseInfo | None, str | None]:
    """Return who holds the run, and why that is unknown, if it is."""
    if not has_lease_admin(journal):
        return None, None
    try:
        lease = journal.get_lease(run_id)
    except StoreError as error:
        return None, _unreadable(error)
    return (lease if lease is not None and lease.live else None), None


def _row(journal: JournalStore, run_id: str) -> tuple[RunMeta | None, str | None]:
    """Return the row, and why it cannot be read if it cannot."""
    if not has_meta_lookup(journal):
        return next((row for row in _rows(journal, None) if row.run_id == run_id), None), None
    try:
        return journal.get_meta(run_id), None
    except StoreError as error:
        return None, _unreadable(error)


# --- blobs --------------------------------------------------------------------------------


def _with_blobs(
    transcripts: TranscriptStore, audit: RunAudit, entries: list[JournalEntry], clock: Clock
) -> RunAudit:
    try:
        refs = transcripts.list_refs(audit.run_id)
    except StoreError as error:
        problem = Finding(code="blobs-unreadable", message=_unreadable(error))
        return replace(audit, verdict="damaged", change=None, findings=(*audit.findings, problem))
    low, high = HASH_WINDOW
    if not all(low <= version <= high for version in hash_versions(entries)):
        return audit  # another engine's journal refers to its blobs in its own way
    references = referenced_blobs(audit.run_id, entries)
    present = frozenset(refs)
    found = [
        BlobFinding(ref=named.ref, state="missing", what=named.what, required=named.required)
        for named in references.named.values()
        if named.needed and named.ref not in present  # the rest may have been pruned
    ]
    now_ms = clock.now_ms()
    found += [_orphan(transcripts, ref, now_ms) for ref in refs if not references.keeps(ref)]
    return replace(audit, blobs=tuple(found)) if found else audit


def _orphan(transcripts: TranscriptStore, ref: str, now_ms: int) -> BlobFinding:
    stat: BlobStat | None = None
    if has_blob_info(transcripts):
        try:
            stat = transcripts.blob_info(ref)
        except ConfigError:
            stat = None  # listed by the store, and no ref that any call would take
    stored_at = None if stat is None else stat.stored_at
    return BlobFinding(
        ref=ref,
        state="orphan",
        size_bytes=None if stat is None else stat.size_bytes,
        stored_at=stored_at,
        age_ms=None if stored_at is None else max(0, now_ms - stored_at),
    )
