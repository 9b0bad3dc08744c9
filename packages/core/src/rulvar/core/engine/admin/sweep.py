"""Which runs a worker should look at: judged from rows and tails, without acquiring.

Passed over: runs that are held, runs outside the hash version window, of workflows or
versions that this worker does not have, or that its code cannot replay (``blocked``), suspended
runs that have not grown and whose ``wake_at`` lies ahead, and broken ones that were set aside
and have not changed since. A verdict here is only a hint: the segment reads everything again
under its lease.

A sweep goes round the catalogue, page by page, until it has found enough; the next one goes on
where it has stopped, so that no run waits for others because of its id. Of what it has found,
those that have been due for longest come first, and runs that may be what kills their processes
(`SUSPECTED`) are for `choose` to leave for last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.engine.io.reads import holds
from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal import (
    HASH_WINDOW,
    SUSPECTED,
    last_settle,
    open_children,
    read_journal,
)
from rulvar.core.records import TERMINAL_STATUSES, RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from rulvar.core.clock import Clock
    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.io.reads import Reads
    from rulvar.core.records import LeaseInfo, RunMeta

__all__ = ["Candidate", "Generation", "Sweeper", "choose", "generation", "is_suspected"]

Generation = tuple[str | None, int | None, str, str]

_PAGE = 200
_ENOUGH = 200
"""So many candidates are plenty for one worker's slots; the next sweep sees the others."""

_DEEPEST = 64
_UNFINISHED = ("running", "suspended")
_PATIENCE_MS = 60_000
"""How long a suspected run waits for a worker that has others to do."""


def generation(meta: RunMeta) -> Generation:
    """Return what changes whenever a run's row is written for a reason."""
    return (meta.genesis, meta.segments, meta.status, meta.updated_at)


def is_suspected(meta: RunMeta) -> bool:
    """Whether a run has died so often in a row that it may be what its processes die of."""
    return (meta.recoveries or 0) >= SUSPECTED


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A run that is worth acquiring; ``due_since`` is in Unix milliseconds.

    ``lease`` is the dead one that its last holder did not give back.
    """

    run_id: str
    due_since: int
    suspected: bool
    lease: LeaseInfo | None


def choose(
    found: Sequence[Candidate], *, executing: int, free: int, now_ms: int
) -> list[Candidate]:
    """Return which of the candidates a worker takes now, at most ``free``. No I/O.

    A suspected run is taken last and alone: while the worker executes nothing else, and has
    nothing else to take. For one that has been due for a minute it stops taking others.
    """
    healthy = [each for each in found if not each.suspected]
    suspects = [each for each in found if each.suspected]
    overdue = bool(suspects) and now_ms - suspects[0].due_since >= _PATIENCE_MS
    if healthy and not overdue:
        return healthy[:free]
    return suspects[:1] if not executing else []


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a suspended run's journal said: the seq of its settle, the children it waits for."""

    generation: Generation
    settled: int
    children: tuple[str, ...]


@dataclass(slots=True)
class Sweeper:
    """Finds candidates, and remembers what it has seen of suspended and broken runs.

    ``code`` says what this process calls the code of a workflow; ``lease_ttl_ms`` is how long
    the store's leases live. What is remembered of a run
    is forgotten once a round of the catalogue has passed without it.
    """

    reads: Reads
    clock: Clock
    workflows: Mapping[str, Workflow]
    code: Callable[[Workflow], str]
    lease_ttl_ms: int = 0
    set_aside: dict[str, Generation] = field(default_factory=dict)
    _resting: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _after: str | None = None
    _round: set[str] = field(default_factory=set)

    def candidates(self, busy: Collection[str]) -> list[Candidate]:
        """Return runs that are worth acquiring and that ``busy`` lacks, the longest due first.

        Raises what the store raises. Runs in a thread: it reads.
        """
        leases = self.reads.lease_rows()
        held = {run_id for run_id, lease in leases.items() if holds(lease)}
        found: dict[str, Candidate] = {}
        for meta in self._rows():
            if meta.run_id in busy or meta.run_id in held:
                continue
            elder = self._elder(meta)
            if elder.run_id in busy or elder.run_id in held:
                continue
            if self._rests(elder.run_id) or not self._may_take(elder) or not self._stirs(meta):
                continue
            since = self._due_since(meta, leases.get(meta.run_id))
            suspected = is_suspected(meta) or is_suspected(elder)
            one = found.setdefault(
                elder.run_id,
                Candidate(
                    run_id=elder.run_id,
                    due_since=since,
                    suspected=suspected,
                    lease=leases.get(elder.run_id),
                ),
            )
            one.due_since = min(one.due_since, since)
            one.suspected = one.suspected or suspected
            if len(found) >= _ENOUGH:
                self._after = meta.run_id
                break
        return sorted(found.values(), key=lambda each: (each.due_since, each.run_id))

    def is_suspected(self, run_id: str) -> bool:
        """Whether a run's row says that it may be what kills its processes."""
        meta = self.reads.meta(run_id)
        return meta is not None and is_suspected(meta)

    def _elder(self, meta: RunMeta) -> RunMeta:
        """Return whose segment is to go on: the run's own, or that of its unfinished parent.

        A child is resumed by its parent; a worker adopts it only when that one is over.
        """
        for _ in range(_DEEPEST):
            parent = None if meta.parent_run_id is None else self.reads.meta(meta.parent_run_id)
            if parent is None or parent.status in TERMINAL_STATUSES:
                break
            meta = parent
        return meta

    def why_blocked(self, run_id: str) -> str | None:
        """Return why this code cannot continue a run, if its row says that. Reads."""
        meta = self.reads.meta(run_id)
        if meta is None or meta.blocked is None or not self._is_blocked(meta):
            return None
        return meta.blocked.reason

    def note_broken(self, run_id: str) -> None:
        """Set a run aside until its row changes. Raises what the store raises."""
        meta = self.reads.meta(run_id)
        if meta is not None:
            self.set_aside[run_id] = generation(meta)

    def rest(self, run_id: str, wait_ms: int) -> None:
        """Pass a run over for ``wait_ms`` milliseconds: what hindered it may pass by itself."""
        self._resting[run_id] = self.clock.monotonic_ms() + wait_ms

    def _rests(self, run_id: str) -> bool:
        until = self._resting.get(run_id)
        if until is None:
            return False
        if self.clock.monotonic_ms() < until:
            return True
        del self._resting[run_id]
        return False

    def _rows(self) -> Iterator[RunMeta]:
        """Yield unfinished rows once round the catalogue, from where the last sweep stopped."""
        began, after, wrapped = self._after, self._after, False
        self._after = None
        while True:
            page = self.reads.list_runs(
                RunFilter(statuses=_UNFINISHED, limit=_PAGE, after_run_id=after)
            )
            for meta in page:
                if wrapped and began is not None and _bytes(meta.run_id) > _bytes(began):
                    return
                self._round.add(meta.run_id)
                yield meta
            if len(page) == _PAGE:
                after = page[-1].run_id
                continue
            self._round_is_over()
            if wrapped or began is None:
                return
            after, wrapped = None, True

    def _round_is_over(self) -> None:
        """Forget what was noted of runs that are unfinished no more, or gone."""
        for known in (self.set_aside, self._resting, self._seen):
            for run_id in known.keys() - self._round:
                del known[run_id]
        self._round.clear()

    def _may_take(self, meta: RunMeta) -> bool:
        aside = self.set_aside.get(meta.run_id)
        if aside is not None:
            if aside == generation(meta):
                return False
            del self.set_aside[meta.run_id]
        workflow = self.workflows.get(meta.workflow_name or "")
        if workflow is None or not workflow.takes(meta.workflow_version):
            return False
        return _in_window(meta) and not self._is_blocked(meta)

    def _is_blocked(self, meta: RunMeta) -> bool:
        workflow = self.workflows.get(meta.workflow_name or "")
        if meta.blocked is None or workflow is None:
            return False
        return self.code(workflow) in meta.blocked.codes

    def _stirs(self, meta: RunMeta) -> bool:
        if meta.status == "running":
            return True
        return self._due(meta) or self._has_grown(meta)

    def _due(self, meta: RunMeta) -> bool:
        if meta.wake_at is None:
            return False
        try:
            return parse_time(meta.wake_at) <= self.clock.now_ms()
        except ValueError:
            return True  # written by another owner: the segment will see for itself

    def _due_since(self, meta: RunMeta, lease: LeaseInfo | None) -> int:
        """Return since when a run waits for a worker, in Unix milliseconds."""
        if meta.status == "suspended" and meta.wake_at is not None and self._due(meta):
            return _ms(meta.wake_at)
        since = _ms(meta.updated_at)
        if lease is not None:
            # Of a holder that is gone before its lease has run out, the last renewal is known.
            renewed_at = lease.expires_at - self.lease_ttl_ms
            since = max(since, renewed_at if lease.live else lease.expires_at)
        return since

    def _has_grown(self, meta: RunMeta) -> bool:
        """Whether anything came after the settle that suspended the run, or of a child."""
        now = generation(meta)
        seen = self._seen.get(meta.run_id)
        if seen is not None and seen.generation == now:
            return self.reads.grown(meta.run_id, seen.settled) or self._any_over(seen.children)
        try:
            entries = read_journal(meta.run_id, self.reads.load(meta.run_id))
        except StoreCorruptError:
            return True  # resuming reports it, and sets it aside
        last = last_settle(entries)
        if not entries or last is None or last.status in TERMINAL_STATUSES:
            return True  # one that is over, and its row does not say so: a resume mends the row
        children = tuple(open_children(meta.run_id, entries))
        self._seen[meta.run_id] = _Seen(now, last.seq, children)
        return entries[-1].seq > last.seq or self._any_over(children)

    def _any_over(self, children: Collection[str]) -> bool:
        """Whether a child that its suspended parent waits for has ended, or is gone."""
        metas = (self.reads.meta(child_id) for child_id in children)
        return any(meta is None or meta.status in TERMINAL_STATUSES for meta in metas)


def _bytes(run_id: str) -> bytes:
    return run_id.encode("utf-8", "surrogatepass")  # the order of a listing


def _ms(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError:
        return 0  # another writer's spelling


def _in_window(meta: RunMeta) -> bool:
    low, high = HASH_WINDOW
    versions = (meta.hash_version_low, meta.hash_version_high)
    return all(version is None or low <= version <= high for version in versions)
