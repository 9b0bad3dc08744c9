"""What the kill points of a store came to: a value, its JSON form, a table for people."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rulvar.conformance.crash.call_log import KillPoint
    from rulvar.conformance.crash.crash_case import ClockOfLeases
    from rulvar.conformance.crash.invariants import Finding

__all__ = ["Failure", "KillPointReport", "Outcome", "WorkloadReport"]

Outcome = Literal["recovered", "failed", "not run", "does not apply", "excluded"]
"""``recovered``       every death was recovered from, and a run finished unharmed
``failed``          something that must be true was not
``not run``         it could not be tried here, for the given reason: never a pass
``does not apply``  it is about something that the store does not claim to have
``excluded``        it was left out by name
"""

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that was not as it must be, and how to see it again.

    ``kill`` is None for a run that nobody killed; ``call`` is the call that the process died
    at, ``about`` the property (see `judge`), ``command`` repeats just that death.
    """

    workload: str
    kill: KillPoint | None
    call: str
    about: str
    expected: str
    found: str
    command: str

    @classmethod
    def of(
        cls, finding: Finding, *, workload: str, kill: KillPoint | None, call: str, command: str
    ) -> Failure:
        """Make one of a finding."""
        return cls(
            workload=workload,
            kill=kill,
            call=call,
            about=finding.about,
            expected=finding.expected,
            found=finding.found,
            command=command,
        )

    def lines(self) -> Iterator[str]:
        """Return it in words."""
        where = "not killed"
        if self.kill is not None:
            where = f"killed {self.kill.side} call {self.kill.at}, {self.call or 'not reached'}"
        yield f"FAILED {self.workload}: {where}"
        yield f"  property  {self.about}"
        yield f"  expected  {self.expected}"
        first, *rest = self.found.splitlines() or [""]
        yield f"  found     {first}"
        yield from (f"            {line}" for line in rest)
        yield f"  again     {self.command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReport:
    """What became of one workload.

    ``calls`` is how many store calls it makes when nobody kills it, ``changes`` how many of
    them may change something; ``deaths`` how many processes were killed, ``recovered`` from
    how many a fresh process recovered as it must, ``unharmed`` how many runs finished because
    they made fewer calls. ``skipped`` counts kill points that equal a neighbour: after a read
    as before it. ``hit`` counts the deaths by call and side.
    """

    workload: str
    about: str
    outcome: Outcome
    reason: str = ""
    calls: int = 0
    changes: int = 0
    deaths: int = 0
    recovered: int = 0
    unharmed: int = 0
    skipped: int = 0
    processes: int = 0
    duration_s: float = 0.0
    hit: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPointReport:
    """What became of every workload.

    ``every_point`` is False when only some kill points were asked for, ``every_workload``
    when only some workloads were; ``clock`` says how
    leases ran out: ``ahead`` (the next process's clock was), ``waited`` (the store takes its
    time from elsewhere), or ``none`` (it grants none).
    """

    store: str
    every_point: bool
    clock: ClockOfLeases
    duration_s: float
    every_workload: bool
    workloads: tuple[WorkloadReport, ...]

    @property
    def ok(self) -> bool:
        """Whether all that was asked for was tried, every death recovered from, and none odd."""
        ran = [each for each in self.workloads if each.outcome in {"recovered", "failed"}]
        left_out = {"excluded", "does not apply"}
        return bool(ran) and all(
            each.outcome == "recovered" or each.outcome in left_out for each in self.workloads
        )

    @property
    def deaths(self) -> int:
        """How many processes were killed."""
        return sum(each.deaths for each in self.workloads)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Everything that was not as it must be."""
        return tuple(failure for each in self.workloads for failure in each.failures)

    @property
    def hit(self) -> dict[str, int]:
        """Deaths by call and side, as ``journal.append before``."""
        total: Counter[str] = Counter()
        for each in self.workloads:
            total.update(each.hit)
        return dict(sorted(total.items()))

    def to_json(self) -> str:
        """Return the JSON form."""
        facts = {
            "format": FORMAT,
            "store": self.store,
            "ok": self.ok,
            "everyPoint": self.every_point,
            "everyWorkload": self.every_workload,
            "clock": self.clock,
            "deaths": self.deaths,
            "recovered": sum(each.recovered for each in self.workloads),
            "durationSeconds": round(self.duration_s, 1),
            "hit": self.hit,
            "workloads": [_row(each) for each in self.workloads],
        }
        return json.dumps(facts, indent=2)

    def text(self) -> str:
        """Return what failed, the table and the verdict, for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for failure in self.failures:
            yield from failure.lines()
            yield ""
        width = max(len(each.workload) for each in self.workloads)
        heads = ("calls", "deaths", "recovered", "seconds")
        yield f"{'workload':<{width}}" + "".join(f"{head:>11}" for head in heads)
        for each in self.workloads:
            numbers = (each.calls, each.deaths, each.recovered, f"{each.duration_s:.1f}")
            line = f"{each.workload:<{width}}" + "".join(f"{number:>11}" for number in numbers)
            if each.outcome != "recovered":
                line += f"  {each.outcome.upper()}" + (f": {each.reason}" if each.reason else "")
            yield line
        yield from ("", *self._verdict())

    def _verdict(self) -> Iterator[str]:
        recovered = sum(each.recovered for each in self.workloads)
        unharmed = sum(each.unharmed for each in self.workloads)
        skipped = sum(each.skipped for each in self.workloads)
        processes = sum(each.processes for each in self.workloads)
        which = "every kill point" if self.every_point else "some kill points"
        which += "" if self.every_workload else ", not of every workload"
        clock = {
            "ahead": "leases ran out on a clock set ahead",
            "waited": "leases were waited for: the store does not go by this machine's clock",
            "none": "the store grants no leases",
        }[self.clock]
        yield (
            f"{self.store}: {which}; {counted(self.deaths, 'death')}, {recovered} recovered, "
            f"{counted(unharmed, 'run')} unharmed, in {self.duration_s:.0f} s and "
            f"{counted(processes, 'process', 'processes')}; {clock}"
        )
        if self.every_point:
            yield f"left out, a point after a read that equals the one before it: {skipped}"
        yield "ok" if self.ok else "NOT OK"


def _row(each: WorkloadReport) -> dict[str, object]:
    return {
        "workload": each.workload,
        "about": each.about,
        "outcome": each.outcome,
        "reason": each.reason,
        "calls": each.calls,
        "changes": each.changes,
        "deaths": each.deaths,
        "recovered": each.recovered,
        "unharmed": each.unharmed,
        "skipped": each.skipped,
        "processes": each.processes,
        "seconds": round(each.duration_s, 2),
        "hit": dict(sorted(each.hit.items())),
        "failures": [asdict(failure) for failure in each.failures],
    }
