"""What has happened so far, read from the reports while they are being written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.soak.history import FORKED, GRANTS, Attempt, Returned, Seen

if TYPE_CHECKING:
    from rulvar.conformance.soak.history import AttemptId, Event
    from rulvar.core.records import Lease

__all__ = ["Progress"]

_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})
_MAYBE_ALIVE = frozenset({"", "clock"})
_NOT_A_TENURES = frozenset({"foreign", "forged", FORKED})


@dataclass(slots=True)
class _Tenure:
    """What is known of one granted epoch."""

    process: int
    owner: str
    ended: bool = False
    superseded: bool = False
    death: str = ""


class Progress:
    """Counts, and who holds what.

    ``accepted`` counts by surface, ``refused`` by surface and death, ``takeovers`` by the
    death of the tenure before: "" where nothing had befallen it that anybody knew of.
    """

    def __init__(self) -> None:
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.nothing: Counter[str] = Counter()
        self.takeovers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.overtaken: Counter[str] = Counter()
        """How often a call was under way when somebody else was granted the run, by surface.

        A call that has found the store busy in the end is not counted: it never tried.
        """
        self.unknown = 0
        self.looks = 0
        self.records: Counter[str] = Counter()
        self.touched: dict[str, int] = {}
        """Every run that anybody attempted something on, and when it last succeeded."""
        self.through: Counter[int] = Counter()
        """How often each process had an answer for which the store had to be asked."""
        self.lives: dict[int, int] = {}
        """The latest life of each process that has attempted something."""
        self.looked: dict[str, tuple[int, int]] = {}
        """Which process was granted each run last and has looked at it, and when."""
        self._open: dict[AttemptId, Attempt] = {}
        self._tenures: dict[str, dict[int, _Tenure]] = {}
        self._held: dict[int, set[tuple[str, int]]] = {}
        self._grants: dict[str, dict[int, tuple[int, int, int]]] = {}

    def take(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Attempt):
            self._invoked(event)
        elif isinstance(event, Returned):
            self._returned(event)
        elif isinstance(event, Seen):
            self._seen(event)
        else:
            self.faults[event.kind] += 1

    def _open_of(self, process: int) -> list[Attempt]:
        return [each for each in self._open.values() if each.id.process == process]

    def waits_since(self, process: int) -> int | None:
        """Return since when that process has been in its oldest call, or None."""
        return min((each.invoked_at for each in self._open_of(process)), default=None)

    def lost(self, process: int) -> None:
        """Take note that a process was killed: what it had begun stays unknown."""
        for attempt in self._open_of(process):
            del self._open[attempt.id]
            self.unknown += 1
            if attempt.op in _ENDINGS and attempt.lease is not None:
                self._ended(attempt.lease)

    def held_by(self, process: int) -> set[str]:
        """Return the runs of which a process has a tenure, not ended nor taken over."""
        return {run_id for run_id, _ in self._held.get(process, ())}

    def busy_with(self, process: int) -> set[str]:
        """Return the runs that a process is in the middle of a call about."""
        attempts = self._open_of(process)
        return {each.run_id for each in attempts if each.death not in _NOT_A_TENURES}

    @property
    def refusals(self) -> int:
        """All of them."""
        return self.refused.total()

    # --- events -------------------------------------------------------------------------------

    def _invoked(self, attempt: Attempt) -> None:
        self.lives[attempt.id.process] = attempt.id.life
        self._open[attempt.id] = attempt
        self.touched.setdefault(attempt.run_id, attempt.invoked_at)
        if attempt.death and attempt.lease is not None and attempt.death not in _NOT_A_TENURES:
            self._befell(attempt.lease, attempt.death)

    def _tenure(self, lease: Lease) -> _Tenure | None:
        tenure = self._tenures.get(lease.run_id, {}).get(lease.epoch)
        return tenure if tenure is not None and tenure.owner == lease.owner else None

    def _befell(self, lease: Lease, death: str) -> None:
        tenure = self._tenure(lease)
        if tenure is None or tenure.death:
            return
        tenure.death = death
        if tenure.superseded and not tenure.ended:
            self.takeovers[""] -= 1
            self.takeovers[death] += 1

    def _returned(self, answer: Returned) -> None:
        attempt = self._open.pop(answer.id, None)
        if attempt is None:  # written by a process that was lost in the meantime
            return
        process = answer.id.process
        if answer.outcome in {"landed", "refused"}:
            self._count_overtaken(attempt, process, answer.at)
        if answer.outcome == "landed":
            self.accepted[attempt.op] += 1
            self.through[process] += 1
            self._landed(attempt, process, answer.granted)
            self.touched[attempt.run_id] = answer.at
            if attempt.op in GRANTS and answer.granted is not None:
                grants = self._grants.setdefault(attempt.run_id, {})
                grants[answer.granted] = (process, attempt.invoked_at, answer.at)
        elif answer.outcome == "refused":
            self.refused[attempt.op, attempt.death] += 1
            self.reasons[answer.reason] += 1
            self.through[process] += answer.reason != "foreign-run"
        elif answer.outcome == "nothing":
            self.nothing[answer.reason] += 1
        else:
            self.unknown += 1

    def _count_overtaken(self, attempt: Attempt, process: int, returned_at: int) -> None:
        """Count a call if it was the holder's when it began, and no longer when it ended."""
        grants = self._grants.get(attempt.run_id)
        if not grants or (attempt.death not in _MAYBE_ALIVE and attempt.op != "revive"):
            return
        # By the very next one: after that, nothing could have come of it in any case.
        epoch = max(grants) if attempt.lease is None else attempt.lease.epoch + 1
        by, invoked, granted = grants.get(epoch, (process, 0, 0))
        if by != process and attempt.invoked_at < invoked and granted < returned_at:
            self.overtaken[attempt.op] += 1

    def _landed(self, attempt: Attempt, process: int, granted: int | None) -> None:
        self.records[attempt.run_id] += attempt.op == "append"
        tenures = self._tenures.setdefault(attempt.run_id, {})
        if attempt.op in GRANTS and granted is not None:
            before = max((epoch for epoch in tenures if epoch < granted), default=None)
            if before is not None:
                self._held[tenures[before].process].discard((attempt.run_id, before))
                self._superseded(tenures[before])
            tenures[granted] = _Tenure(process, attempt.grantee)
            self._held.setdefault(process, set()).add((attempt.run_id, granted))
        elif attempt.op in _ENDINGS and attempt.lease is not None:
            self._ended(attempt.lease)

    def _ended(self, lease: Lease) -> None:
        """Take note that a holder ended its tenure, or may have: then nobody took it over."""
        tenure = self._tenure(lease)
        if tenure is None or tenure.ended:
            return
        tenure.ended = True
        self._held[tenure.process].discard((lease.run_id, lease.epoch))
        if tenure.superseded:
            # Read after the next grant was read: reports are read one after the other.
            self.takeovers[tenure.death] -= 1

    def _superseded(self, before: _Tenure) -> None:
        if before.ended or before.superseded:
            return
        before.superseded = True
        self.takeovers[before.death] += 1

    def _seen(self, look: Seen) -> None:
        self.looks += 1
        lease = look.lease
        tenure = None if lease is None else self._tenures.get(lease.run_id, {}).get(lease.epoch)
        if tenure is not None:
            self.looked[look.run_id] = (tenure.process, look.at)
