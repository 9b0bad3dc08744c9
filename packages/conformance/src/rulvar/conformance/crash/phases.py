"""What each process of a workload does: prepare, be the victim, take over, judge.

Every one opens the stores anew. The victim's calls are counted and it dies at one of them;
whoever takes over first looks at what the death has left, then finishes; the judge, a process
that has had no part in it, looks at the end.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rulvar.conformance.crash import invariants, workflows
from rulvar.conformance.crash.call_log import CallLog
from rulvar.conformance.crash.expected_state import ExpectedState, read_notes
from rulvar.conformance.crash.harness import Harness, outcome_of
from rulvar.conformance.crash.invariants import Finding
from rulvar.conformance.crash.workloads import (
    SUCCESSOR_AHEAD_MS,
    VICTIM_AHEAD_MS,
    chosen_workloads,
)
from rulvar.conformance.harness.machine_clock import set_offset
from rulvar.conformance.harness.state import read_state
from rulvar.core.audit import audit_run
from rulvar.core.capabilities import has_lease_admin, has_leases, has_run_inventory
from rulvar.core.errors import LeaseHeldError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from rulvar.conformance.crash.call_log import KillPoint
    from rulvar.conformance.crash.expected_state import Phase
    from rulvar.conformance.crash.workloads import Workload
    from rulvar.conformance.harness.state import Snapshot
    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.core.stores import Stores

__all__ = ["Job", "Looked", "Part", "perform"]

Part = Literal["prepare", "victim", "successor", "judge", "grant", "believe", "clear"]

_PHASES: dict[Part, Phase] = {
    "prepare": "prepared",
    "victim": "victim",
    "successor": "successor",
    "judge": "judge",
}
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One part of one workload, as it travels to the process that plays it.

    ``folder`` is the workload's scratch, and holds the notes; ``timed`` says that the store
    does not believe this machine's clock, so that leases must be waited for.
    """

    part: Part
    workload: str
    opener: Opener
    folder: Path
    prefix: str
    own_place: bool = True
    kill: KillPoint | None = None
    died: bool = False
    timed: bool = False
    deadline_s: int = 60
    result: object = None

    @property
    def row(self) -> Workload:
        """The row of the table."""
        return chosen_workloads([self.workload], ())[0]

    def notes(self, part: Part) -> Path:
        """Return the file that the process of a part notes into."""
        return self.folder / f"{part}.notes"

    def kept(self) -> ExpectedState:
        """Return the account of everything that was noted so far."""
        parts: tuple[Part, ...] = ("prepare", "victim", "successor")
        return ExpectedState(
            note for part in parts for note in read_notes(_PHASES[part], self.notes(part))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a process has to say: findings, the workload's result, modules that it imported."""

    findings: tuple[Finding, ...] = ()
    result: object = None
    modules: tuple[str, ...] = ()


def perform(job: Job) -> object:
    """Do a job; it has this process to itself."""
    before = set(sys.modules)
    ahead = 0 if job.part in {"prepare", "grant"} else VICTIM_AHEAD_MS
    if job.part in {"successor", "believe"} or (job.part in {"judge", "clear"} and job.died):
        ahead = SUCCESSOR_AHEAD_MS
    set_offset(ahead)
    looked = _PARTS[job.part](job)
    return Looked(
        findings=looked.findings,
        result=looked.result,
        modules=tuple(sorted(set(sys.modules) - before)),
    )


def _stage(job: Job, stores: Stores, part: Part, kill: KillPoint | None = None) -> Harness:
    log = CallLog(job.notes(part), kill)
    watched = log.watch(stores, hide=job.row.hide)
    return Harness(watched, log, job.folder, job.prefix, own=stores, opener=job.opener)


# --- before and until the death -------------------------------------------------------------


def _prepare(job: Job) -> Looked:
    with job.opener.open() as stores:
        if job.row.prepare is not None:
            asyncio.run(_awaited(job.row.prepare(_stage(job, stores, "prepare"))))
    return Looked()


def _victim(job: Job) -> Looked:
    with job.opener.open() as stores:
        harness = _stage(job, stores, "victim", job.kill)
        return Looked(result=asyncio.run(_awaited(job.row.begin(harness))))


async def _awaited(act: Awaitable[object]) -> object:
    return await act


# --- after it -------------------------------------------------------------------------------


def _successor(job: Job) -> Looked:
    with job.opener.open() as stores:
        kept = job.kept()
        findings = list(invariants.directly_after(kept, read_state(stores, kept.runs)))
        if job.timed:
            _wait_for_leases(stores, kept)
        harness = _stage(job, stores, "successor")
        act = job.row.finish or job.row.begin
        result = asyncio.run(_awaited(act(harness)))
    return Looked(findings=tuple(findings), result=result)


def _wait_for_leases(stores: Stores, kept: ExpectedState) -> None:
    """Wait until the store lets go of what the dead process held."""
    journal = stores.journal
    for run in sorted(kept.granted):
        while has_leases(journal):
            try:
                journal.release(journal.acquire(run, "kill-points"))
            except LeaseHeldError:
                time.sleep(_PAUSE_S)  # only where the store goes by no clock that can be set
            else:
                break


def _judge(job: Job) -> Looked:
    row, kept = job.row, job.kept()
    runs = {_found(job.prefix + name, kept): wanted for name, wanted in row.runs.items()}
    gone = [job.prefix + name for name in row.gone]
    findings: list[Finding] = []
    if job.result != row.result:
        findings.append(Finding("result", repr(row.result), repr(job.result)))
    findings += invariants.paid(kept, in_flight=row.at_once, died=job.died)
    with job.opener.open() as stores:
        state = read_state(stores, kept.runs | runs.keys() | set(gone))
        findings += invariants.acknowledged(kept, state)
        findings += invariants.settled(state, runs)
        findings += invariants.epochs(kept, state)
        findings += invariants.deaths(state, died=job.died, hands_over=row.hands_over)
        findings += invariants.audited([audit_run(stores, run) for run in sorted(state)])
        findings += _nothing_left(job, stores, state, gone)
        if row.also is not None:
            harness = _stage(job, stores, "judge")
            findings += [
                Finding("result", "nothing else amiss", t) for t in row.also(harness, state)
            ]
        findings += _no_lease(stores, kept)
        try:
            findings += _stays(job, stores, state)
            findings += _recreated(job, stores, gone)
        except LeaseHeldError as error:
            findings.append(Finding("leases", "a run that is over can be resumed", str(error)))
    findings += _no_worktree(job)
    return Looked(findings=tuple(findings))


def _found(run: str, kept: ExpectedState) -> str:
    """Return the id of a run, of a child by its parent's: one that is not there stays ``.+``."""
    parent, wants_child, _ = run.partition(".+")
    if not wants_child:
        return run
    children = [each for each in kept.runs if each.removeprefix(f"{parent}.").isdigit()]
    return children[0] if len(children) == 1 else run


def _nothing_left(job: Job, stores: Stores, state: Snapshot, gone: list[str]) -> Iterator[Finding]:
    for run in gone:
        found = state[run]
        if found.journal or found.row is not None or found.blobs:
            left = "; ".join(found.lines())
            yield Finding("nothing left", f"nothing of {run!r}", left)
    if job.own_place and has_run_inventory(stores.journal):
        there = set(stores.journal.list_run_ids(None, 100))
        wanted = {run for run in state if run not in gone}
        if there != wanted:
            expected = f"the runs {sorted(wanted)} and no other"
            yield Finding("nothing left", expected, f"{sorted(there)}")


def _no_lease(stores: Stores, kept: ExpectedState) -> Iterator[Finding]:
    """Look for leases, then take every run and give it back.

    The row of a lease that has run out may stay where nobody had to take the run again.
    """
    journal = stores.journal
    if not has_leases(journal):
        return
    for run in sorted(kept.runs):
        lease = journal.get_lease(run) if has_lease_admin(journal) else None
        if lease is None:
            continue
        to_victim = kept.granted_to.get((run, lease.epoch)) == "victim"
        if lease.live or not to_victim:
            yield Finding("leases", f"no process holds {run!r}", f"{lease}")
    for run in sorted(kept.runs):
        try:
            taken = journal.acquire(run, "kill-points-judge")
        except LeaseHeldError as error:
            yield Finding("leases", f"{run!r} can be taken at once", str(error))
            continue
        highest = max(kept.granted.get(run, [0]))
        if taken.epoch <= highest:
            yield Finding("epochs", f"an epoch of {run!r} above {highest}", f"{taken.epoch}")
        journal.release(taken)


def _stays(job: Job, stores: Stores, state: Snapshot) -> Iterator[Finding]:
    """Resume a run that is over: it says the same again, executes and changes nothing."""
    make = job.row.again
    if make is None:
        return
    harness = _stage(job, stores, "judge")
    run = harness.run_id("r")

    async def resume() -> tuple[list[object], int]:
        async with harness.engine(make(harness)) as engine:
            outcome = await engine.resume(run)
        return outcome_of(outcome), outcome.executed

    said, executed = asyncio.run(resume())
    wanted = job.result if job.result is not None else said
    if said != wanted or executed:
        yield Finding("result", f"{wanted!r} again", f"{said!r}, and {executed} steps executed")
    notes = ExpectedState(read_notes("judge", job.notes("judge")))
    changed = [note.call for note in notes.changes("judge")]
    now = read_state(stores, [run])[run]
    if changed or replace(now, lease=None) != replace(state[run], lease=None):
        yield Finding("settled", f"{run!r} is over, and nothing changes it", ", ".join(changed))


def _recreated(job: Job, stores: Stores, gone: list[str]) -> Iterator[Finding]:
    """Create a deleted run again: it begins from nothing, above every epoch of before."""
    if not gone:
        return
    name = job.row.gone[0]
    harness = _stage(job, stores, "judge")
    result = asyncio.run(_awaited(harness.through(workflows.turns(harness), [1, 2], name=name)))
    notes = ExpectedState(read_notes("judge", job.notes("judge")))
    marks = [str(note.facts["mark"]) for note in notes.ran()]
    if marks != workflows.MARKS_OF_TURNS:
        yield Finding("nothing left", f"{name!r} recreated, and all of it executed", f"{marks}")
    if result != ["ok", workflows.RESULT_OF_TURNS]:
        yield Finding("nothing left", f"{name!r} recreated, with the result of before", f"{result}")


def _no_worktree(job: Job) -> Iterator[Finding]:
    repo = job.folder / "repo"
    if not repo.exists():
        return
    command = ["git", "-C", str(repo), "worktree", "list", "--porcelain"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    trees = [line for line in listed.stdout.splitlines() if line.startswith("worktree ")]
    if len(trees) > 1:
        yield Finding("worktrees", "git knows of none but the repository's own", f"{trees[1:]}")
    left = [path.name for path in (job.folder / "tmp").glob("rulvar-worktrees-*/*/*/*")]
    if left:
        yield Finding("worktrees", "no folder of a worktree in the temp folder", f"{left}")


# --- what is not about one death ----------------------------------------------------------------


def _grant(job: Job) -> Looked:
    """Say whether the store grants leases; take one and never give it back."""
    with job.opener.open() as stores:
        if not has_leases(stores.journal):
            return Looked(result=False)
        stores.journal.acquire(job.prefix + "clock", "kill-points")
    return Looked(result=True)


def _believe(job: Job) -> Looked:
    """Say whether that lease has run out on this process's clock, which is ahead."""
    with job.opener.open() as stores:
        journal = stores.journal
        if not has_leases(journal):
            return Looked(result=True)
        try:
            journal.release(journal.acquire(job.prefix + "clock", "kill-points"))
        except LeaseHeldError:
            return Looked(result=False)
    return Looked(result=True)


def _clear(job: Job) -> Looked:
    """Remove a death's runs from a place that others use too."""
    with job.opener.open() as stores:
        for run in sorted(job.kept().runs):
            for ref in stores.transcripts.list_refs(run):
                stores.transcripts.delete(ref)
            stores.journal.delete(run)
    return Looked()


_PARTS = {
    "prepare": _prepare,
    "victim": _victim,
    "successor": _successor,
    "judge": _judge,
    "grant": _grant,
    "believe": _believe,
    "clear": _clear,
}
