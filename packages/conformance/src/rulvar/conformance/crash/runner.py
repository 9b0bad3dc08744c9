"""`kill_points`: every workload, killed at every store call, and what became of it."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from rulvar.conformance.contract.levels import Sharing
from rulvar.conformance.crash.call_log import KillPoint
from rulvar.conformance.crash.crash_case import calibrate, die
from rulvar.conformance.crash.invariants import Finding
from rulvar.conformance.crash.report import Failure, KillPointReport, WorkloadReport
from rulvar.conformance.crash.workloads import WORKLOADS, chosen_workloads
from rulvar.conformance.harness.child import IN_CHILD
from rulvar.conformance.harness.children import Children
from rulvar.conformance.harness.store_under_test import StoreAtUrl
from rulvar.core.errors import ConfigError
from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.conformance.crash.call_log import Side
    from rulvar.conformance.crash.crash_case import Calls, ClockOfLeases, Death
    from rulvar.conformance.crash.report import Outcome
    from rulvar.conformance.crash.workloads import Workload
    from rulvar.conformance.harness.children import Child
    from rulvar.conformance.harness.store_under_test import StoreUnderTest

__all__ = ["kill_points"]

_MOST_CALLS = 2_000
_MOST_BROKEN = 10

SIDES: tuple[Side, Side] = ("before", "after")

Progress: TypeAlias = "Callable[[Death], None]"


def kill_points(
    subject: StoreUnderTest,
    /,
    *,
    workloads: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    at: int | None = None,
    side: Side | None = None,
    sample: int | None = None,
    jobs: int = 1,
    stop_at_failure: bool = False,
    deadline_s: int = 60,
    progress: Progress | None = None,
) -> KillPointReport:
    """Kill a process at every store call of every workload, and have another one finish.

    ``workloads`` names the rows of the table to run (all by default), ``exclude`` those to
    leave out. ``at`` and ``side`` repeat one death (or both sides of one call); ``sample``
    takes so many deaths of each workload instead of every one, and sees to it that all the
    workloads together have every kind of call and side. ``jobs``
    workloads run at a time. ``deadline_s`` is how long one process may live. ``progress`` is
    told of each death, from the thread of its workload.

    Raises `ConfigError` before any process is started: for names and numbers that cannot be,
    a store whose state dies with its process, and a system without ``fork`` and SIGKILL. What
    the store does wrong is in the report.
    """
    exclude = tuple(exclude)
    chosen = chosen_workloads(workloads, exclude)
    _check_here(subject, chosen)
    _check_numbers(at=at, side=side, sample=sample, jobs=jobs, deadline_s=deadline_s)
    began = time.monotonic()
    children = Children()
    try:
        clock, own_place = calibrate(subject, children, deadline_s)
        order = _Order(
            subject=subject,
            children=children,
            clock=clock,
            own_place=own_place,
            at=at,
            side=side,
            sampler=None if sample is None else _Sampler(sample),
            stop_at_failure=stop_at_failure,
            deadline_s=deadline_s,
            progress=progress or (lambda _death: None),
        )
        with ThreadPoolExecutor(jobs) as pool:
            try:
                rows = list(pool.map(partial(_run_workload, order), chosen))
            except BaseException:
                # Without their processes, the workloads under way end now, and not in a minute.
                children.end()
                raise
    finally:
        children.end()
    left_out = chosen_workloads(set(exclude), ()) if exclude else []
    rows += [_not_run(each, "excluded", "by name") for each in left_out]
    return KillPointReport(
        store=subject.name,
        every_point=at is None and sample is None,
        every_workload=len(chosen) == len(WORKLOADS),
        clock=clock,
        duration_s=time.monotonic() - began,
        workloads=tuple(rows),
    )


def _check_here(subject: StoreUnderTest, chosen: list[Workload]) -> None:
    if not hasattr(os, "fork"):
        message = "kill points need fork and SIGKILL: run them on Linux or macOS"
        raise ConfigError(message)
    if IN_CHILD in os.environ:
        message = (
            "a script that calls kill_points was imported by the kit: put the call under "
            'if __name__ == "__main__"'
        )
        raise ConfigError(message)
    if not chosen:
        message = "no workload is left: exclude fewer"
        raise ConfigError(message)
    if subject.sharing is not Sharing.SHARED:
        message = (
            f"the state of {subject.name} dies with its process (reach {subject.sharing.value!r}), "
            "so nothing can be recovered after a death: give a store that is on disk or served"
        )
        raise ConfigError(message)


def _check_numbers(*, side: Side | None, **numbers: int | None) -> None:
    for what, value in numbers.items():
        if value is not None and value < 1:
            message = f"{what} is 1 or more, not {value}"
            raise ConfigError(message)
    at, sample = numbers["at"], numbers["sample"]
    if side is not None and at is None:
        message = f"side={side!r} needs at: which call is meant?"
        raise ConfigError(message)
    if at is not None and sample is not None:
        message = "at repeats one death, sample chooses some: give one of them"
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What was asked for, and what every workload shares."""

    subject: StoreUnderTest
    children: Children
    clock: ClockOfLeases
    at: int | None
    side: Side | None
    sampler: _Sampler | None
    stop_at_failure: bool
    deadline_s: int
    progress: Progress
    own_place: bool

    def command(self, workload: str, kill: KillPoint | None) -> str:
        """Return what repeats one death."""
        if isinstance(self.subject, StoreAtUrl):
            parts = ["rulvar", "kill-points", self.subject.name, "--workload", workload]
            if kill is not None:
                parts += ["--at", str(kill.at), "--side", kill.side]
            return shlex.join(parts)
        where = "" if kill is None else f", at={kill.at}, side={kill.side!r}"
        return f"kill_points(<the subject {self.subject.name!r}>, workloads=[{workload!r}]{where})"


# --- one workload -------------------------------------------------------------------------------


class _Enough(Exception):  # noqa: N818 - no error: the report has its failures
    """So much has failed that more would say nothing new."""


class _Trials:
    """The deaths of one workload, one after the other, and what they came to."""

    def __init__(self, order: _Order, child: Child, row: Workload) -> None:
        self._order = order
        self._child = child
        self._row = row
        self._broken = 0
        self.calls: Calls = ()
        self.deaths = self.recovered = self.unharmed = self.skipped = self.processes = 0
        self.hit: Counter[str] = Counter()
        self.failures: list[Failure] = []

    def run(self) -> None:
        """Let nobody die, then one process at each call that was asked for."""
        order = self._order
        try:
            self.calls = self._one(None).calls
            if order.at is not None:
                for side in SIDES if order.side is None else (order.side,):
                    self._one(KillPoint(order.at, side))
            elif order.sampler is not None:
                for kill in order.sampler.choose(self.calls):
                    self._one(kill)
            else:
                self._every_point()
        except _Enough:
            return

    def _every_point(self) -> None:
        for at in range(1, _MOST_CALLS):
            before = self._one(KillPoint(at, "before"))
            if not before.died:
                if at > len(self.calls):
                    return
                continue  # this one made fewer calls than the first did: another may not
            if before.changes:
                self._one(KillPoint(at, "after"))
            else:
                # Nothing has changed from before a read to after it.
                self.skipped += 1
        self._fail(None, "", Finding("recovery", f"less than {_MOST_CALLS} calls", "no end"))

    def _one(self, kill: KillPoint | None) -> Death:
        death = die(
            self._order.subject,
            self._child,
            self._row,
            kill,
            clock=self._order.clock,
            deadline_s=self._order.deadline_s,
        )
        self.processes += death.processes
        if death.died:
            self.deaths += 1
            self.recovered += not death.findings
            self.hit[f"{death.call} {kill.side if kill else ''}"] += 1
        else:
            self.unharmed += not death.findings
        for finding in death.findings:
            self._fail(kill, death.call, finding)
        self._order.progress(death)
        if death.findings:
            hung = any(finding.found.startswith("hung") for finding in death.findings)
            self._broken += _MOST_BROKEN if hung or self._order.stop_at_failure else 1
            if self._broken >= _MOST_BROKEN:
                raise _Enough
        return death

    def _fail(self, kill: KillPoint | None, call: str, finding: Finding) -> None:
        name = self._row.name
        command = self._order.command(name, kill)
        self.failures.append(
            Failure.of(finding, workload=name, kill=kill, call=call, command=command)
        )


class _Sampler:
    """Chooses some kill points of each workload: of the kinds that were chosen least so far."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._chosen: Counter[tuple[str, Side]] = Counter()

    def choose(self, calls: Calls) -> list[KillPoint]:
        """Return points of a workload that makes these calls, spread over each kind."""
        kinds: dict[tuple[str, Side], list[int]] = {}
        for number, (call, changes) in enumerate(calls, 1):
            for side in SIDES if changes else SIDES[:1]:
                kinds.setdefault((call, side), []).append(number)
        points: list[KillPoint] = []
        with self._lock:
            while kinds and len(points) < self._most:
                kind = min(kinds, key=lambda each: (self._chosen[each], each))
                numbers = kinds[kind]
                # Another place each time: a kind that many workloads have is hit all over.
                number = numbers.pop(self._chosen[kind] * 7 % len(numbers))
                if not numbers:
                    del kinds[kind]
                self._chosen[kind] += 1
                points.append(KillPoint(number, kind[1]))
        return points


def _run_workload(order: _Order, row: Workload) -> WorkloadReport:
    reason = _cannot_run(order, row)
    if reason is not None:
        return _not_run(row, *reason)
    began = time.monotonic()
    child = order.children.take()
    try:
        trials = _Trials(order, child, row)
        trials.run()
    finally:
        order.children.give_back(child)
    why, outcome = "", "recovered"
    if trials.failures:
        outcome = "failed"
    elif trials.deaths == 0 or trials.unharmed == 0:
        why, outcome = (
            f"{counted(trials.deaths, 'death')}, {counted(trials.unharmed, 'run')} unharmed",
            "failed",
        )
    return WorkloadReport(
        workload=row.name,
        about=row.about,
        outcome=cast("Outcome", outcome),
        reason=why,
        calls=len(trials.calls),
        changes=sum(changes for _, changes in trials.calls),
        deaths=trials.deaths,
        recovered=trials.recovered,
        unharmed=trials.unharmed,
        skipped=trials.skipped,
        processes=trials.processes,
        duration_s=time.monotonic() - began,
        hit=dict(trials.hit),
        failures=tuple(trials.failures),
    )


def _cannot_run(order: _Order, row: Workload) -> tuple[Outcome, str] | None:
    if row.needs_git and shutil.which("git") is None:
        return "not run", f"git is not installed: install it, or exclude {row.name!r} by name"
    if row.needs_leases and order.clock == "none":
        return "does not apply", "the store grants no leases"
    if row.needs_own_place and not order.own_place:
        reason = (
            "it goes over the whole catalogue, which here may be others' too: give a place of "
            f"the kit's own (@tmp@, a relative path), or exclude {row.name!r} by name"
        )
        return "not run", reason
    return None


def _not_run(row: Workload, outcome: Outcome, reason: str) -> WorkloadReport:
    return WorkloadReport(workload=row.name, about=row.about, outcome=outcome, reason=reason)
