"""`kill_points`: every workload, killed at every store call, and what became of it."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from rulvar.conformance.child import IN_CHILD
from rulvar.conformance.children import Children
from rulvar.conformance.clauses import Reach
from rulvar.conformance.failure import NotVerified
from rulvar.conformance.kill_points.forks import in_a_fork, preload
from rulvar.conformance.kill_points.judge import Finding
from rulvar.conformance.kill_points.ledger import read_notes
from rulvar.conformance.kill_points.report import Failure, KillPointReport, WorkloadReport
from rulvar.conformance.kill_points.roles import Job, Looked
from rulvar.conformance.kill_points.witness import KillPoint
from rulvar.conformance.kill_points.workloads import chosen_workloads
from rulvar.conformance.subject import UrlSubject
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rulvar.conformance.children import Child
    from rulvar.conformance.kill_points.forks import Ended
    from rulvar.conformance.kill_points.report import Outcome
    from rulvar.conformance.kill_points.roles import Part
    from rulvar.conformance.kill_points.witness import Side
    from rulvar.conformance.kill_points.workloads import Workload
    from rulvar.conformance.subject import Place, Subject

__all__ = ["Death", "kill_points"]

_LONG_TTL_MS = 60_000
_SHORT_TTL_MS = 2_000
_MOST_CALLS = 2_000
_MOST_BROKEN = 10

SIDES: tuple[Side, Side] = ("before", "after")

Progress: TypeAlias = "Callable[[Death], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One process that was to die, and what was found after it.

    ``kill`` is None where nobody was to be killed; ``call`` is the call that it died at, and
    empty when it finished before it came to that one. ``calls`` are all the calls it made.
    """

    workload: str
    kill: KillPoint | None
    died: bool
    call: str
    changes: bool
    calls: tuple[tuple[str, bool], ...]
    findings: tuple[Finding, ...]
    processes: int


def kill_points(
    subject: Subject,
    /,
    *,
    workloads: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    at: int | None = None,
    side: Side | None = None,
    per_kind: int | None = None,
    jobs: int = 1,
    stop_at_failure: bool = False,
    deadline_s: int = 60,
    progress: Progress | None = None,
) -> KillPointReport:
    """Kill a process at every store call of every workload, and have another one finish.

    ``workloads`` names the rows of the table to run (all by default), ``exclude`` those to
    leave out. ``at`` and ``side`` repeat one death (or both sides of one call); ``per_kind``
    takes at most so many deaths of each kind of call and side, instead of every one. ``jobs``
    workloads run at a time. ``deadline_s`` is how long one process may live. ``progress`` is
    told of each death, from the thread of its workload.

    Raises `ConfigError` before any process is started: for names and numbers that cannot be,
    a store whose state dies with its process, and a system without ``fork`` and SIGKILL. What
    the store does wrong is in the report.
    """
    exclude = tuple(exclude)
    chosen = chosen_workloads(workloads, exclude)
    _check_here(subject, chosen)
    _check_numbers(at=at, side=side, per_kind=per_kind, jobs=jobs)
    began = time.monotonic()
    children = Children()
    try:
        clock, own_place = _calibrate(subject, children, deadline_s)
        order = _Order(
            subject=subject,
            children=children,
            clock=clock,
            own_place=own_place,
            at=at,
            side=side,
            per_kind=per_kind,
            stop_at_failure=stop_at_failure,
            deadline_s=deadline_s,
            progress=progress or (lambda _death: None),
        )
        with ThreadPoolExecutor(jobs) as pool:
            rows = list(pool.map(partial(_run_workload, order), chosen))
    finally:
        children.end()
    left_out = chosen_workloads(set(exclude), ()) if exclude else []
    rows += [_not_run(each, "excluded", "by name") for each in left_out]
    return KillPointReport(
        store=subject.name,
        every_point=at is None and per_kind is None,
        clock=clock,
        duration_s=time.monotonic() - began,
        workloads=tuple(rows),
    )


def _check_here(subject: Subject, chosen: list[Workload]) -> None:
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
    if subject.reach is not Reach.SHARED:
        message = (
            f"the state of {subject.name} dies with its process (reach {subject.reach.value!r}), "
            "so nothing can be recovered after a death: give a store that is on disk or served"
        )
        raise ConfigError(message)


def _check_numbers(*, at: int | None, side: Side | None, per_kind: int | None, jobs: int) -> None:
    for what, value in (("at", at), ("per_kind", per_kind), ("jobs", jobs)):
        if value is not None and value < 1:
            message = f"{what} is 1 or more, not {value}"
            raise ConfigError(message)
    if side is not None and at is None:
        message = f"side={side!r} needs at: which call is meant?"
        raise ConfigError(message)
    if at is not None and per_kind is not None:
        message = "at repeats one death, per_kind chooses some: give one of them"
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What was asked for, and what every workload shares."""

    subject: Subject
    children: Children
    clock: Literal["ahead", "waited", "none"]
    at: int | None
    side: Side | None
    per_kind: int | None
    stop_at_failure: bool
    deadline_s: int
    progress: Progress
    own_place: bool

    def command(self, workload: str, kill: KillPoint | None) -> str:
        """Return what repeats one death."""
        if isinstance(self.subject, UrlSubject):
            parts = ["rulvar", "kill-points", self.subject.name, "--workload", workload]
            if kill is not None:
                parts += ["--at", str(kill.at), "--side", kill.side]
            return shlex.join(parts)
        where = "" if kill is None else f", at={kill.at}, side={kill.side!r}"
        return f"kill_points(<the subject {self.subject.name!r}>, workloads=[{workload!r}]{where})"


# --- one place, one death -------------------------------------------------------------------


class _Scene:
    """A place for one death, and the processes that play in it."""

    def __init__(
        self, subject: Subject, child: Child, workload: str, *, ttl_ms: int, deadline_s: int
    ) -> None:
        self.place: Place = subject.fresh(lease_ttl_ms=ttl_ms, manual_clock=False)
        self.folder = Path(tempfile.mkdtemp(prefix="rulvar-kill-points-"))
        self._prefix = "" if self.place.fresh else f"kp-{uuid.uuid4().hex[:12]}-"
        self._child = child
        self._workload = workload
        self._deadline_s = deadline_s
        self.processes = 0

    def play(self, part: Part, **facts: object) -> Ended:
        """Have a part played by a new process, and import what it had to import."""
        job = Job(
            part=part,
            workload=self._workload,
            opener=self.place.opener(),
            folder=self.folder,
            prefix=self._prefix,
            own_place=self.place.fresh,
            deadline_s=self._deadline_s,
            **facts,  # type: ignore[arg-type]
        )
        self.processes += 1
        ended = cast("Ended", self._child.run(in_a_fork, job))
        if isinstance(ended.value, Looked) and ended.value.modules:
            self._child.run(preload, ended.value.modules)
        return ended

    def close(self) -> None:
        """Remove all that there was."""
        if not self.place.fresh:
            self.play("clear", died=True)
        self.place.discard()
        shutil.rmtree(self.folder, ignore_errors=True)


def _calibrate(
    subject: Subject, children: Children, deadline_s: int
) -> tuple[Literal["ahead", "waited", "none"], bool]:
    """Find out whether a lease runs out on a clock set ahead, and whose the place is.

    Raises `ConfigError` when the store cannot even be opened by another process.
    """
    child = children.take()
    try:
        scene = _Scene(subject, child, "steps", ttl_ms=_LONG_TTL_MS, deadline_s=deadline_s)
        try:
            grants = _answer(subject, scene, "grant")
            believes = _answer(subject, scene, "believe")
        except NotVerified as error:
            message = f"{subject.name} cannot be opened by another process: {error}"
            raise ConfigError(message) from error
        finally:
            scene.close()
    finally:
        children.give_back(child)
    clock: Literal["ahead", "waited", "none"] = "none"
    if grants:
        clock = "ahead" if believes else "waited"
    return clock, scene.place.fresh


def _answer(subject: Subject, scene: _Scene, part: Part) -> object:
    answer = scene.play(part)
    if not isinstance(answer.value, Looked):
        message = f"{subject.name} cannot be used by another process: {answer.text}"
        raise ConfigError(message)
    return answer.value.result


def _die(order: _Order, child: Child, row: Workload, kill: KillPoint | None) -> Death:
    """Let one process come to its death, another finish, and a third judge."""
    long = _SHORT_TTL_MS if order.clock == "waited" else _LONG_TTL_MS
    scene = _Scene(
        order.subject,
        child,
        row.name,
        ttl_ms=row.lease_ttl_ms or long,
        deadline_s=order.deadline_s,
    )
    try:
        return _played(order, scene, row, kill)
    finally:
        scene.close()


def _played(order: _Order, scene: _Scene, row: Workload, kill: KillPoint | None) -> Death:
    findings: list[Finding] = []
    died, result = False, None
    if row.prepare is not None:
        findings += _complaint("the preparation", scene.play("prepare"))
    if not findings:
        victim = scene.play("victim", kill=kill)
        died = victim.how == "killed"
        if died:
            timed = order.clock == "waited"
            after = scene.play("successor", died=True, timed=timed)
            findings += _complaint("the successor", after)
            result = _result(after)
        else:
            findings += _complaint("the workload", victim)
            result = _result(victim)
        if not findings or died:
            findings += _complaint("the judge", scene.play("judge", died=died, result=result))
    notes = read_notes("victim", scene.folder / "victim.notes")
    last = next((note for note in notes if note.what == "dies"), None)
    if died != (last is not None):
        findings.append(Finding("recovery", "a death exactly where one was ordered", f"{last}"))
    return Death(
        workload=row.name,
        kill=kill,
        died=died,
        call="" if last is None else last.call,
        changes=last is not None and last.facts["changes"] is True,
        calls=tuple(
            (note.call, note.what == "begun") for note in notes if note.what in {"begun", "read"}
        ),
        findings=tuple(findings),
        processes=scene.processes,
    )


def _result(ended: Ended) -> object:
    return ended.value.result if isinstance(ended.value, Looked) else None


def _complaint(who: str, ended: Ended) -> Iterator[Finding]:
    """Return what a process has found, or that it did not come to its end."""
    if isinstance(ended.value, Looked):
        yield from ended.value.findings
    else:
        yield Finding("recovery", f"{who} finishes", f"{ended.how}: {ended.text}")


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
        self.calls: tuple[tuple[str, bool], ...] = ()
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
            elif order.per_kind is not None:
                for kill in sampled(self.calls, order.per_kind):
                    self._one(kill)
            else:
                self._every_point()
        except _Enough:
            return

    def _every_point(self) -> None:
        for at in range(1, _MOST_CALLS):
            before = self._one(KillPoint(at, "before"))
            if not before.died:
                return
            if before.changes:
                self._one(KillPoint(at, "after"))
            else:
                # Nothing has changed from before a read to after it.
                self.skipped += 1
        self._fail(None, "", Finding("recovery", f"less than {_MOST_CALLS} calls", "no end"))

    def _one(self, kill: KillPoint | None) -> Death:
        death = _die(self._order, self._child, self._row, kill)
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


def sampled(calls: tuple[tuple[str, bool], ...], per_kind: int) -> Iterator[KillPoint]:
    """Yield at most ``per_kind`` points of each kind of call and side, spread over the run."""
    places: dict[tuple[str, Side], list[int]] = {}
    for number, (call, changes) in enumerate(calls, 1):
        for side in SIDES if changes else SIDES[:1]:
            places.setdefault((call, side), []).append(number)
    for (_, side), numbers in places.items():
        step = len(numbers) / (per_kind + 1)
        chosen = {numbers[int(step * (index + 1))] for index in range(per_kind)}
        for number in sorted(chosen):
            yield KillPoint(number, side)


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
        why, outcome = f"{trials.deaths} deaths, {trials.unharmed} runs unharmed", "failed"
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
