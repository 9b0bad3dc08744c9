"""What a storm ends with: a table, the verdict, and how to make the same choices again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rulvar.conformance.soak.coverage import CoverageMatrix, Shortfall
    from rulvar.conformance.soak.plan import Plan
    from rulvar.conformance.soak.progress import Progress
    from rulvar.conformance.soak.results import Verdict

__all__ = ["SoakReport"]

_MOST_VIOLATIONS = 5
_MOST_THIN = 12


@dataclass(slots=True, kw_only=True)
class SoakReport:
    """One storm, judged. ``folder`` has the processes' own reports while they are kept."""

    subject: str
    plan: Plan
    matrix: CoverageMatrix
    progress: Progress
    thin: tuple[Shortfall, ...]
    verdict: Verdict
    seconds: float
    folder: Path | None
    notes: tuple[str, ...] = ()
    again: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing was broken and enough was tried: one without the other is no pass."""
        return self.verdict.sound and not self.thin

    def words(self) -> str:
        """Return the verdict in one sentence."""
        if not self.verdict.sound:
            kinds = sorted({str(each.kind) for each in self.verdict.violations})
            number = len(self.verdict.violations)
            return f"FAILED: {counted(number, 'violation')}: {', '.join(kinds)}"
        if self.thin:
            return (
                f"NOT PROVEN: no violation, but {counted(len(self.thin), 'number')} below the "
                f"coverage goals after {self.seconds:.0f} s"
            )
        return "PASSED: no violation, and every coverage goal was reached"

    def text(self) -> str:
        """Return the whole report for people."""
        return "\n".join(self._lines())

    def to_json(self) -> dict[str, Any]:
        """Return the whole report as members of a JSON object."""
        progress, tally = self.progress, self.verdict.tally
        return {
            "subject": self.subject,
            "passed": self.passed,
            "verdict": self.words(),
            "seconds": round(self.seconds, 1),
            "plan": self.plan.to_json(),
            "notes": [*self.matrix.notes, *self.notes],
            "accepted": dict(progress.accepted),
            "overtaken": dict(progress.overtaken),
            "refused": self._refused(),
            "refusals": dict(progress.reasons),
            "takeovers": _named(progress.takeovers),
            "faults": dict(progress.faults),
            "nothing": dict(progress.nothing),
            "unknown": {
                "landed": tally.unknown_landed,
                "absent": tally.unknown_absent,
                "open": tally.unknown_open,
            },
            "grants": tally.grants,
            "looks": tally.looks,
            "contested_looks": tally.contested_looks,
            "runs": tally.runs,
            "below_goals": [str(each) for each in self.thin],
            "violations": [
                {
                    "kind": str(each.kind),
                    "run": each.run_id,
                    "words": each.words,
                    "timeline": list(each.timeline),
                }
                for each in self.verdict.violations
            ],
            "reports": None if self.folder is None else str(self.folder),
            "again": self.again,
        }

    def json_text(self) -> str:
        """Return `to_json` as text."""
        return json.dumps(self.to_json(), indent=2)

    def _refused(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (op, death), number in sorted(self.progress.refused.items()):
            found.setdefault(op, {})[death or "unaware"] = number
        return found

    # --- lines --------------------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        progress, plan, tally = self.progress, self.plan, self.verdict.tally
        accepted = sum(progress.accepted[op] for op in self.matrix.surfaces)
        yield f"soak of {self.subject}"
        yield (
            f"{counted(plan.processes, 'process', 'processes')}, leases of "
            f"{plan.lease_ttl_ms} ms, seed {plan.seed}, {self.seconds:.1f} s, "
            f"{counted(tally.runs, 'run')}"
        )
        yield from (f"note: {note}" for note in (*self.matrix.notes, *self.notes))
        yield ""
        yield from self._table()
        yield ""
        yield (
            f"accepted {counted(accepted, 'mutation')}, refused {progress.refusals}, "
            f"{counted(progress.takeovers.total(), 'takeover')} in {counted(tally.grants, 'grant')}"
        )
        yield f"takeovers from: {_listed(_named(progress.takeovers))}"
        yield f"faults: {_listed(progress.faults)}"
        yield f"refusals: {_listed(progress.reasons)}"
        yield f"nothing happened: {_listed(progress.nothing)}"
        yield (
            f"unknown: {tally.unknown_landed} had landed, {tally.unknown_absent} had not, "
            f"{tally.unknown_open} cannot be known"
        )
        yield f"looks at a whole run: {tally.looks}, of them {tally.contested_looks} unusable"
        yield ""
        for each in self.verdict.violations[:_MOST_VIOLATIONS]:
            yield str(each)
        if len(self.verdict.violations) > _MOST_VIOLATIONS:
            yield f"... and {len(self.verdict.violations) - _MOST_VIOLATIONS} more"
        for thin in self.thin[:_MOST_THIN]:
            yield f"below the coverage goals: {thin}"
        if len(self.thin) > _MOST_THIN:
            yield f"... and {len(self.thin) - _MOST_THIN} more"
        if self.folder is not None:
            yield f"reports of the processes: {self.folder}"
        if self.again:
            yield f"again: {self.again}"
        yield self.words()

    def _table(self) -> Iterator[str]:
        deaths = ("", *self.matrix.deaths)
        cells = set(self.matrix.cells)
        head = "".join(f"{death or 'unaware':>10}" for death in deaths)
        yield f"{'':<39}refused to a tenure that was"
        yield f"{'':<18}{'accepted':>9}{'overtaken':>10}{head}"
        for op in (*self.matrix.grants, *self.matrix.surfaces):
            row = "".join(
                f"{self.progress.refused[op, death]:>10}"
                if not death or (op, death) in cells
                else f"{'-':>10}"
                for death in deaths
            )
            counts = f"{self.progress.accepted[op]:>9}{self.progress.overtaken[op]:>10}"
            yield f"{op:<18}{counts}{row}"


def _named(takeovers: Mapping[str, int]) -> dict[str, int]:
    return {death or "unaware": number for death, number in takeovers.items() if number}


def _listed(numbers: Mapping[str, int]) -> str:
    found = sorted(numbers.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {number}" for name, number in found) or "none"
