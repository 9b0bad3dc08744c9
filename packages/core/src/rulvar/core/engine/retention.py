"""Taking away what is no longer wanted: pruning a run's blobs, deleting old runs.

Both act under a lease, and every verdict is taken from what is read under that lease: a run
that was deleted, recreated and is at work again is not touched, whatever the listing said.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.checks import MAX_INTEGER, check_integer
from rulvar.core.engine.boot import read_run
from rulvar.core.engine.control_calls import briefly, check_no_live_child
from rulvar.core.engine.ownership import OwnedRun
from rulvar.core.errors import ConfigError, LeaseHeldError, RulvarError
from rulvar.core.journal import referenced_blobs
from rulvar.core.records import TERMINAL_STATUSES, RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.engine.door import Door
    from rulvar.core.engine.ownership import Ownership
    from rulvar.core.engine.parts import Parts
    from rulvar.core.records import RunMeta

__all__ = ["PruneReport", "RetentionPolicy", "RetentionReport", "apply_retention", "prune"]

_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """Which blobs of a run were deleted, by their exact refs."""

    run_id: str
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which runs are deleted: terminal ones of these statuses, this long after their settle.

    ``older_than_ms`` is the age since the settle, in milliseconds; ``keep_last`` spares that
    many of the newest matching runs of each workflow whatever their age. Raises `ConfigError`
    for a status that is not terminal or a negative number.
    """

    older_than_ms: int
    statuses: tuple[str, ...] = ("ok", "cancelled")
    keep_last: int = 0

    def __post_init__(self) -> None:
        check_integer("older_than_ms", self.older_than_ms, 0, MAX_INTEGER)
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
    ``kept`` those that were younger, other or busy when they were looked at under the lease,
    with the reason.
    """

    dry_run: bool
    matched: int = 0
    deleted: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def prune(parts: Parts, door: Door, ownership: Ownership) -> PruneReport:
    """Delete the checkpoints and summaries that completed calls no longer need.

    Raises `JournalCompatibilityError` for a journal of another generation, whose refs this
    one does not know, and `ConfigError` for a run that never began.
    """
    if isinstance(ownership, OwnedRun):
        ownership.verify = door.verify
    state = read_run(parts, door)
    if state.start is None:
        message = f"run {door.run_id!r} is not in this store, or never began"
        raise ConfigError(message)
    there = set(parts.reads.refs(door.run_id))
    deleted: list[str] = []
    for ref in referenced_blobs(door.run_id, state.entries).prunable():
        if ref in there:
            door.delete_blob(ref)
            deleted.append(ref)
    return PruneReport(run_id=door.run_id, deleted=tuple(deleted))


def apply_retention(parts: Parts, policy: RetentionPolicy, *, dry_run: bool) -> RetentionReport:
    """Delete what the policy no longer keeps; runs in a thread. Raises what a listing raises."""
    report = RetentionReport(dry_run=dry_run)
    spared = _newest(parts, policy)
    for meta in _offered(parts, policy):
        if meta.run_id in spared or not _old(parts, policy, meta):
            continue
        report.matched += 1
        if dry_run:
            report.deleted.append(meta.run_id)
            continue
        try:
            reason = briefly(
                parts, partial(parts.own, meta.run_id), partial(_delete_if_old, policy=policy)
            )
        except LeaseHeldError as error:
            reason = f"held by {error.holder!r}"
        except RulvarError as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            report.deleted.append(meta.run_id)
        else:
            report.kept[meta.run_id] = reason
    return report


def _delete_if_old(
    parts: Parts, door: Door, ownership: Ownership, *, policy: RetentionPolicy
) -> str | None:
    """Judge the run from what is read under the lease; return why it is kept, if it is."""
    if isinstance(ownership, OwnedRun):
        ownership.verify = door.verify
    state = read_run(parts, door)
    meta = state.meta
    if meta is None or meta.status not in policy.statuses:
        return "it is at work again, or gone"
    if state.outcome is None or state.outcome.status != meta.status:
        return "its row and its journal differ: audit it"
    if not _old(parts, policy, meta):
        return "it was settled again since"
    check_no_live_child(parts, door.run_id)
    door.delete_run()
    return None


def _offered(parts: Parts, policy: RetentionPolicy) -> Iterator[RunMeta]:
    after: str | None = None
    while True:
        page = parts.reads.list_runs(
            RunFilter(statuses=policy.statuses, limit=_PAGE, after_run_id=after)
        )
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].run_id


def _newest(parts: Parts, policy: RetentionPolicy) -> set[str]:
    """Return the runs that ``keep_last`` spares; memory is bounded by their number."""
    if policy.keep_last == 0:
        return set()
    heaps: dict[str | None, list[tuple[str, str]]] = {}
    for meta in _offered(parts, policy):
        heap = heaps.setdefault(meta.workflow_name, [])
        heapq.heappush(heap, (meta.updated_at, meta.run_id))
        if len(heap) > policy.keep_last:
            heapq.heappop(heap)
    return {run_id for heap in heaps.values() for _, run_id in heap}


def _old(parts: Parts, policy: RetentionPolicy, meta: RunMeta) -> bool:
    try:
        settled = parse_time(meta.updated_at)
    except ValueError:
        return False  # nobody can say how old it is
    return parts.clock.now_ms() - settled >= policy.older_than_ms
