"""Deletion: promise D1, and deleting a run with its blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.clauses import Level, Section
from rulvar.conformance.harness.interleave import Crossing, cross
from rulvar.conformance.harness.state import RunState, read_run
from rulvar.core.records import RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import Trial
    from rulvar.conformance.harness.interleave import Ending
    from rulvar.core.records import JournalRecord, Lease

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="D1")

_MEETINGS = 30
"""How often a deletion is met by a reader: each time a whole run is written before."""


def _fill(trial: Trial, worker: Actor, run_id: str) -> None:
    for seq in range(3):
        worker.append(run_id, seq)
    worker.put_meta(run_id)
    if trial.has_blobs:
        worker.put(f"{run_id}/turn")
        worker.put(f"{run_id}/a/b")


@CLAUSES.clause("D1-removes", "delete removes the journal and the row, and nothing of other runs.")
def _removes(trial: Trial) -> None:
    run = trial.run_id("run")
    neighbours = [trial.run_id(name) for name in _NEAR]
    worker = trial.actor("worker")
    for each in (run, *neighbours):
        _fill(trial, worker, each)
        if trial.claims(Level.LEASABLE):
            worker.acquire(each)
    _delete_alone(trial, worker, run, None)
    if trial.claims(Level.FENCED):
        _fill(trial, worker, run)
        _delete_alone(trial, worker, run, worker.acquire(run))


_NEAR = ("run2", "run.1", "ru", "Run", "run%", "ru_")


def _delete_alone(trial: Trial, worker: Actor, run: str, lease: Lease | None) -> None:
    before = trial.snapshot()
    worker.delete(run, lease=lease)
    blobs = before[run].blobs
    trial.equal(
        "what is left of everything", trial.snapshot(), before | {run: RunState(blobs=blobs)}
    )
    trial.require(
        all(row.run_id != run for row in worker.journal.list_runs(None)), "no row", "a row"
    )


@CLAUSES.clause("D1-one-step", "A reader sees a run before its deletion or after it, never half.")
def _one_step(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")

    def delete() -> None:
        worker.journal.delete(run)

    cross(trial, lambda: _read_at_deletion(trial, delete, blobs=False), most=_MEETINGS)
    for _ in range(5):
        written = [worker.append(run, seq, filling=1000) for seq in range(20)]
        trial.together([lambda: worker.journal.delete(run), *[_watch(trial, run, written)] * 3])


def _watch(trial: Trial, run: str, written: list[JournalRecord]) -> Callable[[], None]:
    def watch() -> None:
        found = tuple(written)
        while found:
            found = tuple(trial.stores.journal.load(run))
            trial.require(
                found in {(), tuple(written)},
                "the whole journal or none",
                f"{len(found)} of {len(written)} records",
            )

    return watch


def _read_at_deletion(trial: Trial, delete: Callable[[], object], *, blobs: bool) -> Crossing:
    run = trial.run_id()
    worker, reader = trial.actor("worker"), trial.another_handle()
    _fill(trial, worker, run)
    if trial.claims(Level.LEASABLE):
        worker.journal.acquire(run, "worker")
    before = trial.state_of(run)
    after = RunState() if blobs else RunState(blobs=before.blobs)

    def read() -> RunState:
        return read_run(reader, run, blobs=trial.has_blobs)

    def judge(deletion: Ending, reading: Ending, where: str) -> None:
        for ending in (deletion, reading):
            trial.require(ending.returned, "the call returns", ending.words())
        # A reading that went on while the deletion did may have begun before it.
        if reading.inside and reading.value not in (before, after):
            trial.fail(
                f"all of the run or nothing of it ({where})",
                "a part of it",
                before={run: before},
                after={run: cast("RunState", reading.value)},
            )

    return Crossing(delete, read, judge)


@CLAUSES.clause("D1-unknown", "Deleting an unknown run, or one again, does nothing.")
def _unknown(trial: Trial) -> None:
    run, other = trial.run_id(), trial.run_id("other")
    worker = trial.actor("worker")
    _fill(trial, worker, other)
    trial.knows(run)
    before = trial.snapshot()
    worker.delete(run)
    trial.equal("the state", trial.snapshot(), before)
    worker.append(run, 0)
    worker.delete(run)
    worker.delete(run)
    trial.equal("the state", trial.snapshot(), before)


@CLAUSES.clause("D1-blobs", "delete touches no blob.", level=Level.TRANSCRIPTS)
def _blobs(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    blob = worker.put(f"{run}/turn")
    if trial.has_journal:
        worker.append(run, 0)
        worker.put_meta(run)
        worker.delete(run)
    trial.equal("the blob", worker.get(f"{run}/turn"), blob)
    trial.equal("the refs", worker.list_refs(run), (f"{run}/turn",))


@CLAUSES.clause("D1-again", "A recreated run sees neither journal nor row of the old one.")
def _again(trial: Trial) -> None:
    worker = trial.actor("worker")
    for run, lease in trial.tenures(worker, Level.FENCED):
        _recreate(trial, worker, run, lease)


def _recreate(trial: Trial, worker: Actor, run: str, lease: Lease | None) -> None:
    worker.append(run, 1000, lease=lease)
    old = RunMeta(
        run_id=run,
        status="ok",
        updated_at="2026-01-01T00:00:00.000Z",
        name="old",
        tags=("old",),
    )
    worker.put_row(old, lease=lease)
    worker.delete(run, lease=lease)
    first = worker.append(run, 0)
    trial.equal("the journal", worker.load(run), (first,))
    trial.require(
        all(row.run_id != run for row in worker.journal.list_runs(None)), "no row", "a row"
    )
    meta = worker.put_meta(run)
    rows = [row for row in worker.journal.list_runs(None) if row.run_id == run]
    trial.equal("the row", rows, [meta])


@CLAUSES.clause(
    "D1-lease",
    "delete ends the lease, whoever holds it, and the run is free.",
    level=Level.LEASABLE,
)
def _lease(trial: Trial) -> None:
    run = trial.run_id()
    owner, bare = trial.actor("owner"), trial.actor("bare")
    lease = owner.acquire(run)
    owner.append(run, 0, lease=lease)
    bare.delete(run)
    owner.refused("released").append(run, 1, lease=lease)
    owner.refused("released").renew(lease)
    later = bare.acquire(run)
    trial.require(later.epoch > lease.epoch, "a higher epoch", later.epoch)
    trial.equal("the journal", bare.load(run), ())


@CLAUSES.clause(
    "D1-own-lease", "A deletion under the live lease ends that lease.", level=Level.FENCED
)
def _own_lease(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    lease = worker.acquire(run)
    worker.append(run, 0, lease=lease)
    worker.put_meta(run, lease=lease)
    worker.delete(run, lease=lease)
    trial.equal("the journal", worker.load(run), ())
    for _ in range(2):
        worker.refused("released").append(run, 0, lease=lease)
        worker.refused("released").delete(run, lease=lease)
    trial.require(worker.acquire(run).epoch > lease.epoch, "a higher epoch", lease.epoch)


@CLAUSES.clause(
    "D-whole",
    "delete_whole_run removes journal, row, lease and blobs, and of this run alone.",
    source="WholeRunDelete",
    level=Level.TRANSCRIPTS,
    capability="WholeRunDelete",
)
def _whole(trial: Trial) -> None:
    run = trial.run_id("run")
    neighbours = [trial.run_id(name) for name in _NEAR]
    worker = trial.actor("worker")
    for each in (run, *neighbours):
        _fill(trial, worker, each)
    leases = trial.claims(Level.LEASABLE)
    if trial.claims(Level.FENCED_PAIR):
        under = worker.acquire(run)
        before = trial.snapshot()
        worker.delete_whole_run(run, lease=under)
        trial.equal("what is left of everything", trial.snapshot(), before | {run: RunState()})
        _fill(trial, worker, run)
    lease = worker.acquire(run) if leases else None
    before = trial.snapshot()
    worker.delete_whole_run(run)
    trial.equal("what is left of everything", trial.snapshot(), before | {run: RunState()})
    worker.delete_whole_run(run)
    worker.delete_whole_run(trial.run_id("unknown"))
    if lease is not None:
        worker.refused("released").append(run, 0, lease=lease)
        trial.require(worker.acquire(run).epoch > lease.epoch, "a higher epoch", lease.epoch)
    first = worker.append(run, 0)
    trial.equal("the journal of the recreated run", worker.load(run), (first,))


@CLAUSES.clause(
    "D-whole-one-step",
    "A reader sees a run with its blobs before delete_whole_run or nothing of it after.",
    source="WholeRunDelete",
    level=Level.TRANSCRIPTS,
    capability="WholeRunDelete",
)
def _whole_one_step(trial: Trial) -> None:
    run = trial.run_id()
    journal = trial.actor("worker").journal
    cross(
        trial,
        lambda: _read_at_deletion(trial, lambda: journal.delete_whole_run(run), blobs=True),
        most=_MEETINGS,
    )
