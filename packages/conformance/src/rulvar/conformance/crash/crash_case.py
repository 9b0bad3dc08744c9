"""One death: a place, a process that dies there, one that finishes, one that judges."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from rulvar.conformance.crash.expected_state import read_notes
from rulvar.conformance.crash.forking import in_a_fork, preload
from rulvar.conformance.crash.invariants import Finding
from rulvar.conformance.crash.phases import Job, Looked
from rulvar.conformance.harness.failure import NotVerified
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.conformance.crash.call_log import KillPoint
    from rulvar.conformance.crash.forking import Ended
    from rulvar.conformance.crash.phases import Part
    from rulvar.conformance.crash.workloads import Workload
    from rulvar.conformance.harness.children import Child, Children
    from rulvar.conformance.harness.store_under_test import StoreUnderTest, TestLocation

__all__ = ["Calls", "ClockOfLeases", "Death", "calibrate", "die"]

_LONG_TTL_MS = 60_000
_SHORT_TTL_MS = 2_000

ClockOfLeases: TypeAlias = Literal["ahead", "waited", "none"]
"""How leases run out: on a clock set ahead, by waiting for them; or there are none."""

Calls: TypeAlias = tuple[tuple[str, bool], ...]
"""The store calls of a process: name, and whether it may change something."""


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
    calls: Calls
    findings: tuple[Finding, ...]
    processes: int


class _Case:
    """A place for one death, and the processes that play in it."""

    def __init__(
        self, subject: StoreUnderTest, child: Child, workload: str, *, ttl_ms: int, deadline_s: int
    ) -> None:
        self.place: TestLocation = subject.fresh(lease_ttl_ms=ttl_ms, manual_clock=False)
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
        try:
            if not self.place.fresh:
                self.play("clear", died=True)
        finally:
            self.place.discard()
            shutil.rmtree(self.folder, ignore_errors=True)


def calibrate(
    subject: StoreUnderTest, children: Children, deadline_s: int
) -> tuple[ClockOfLeases, bool]:
    """Find out whether a lease runs out on a clock set ahead, and whose the place is.

    Raises `ConfigError` when the store cannot even be opened by another process.
    """
    child = children.take()
    try:
        scene = _Case(subject, child, "steps", ttl_ms=_LONG_TTL_MS, deadline_s=deadline_s)
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
    clock: ClockOfLeases = "none"
    if grants:
        clock = "ahead" if believes else "waited"
    return clock, scene.place.fresh


def _answer(subject: StoreUnderTest, scene: _Case, part: Part) -> object:
    answer = scene.play(part)
    if not isinstance(answer.value, Looked):
        message = f"{subject.name} cannot be used by another process: {answer.reason}"
        raise ConfigError(message)
    return answer.value.result


def die(
    subject: StoreUnderTest,
    child: Child,
    row: Workload,
    kill: KillPoint | None,
    *,
    clock: ClockOfLeases,
    deadline_s: int,
) -> Death:
    """Let one process come to its death, another finish, and a third judge."""
    long = _SHORT_TTL_MS if clock == "waited" else _LONG_TTL_MS
    ttl_ms = row.lease_ttl_ms or long
    scene = _Case(subject, child, row.name, ttl_ms=ttl_ms, deadline_s=deadline_s)
    try:
        return _played(scene, row, kill, timed=clock == "waited")
    finally:
        scene.close()


def _played(scene: _Case, row: Workload, kill: KillPoint | None, *, timed: bool) -> Death:
    findings: list[Finding] = []
    died, result = False, None
    if row.prepare is not None:
        findings += _complaint("the preparation", scene.play("prepare"))
    if not findings:
        victim = scene.play("victim", kill=kill)
        died = victim.how == "killed"
        if died:
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
