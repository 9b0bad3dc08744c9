"""Retention: pruning a run's blobs, deleting old runs.

Both act under a lease, and every verdict is taken from what is read under that lease: a run
that was deleted, recreated and is at work again is not touched, whatever the listing said.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.checks import MAX_INTEGER, check_integer
from rulvar.core.engine.admin.callers import confirmed
from rulvar.core.engine.admin.run_admin import check_no_live_child, with_short_lease
from rulvar.core.engine.kernel.durations import milliseconds_of, seconds_of
from rulvar.core.engine.segment.begin import RunState, read_run
from rulvar.core.errors import (
    ConfigError,
    JournalCompatibilityError,
    LeaseHeldError,
    RulvarError,
    StoreCorruptError,
    SupersededError,
)
from rulvar.core.journal import (
    check_window,
    last_settle,
    read_journal,
    referenced_blobs,
    run_start,
)
from rulvar.core.records import TERMINAL_STATUSES, RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta

__all__ = [
    "PruneReport",
    "RetentionPolicy",
    "RetentionReport",
    "apply_retention",
    "prune",
    "prune_inside",
]

_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """Which blobs of a run were deleted, by their exact refs."""

    run_id: str
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which runs are deleted: terminal ones of these statuses, this long after their settle.

    ``older_than`` is the age since the settle, in seconds or a `timedelta`; ``keep_last`` spares
    that many of the newest matching runs of each workflow whatever their age. Raises `ConfigError`
    for a status that is not terminal or a negative number.
    """

    older_than: Duration
    statuses: tuple[str, ...] = ("ok", "cancelled")
    keep_last: int = 0

    def __post_init__(self) -> None:
        seconds_of("older_than", self.older_than)
        check_integer("keep_last", self.keep_last, 0, MAX_INTEGER)
        odd = [status for status in self.statuses if status not in TERMINAL_STATUSES]
        if odd or not self.statuses:
            known = ", ".join(sorted(TERMINAL_STATUSES))
            message = f"retention takes terminal statuses ({known}), not {self.statuses!r}"
            raise ConfigError(message)


@dataclass(slots=True, kw_only=True)
class RetentionReport:
    """What a pass of retention did, or with ``dry_run`` would do.

    ``matched`` counts the runs that the listing offered, ``deleted`` names those that went,
    ``kept`` those that were younger, other or busy when they were looked at, with the reason;
    ``failed`` those that the store did not let go, with its error: the next pass tries again.
    """

    dry_run: bool
    matched: int = 0
    deleted: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def prune(runtime: Runtime, writer: RunWriter) -> PruneReport:
    """Delete the checkpoints and summaries that completed calls no longer need.

    Raises `JournalCompatibilityError` for a journal of another generation, whose refs this
    one does not know, and `ConfigError` for a run that never began.
    """
    state = read_run(writer)
    if state.start is None:
        message = f"run {writer.run_id!r} is not in this store, or never began"
        raise ConfigError(message)
    return _prune(runtime, writer, state.entries)


def prune_inside(runtime: Runtime, writer: RunWriter) -> PruneReport:
    """Prune a run from the inside, through the writer of its segment. Raises as `prune`.

    What is read may be a moment old: a call that has begun since needs nothing of what was
    complete by then.
    """
    records = runtime.reads.load(writer.run_id)
    return _prune(runtime, writer, read_journal(writer.run_id, records))


def _prune(runtime: Runtime, writer: RunWriter, entries: Sequence[JournalEntry]) -> PruneReport:
    references = referenced_blobs(writer.run_id, entries)
    deleted = references.prunable(runtime.reads.refs(writer.run_id))
    for ref in deleted:
        writer.delete_blob(ref)
    return PruneReport(run_id=writer.run_id, deleted=tuple(deleted))


def apply_retention(runtime: Runtime, policy: RetentionPolicy, *, dry_run: bool) -> RetentionReport:
    """Delete what the policy no longer keeps; runs in a thread. Raises what a listing raises.

    Each run is judged before a lease of it is taken, as a dry run judges it: one that would be
    kept anyway is not touched. What is read under the lease decides.
    """
    report = RetentionReport(dry_run=dry_run)
    newest = _newest(runtime, policy)
    for meta in _offered(runtime, policy):
        if not _old(runtime, policy, meta) or newest.spare(meta):
            continue
        report.matched += 1
        run_id = meta.run_id
        try:
            reason = _why_kept(runtime, policy, newest, _look(runtime, run_id))
            if reason is None:
                _refuse_held(runtime, run_id)
                if not dry_run:
                    act = partial(_delete_if_old, policy=policy, newest=newest)
                    reason = with_short_lease(
                        runtime, confirmed(runtime, partial(runtime.own, run_id)), act
                    )
        except (LeaseHeldError, SupersededError) as error:
            reason = str(error)
        except (ConfigError, JournalCompatibilityError, StoreCorruptError) as error:
            reason = f"{type(error).__name__}: {error}"
        except RulvarError as error:
            report.failed[run_id] = f"{type(error).__name__}: {error}"
            continue
        if reason is None:
            report.deleted.append(run_id)
        else:
            report.kept[run_id] = reason
    return report


def _look(runtime: Runtime, run_id: str) -> RunState:
    """Read a run without holding it. Raises as `read_run`."""
    meta, records = runtime.reads.meta(run_id), runtime.reads.load(run_id)
    entries = read_journal(run_id, records)
    check_window(run_id, entries)
    start, last = run_start(entries), last_settle(entries)
    return RunState(meta=meta, records=records, entries=entries, start=start, last=last)


def _refuse_held(runtime: Runtime, run_id: str) -> None:
    holder = runtime.reads.holder(run_id)
    if holder is not None:
        raise LeaseHeldError(
            run_id=run_id,
            reason="held",
            holder=holder.owner,
            epoch=holder.epoch,
            expires_at=holder.expires_at,
        )


def _why_kept(
    runtime: Runtime, policy: RetentionPolicy, newest: _Newest, state: RunState
) -> str | None:
    """Return why a run is kept, if it is. Raises `LeaseHeldError` for a child that is held."""
    meta = state.meta
    if meta is None or meta.status not in policy.statuses:
        return "it is at work again, or gone"
    if state.outcome is None or state.outcome.status != meta.status:
        return "its row and its journal differ: audit it"
    if not _old(runtime, policy, meta) or newest.spare(meta):
        return "it was settled again since"
    if _parent_at_work(runtime, meta):
        return f"its parent {meta.parent_run_id!r} is at work, and may need its outcome"
    check_no_live_child(runtime, meta.run_id, state.records)
    return None


def _delete_if_old(
    runtime: Runtime,
    writer: RunWriter,
    *,
    policy: RetentionPolicy,
    newest: _Newest,
) -> str | None:
    """Judge the run from what is read under the lease; return why it is kept, if it is."""
    reason = _why_kept(runtime, policy, newest, read_run(writer))
    if reason is None:
        writer.delete_run()
    return reason


def _parent_at_work(runtime: Runtime, meta: RunMeta) -> bool:
    parent = None if meta.parent_run_id is None else runtime.reads.meta(meta.parent_run_id)
    return parent is not None and parent.status not in TERMINAL_STATUSES


def _offered(runtime: Runtime, policy: RetentionPolicy) -> Iterator[RunMeta]:
    after: str | None = None
    while True:
        page = runtime.reads.list_runs(
            RunFilter(statuses=policy.statuses, limit=_PAGE, after_run_id=after)
        )
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].run_id


class _Newest:
    """The newest matching runs of each workflow, at most ``keep`` of each.

    A run is spared unless ``keep`` newer ones were seen: one that settled while the listing
    went on is newer than those.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._heaps: dict[str | None, list[tuple[int, str]]] = {}

    def saw(self, meta: RunMeta) -> None:
        """Count a run that matches."""
        settled = _settled_ms(meta)
        if settled is None:
            return
        heap = self._heaps.setdefault(meta.workflow_name, [])
        heapq.heappush(heap, (settled, meta.run_id))
        if len(heap) > self._keep:
            heapq.heappop(heap)

    def spare(self, meta: RunMeta) -> bool:
        """Whether the run is one of the newest."""
        if self._keep == 0:
            return False
        heap = self._heaps.get(meta.workflow_name, [])
        settled = _settled_ms(meta)
        full = len(heap) >= self._keep
        return settled is None or not full or (settled, meta.run_id) >= heap[0]


def _newest(runtime: Runtime, policy: RetentionPolicy) -> _Newest:
    """Return the runs that ``keep_last`` spares; memory is bounded by their number."""
    newest = _Newest(policy.keep_last)
    if policy.keep_last:
        for meta in _offered(runtime, policy):
            newest.saw(meta)
    return newest


def _old(runtime: Runtime, policy: RetentionPolicy, meta: RunMeta) -> bool:
    settled = _settled_ms(meta)
    return settled is not None and runtime.clock.now_ms() - settled >= milliseconds_of(
        "older_than", policy.older_than
    )


def _settled_ms(meta: RunMeta) -> int | None:
    try:
        return parse_time(meta.updated_at)
    except ValueError:
        return None  # another writer's spelling: nobody can say how old it is
