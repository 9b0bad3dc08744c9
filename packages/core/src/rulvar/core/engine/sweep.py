"""Which runs a worker should look at: judged from rows and tails, without acquiring.

Passed over: runs that somebody holds, runs outside the hash version window, suspended runs
that have not grown and whose ``wake_at`` lies ahead, and broken ones that were set aside and
have not changed since. A verdict here is only a hint: the segment reads everything again
under its lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal import HASH_WINDOW, last_settle, open_children, read_journal
from rulvar.core.records import TERMINAL_STATUSES, RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rulvar.core.clock import Clock
    from rulvar.core.engine.reads import Reads
    from rulvar.core.records import RunMeta

__all__ = ["Generation", "Sweeper", "generation"]

Generation = tuple[str | None, int | None, str, str]

_PAGE = 200
_DEEPEST = 64
_UNFINISHED = ("running", "suspended")


def generation(meta: RunMeta) -> Generation:
    """Return what changes whenever a run's row is written for a reason."""
    return (meta.genesis, meta.segments, meta.status, meta.updated_at)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a suspended run's journal said: the seq of its settle, the children it waits for."""

    generation: Generation
    settled: int
    children: tuple[str, ...]


@dataclass(slots=True)
class Sweeper:
    """Finds candidates, and remembers what it has seen of suspended and broken runs."""

    reads: Reads
    clock: Clock
    workflows: Collection[str]
    set_aside: dict[str, Generation] = field(default_factory=dict)
    _resting: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def candidates(self, busy: Collection[str], wanted: int) -> list[str]:
        """Return at most ``wanted`` run ids that are worth acquiring, and that ``busy`` lacks.

        Raises what the store raises. Runs in a thread: it reads.
        """
        held = self.reads.live_leases()
        found: list[str] = []
        for meta in self._rows():
            if meta.run_id in busy or meta.run_id in held:
                continue
            elder = self._elder(meta)
            if elder.run_id in busy or elder.run_id in held or elder.run_id in found:
                continue
            if self._rests(elder.run_id) or not self._may_take(elder) or not self._stirs(meta):
                continue
            found.append(elder.run_id)
            if len(found) >= wanted:
                break
        return found

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
        after: str | None = None
        while True:
            page = self.reads.list_runs(
                RunFilter(statuses=_UNFINISHED, limit=_PAGE, after_run_id=after)
            )
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].run_id

    def _may_take(self, meta: RunMeta) -> bool:
        aside = self.set_aside.get(meta.run_id)
        if aside is not None:
            if aside == generation(meta):
                return False
            del self.set_aside[meta.run_id]
        return meta.workflow_name in self.workflows and _in_window(meta)

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
            return True  # written by somebody else: the segment will see for itself

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
        if not entries or last is None:
            return True
        children = tuple(open_children(meta.run_id, entries))
        self._seen[meta.run_id] = _Seen(now, last.seq, children)
        return entries[-1].seq > last.seq or self._any_over(children)

    def _any_over(self, children: Collection[str]) -> bool:
        """Whether a child that its suspended parent waits for has ended, or is gone."""
        metas = (self.reads.meta(child_id) for child_id in children)
        return any(meta is None or meta.status in TERMINAL_STATUSES for meta in metas)


def _in_window(meta: RunMeta) -> bool:
    low, high = HASH_WINDOW
    versions = (meta.hash_version_low, meta.hash_version_high)
    return all(version is None or low <= version <= high for version in versions)
