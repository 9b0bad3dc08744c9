"""What has happened so far, read from the reports while they are being written."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rulvar.conformance.soak.history import FORKED, GRANTS, AttemptId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Progress", "Tail"]

_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})
_MAYBE_ALIVE = frozenset({"", "clock"})
_NOT_A_TENURES = frozenset({"foreign", "forged", FORKED})


class Tail:
    """The reports of a folder, each read on from where it was read last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def events(self) -> Iterator[dict[str, object]]:
        """Return what has been written since, report by report."""
        for path in self._folder.glob("report-*.jsonl"):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = offset + whole
            for line in data[:whole].splitlines():
                yield cast("dict[str, object]", json.loads(line))


@dataclass(slots=True)
class _Tenure:
    """What is known of one granted epoch."""

    process: int
    owner: str
    ended: bool = False
    superseded: bool = False
    death: str = ""


@dataclass(slots=True)
class _Open:
    """An attempt that has not returned."""

    op: str
    run_id: str
    at: int
    death: str
    lease: tuple[str, str, int] | None
    target: str


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
        self._open: dict[str, _Open] = {}
        self._tenures: dict[str, dict[int, _Tenure]] = {}
        self._held: dict[int, set[tuple[str, int]]] = {}
        self._grants: dict[str, dict[int, tuple[int, int, int]]] = {}

    def take(self, event: dict[str, object]) -> None:
        """Count one event."""
        if "invoked" in event:
            self._invoked(event)
        elif "returned" in event:
            self._returned(event)
        elif "seen" in event:
            self._seen(event)
        else:
            self.faults[cast("str", event["fault"])] += 1

    def waits_since(self, process: int) -> int | None:
        """Return since when that process has been in its oldest call, or None."""
        mark = f"{process}."
        return min(
            (each.at for name, each in self._open.items() if name.startswith(mark)), default=None
        )

    def lost(self, process: int) -> None:
        """Take note that a process was killed: what it had begun stays unknown."""
        mark = f"{process}."
        for name in [name for name in self._open if name.startswith(mark)]:
            attempt = self._open.pop(name)
            self.unknown += 1
            if attempt.op in _ENDINGS and attempt.lease is not None:
                self._ended(attempt.lease)

    def held_by(self, process: int) -> set[str]:
        """Return the runs of which a process has a tenure, not ended nor taken over."""
        return {run_id for run_id, _ in self._held.get(process, ())}

    def busy_with(self, process: int) -> set[str]:
        """Return the runs that a process is in the middle of a call about."""
        mark = f"{process}."
        return {
            each.run_id
            for name, each in self._open.items()
            if name.startswith(mark) and each.death not in _NOT_A_TENURES
        }

    @property
    def refusals(self) -> int:
        """All of them."""
        return self.refused.total()

    # --- events -------------------------------------------------------------------------------

    def _invoked(self, event: dict[str, object]) -> None:
        lease = cast("tuple[str, str, int] | None", event["lease"])
        run_id, death = cast("str", event["run"]), cast("str", event["death"])
        name = cast("str", event["invoked"])
        attempt_id = AttemptId.parse(name)
        self.lives[attempt_id.process] = attempt_id.life
        self._open[name] = _Open(
            cast("str", event["op"]),
            run_id,
            cast("int", event["at"]),
            death,
            lease,
            cast("str", event["target"]),
        )
        self.touched.setdefault(run_id, cast("int", event["at"]))
        if death and lease is not None and death not in _NOT_A_TENURES:
            self._befell(lease, death)

    def _befell(self, lease: tuple[str, str, int], death: str) -> None:
        run_id, owner, epoch = lease
        tenure = self._tenures.get(run_id, {}).get(epoch)
        if tenure is None or tenure.owner != owner or tenure.death:
            return
        tenure.death = death
        if tenure.superseded and not tenure.ended:
            self.takeovers[""] -= 1
            self.takeovers[death] += 1

    def _returned(self, event: dict[str, object]) -> None:
        name = cast("str", event["returned"])
        attempt = self._open.pop(name, None)
        if attempt is None:  # written by a process that was lost in the meantime
            return
        outcome, reason = event["outcome"], cast("str", event.get("reason", ""))
        process, returned_at = AttemptId.parse(name).process, cast("int", event["at"])
        if outcome in {"landed", "refused"}:
            self._count_overtaken(attempt, process, returned_at)
        if outcome == "landed":
            self.accepted[attempt.op] += 1
            self.through[process] += 1
            self._landed(attempt, process, cast("int | None", event.get("granted")))
            self.touched[attempt.run_id] = returned_at
            if attempt.op in GRANTS:
                grants = self._grants.setdefault(attempt.run_id, {})
                epoch = cast("int", event.get("granted"))
                grants[epoch] = (process, attempt.at, returned_at)
        elif outcome == "refused":
            self.refused[attempt.op, attempt.death] += 1
            self.reasons[reason] += 1
            self.through[process] += reason != "foreign-run"
        elif outcome == "nothing":
            self.nothing[reason] += 1
        else:
            self.unknown += 1

    def _count_overtaken(self, attempt: _Open, process: int, returned_at: int) -> None:
        """Count a call if it was the holder's when it began, and no longer when it ended."""
        grants = self._grants.get(attempt.run_id)
        if not grants or (attempt.death not in _MAYBE_ALIVE and attempt.op != "revive"):
            return
        # By the very next one: after that, nothing could have come of it in any case.
        epoch = max(grants) if attempt.lease is None else attempt.lease[2] + 1
        by, invoked, granted = grants.get(epoch, (process, 0, 0))
        if by != process and attempt.at < invoked and granted < returned_at:
            self.overtaken[attempt.op] += 1

    def _landed(self, attempt: _Open, process: int, granted: int | None) -> None:
        self.records[attempt.run_id] += attempt.op == "append"
        tenures = self._tenures.setdefault(attempt.run_id, {})
        if attempt.op in GRANTS and granted is not None:
            before = max((epoch for epoch in tenures if epoch < granted), default=None)
            if before is not None:
                self._held[tenures[before].process].discard((attempt.run_id, before))
                self._superseded(tenures[before])
            owner = attempt.target
            if attempt.op == "revive" and attempt.lease is not None:
                owner = attempt.lease[1]
            tenures[granted] = _Tenure(process, owner)
            self._held.setdefault(process, set()).add((attempt.run_id, granted))
        elif attempt.op in _ENDINGS and attempt.lease is not None:
            self._ended(attempt.lease)

    def _ended(self, lease: tuple[str, str, int]) -> None:
        """Take note that a holder ended his tenure, or may have: then nobody took it over."""
        tenure = self._tenures.get(lease[0], {}).get(lease[2])
        if tenure is None or tenure.owner != lease[1] or tenure.ended:
            return
        tenure.ended = True
        self._held[tenure.process].discard((lease[0], lease[2]))
        if tenure.superseded:
            # Told after the next grant was told: reports are read one after the other.
            self.takeovers[tenure.death] -= 1

    def _superseded(self, before: _Tenure) -> None:
        if before.ended or before.superseded:
            return
        before.superseded = True
        self.takeovers[before.death] += 1

    def _seen(self, event: dict[str, object]) -> None:
        self.looks += 1
        lease = cast("tuple[str, str, int] | None", event["lease"])
        if lease is not None:
            tenure = self._tenures.get(lease[0], {}).get(lease[2])
            if tenure is not None:
                self.looked[lease[0]] = (tenure.process, cast("int", event["at"]))
