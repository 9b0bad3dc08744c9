"""Deletion: promise D1, and deleting a run with its blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.conformance.harness.state import RunState, read_run
from rulvar.core.records import RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending
    from rulvar.core.records import JournalRecord, Lease

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="D1")

_MEETINGS = 30
"""How often a deletion is met by a reader: each time a whole run is written before."""


def _fill(check: CheckContext, worker: Actor, run_id: str) -> None:
    for seq in range(3):
        worker.append(run_id, seq)
    worker.put_meta(run_id)
    if check.has_blobs:
        worker.put(f"{run_id}/turn")
        worker.put(f"{run_id}/a/b")


@CLAUSES.clause("D1-removes", "delete removes the journal and the row, and nothing of other runs.")
def _removes(check: CheckContext) -> None:
    run = check.run_id("run")
    neighbours = [check.run_id(name) for name in _NEAR]
    worker = check.actor("worker")
    for each in (run, *neighbours):
        _fill(check, worker, each)
        if check.claims(Level.LEASABLE):
            worker.acquire(each)
    _delete_alone(check, worker, run, None)
    if check.claims(Level.FENCED):
        _fill(check, worker, run)
        _delete_alone(check, worker, run, worker.acquire(run))


_NEAR = ("run2", "run.1", "ru", "Run", "run%", "ru_")


def _delete_alone(check: CheckContext, worker: Actor, run: str, lease: Lease | None) -> None:
    before = check.snapshot()
    worker.delete(run, lease=lease)
    blobs = before[run].blobs
    check.equal(
        "what is left of everything", check.snapshot(), before | {run: RunState(blobs=blobs)}
    )
    check.require(
        all(row.run_id != run for row in worker.journal.list_runs(None)), "no row", "a row"
    )


@CLAUSES.clause("D1-one-step", "A reader sees a run before its deletion or after it, never half.")
def _one_step(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")

    def delete() -> None:
        worker.journal.delete(run)

    interleave(check, lambda: _read_at_deletion(check, delete, blobs=False), most=_MEETINGS)
    for _ in range(5):
        written = [worker.append(run, seq, filling=1000) for seq in range(20)]
        check.together([lambda: worker.journal.delete(run), *[_watch(check, run, written)] * 3])


def _watch(check: CheckContext, run: str, written: list[JournalRecord]) -> Callable[[], None]:
    def watch() -> None:
        found = tuple(written)
        while found:
            found = tuple(check.stores.journal.load(run))
            check.require(
                found in {(), tuple(written)},
                "the whole journal or none",
                f"{len(found)} of {len(written)} records",
            )

    return watch


def _read_at_deletion(
    check: CheckContext, delete: Callable[[], object], *, blobs: bool
) -> Interleaving:
    run = check.run_id()
    worker, reader = check.actor("worker"), check.another_handle()
    _fill(check, worker, run)
    if check.claims(Level.LEASABLE):
        worker.journal.acquire(run, "worker")
    before = check.state_of(run)
    after = RunState() if blobs else RunState(blobs=before.blobs)

    def read() -> RunState:
        return read_run(reader, run, blobs=check.has_blobs)

    def judge(deletion: Ending, reading: Ending, where: str) -> None:
        for ending in (deletion, reading):
            check.require(ending.returned, "the call returns", ending.words())
        # A reading that went on while the deletion did may have begun before it.
        if reading.inside and reading.value not in (before, after):
            check.fail(
                f"all of the run or nothing of it ({where})",
                "a part of it",
                before={run: before},
                after={run: cast("RunState", reading.value)},
            )

    return Interleaving(delete, read, judge)


@CLAUSES.clause("D1-unknown", "Deleting an unknown run, or one again, does nothing.")
def _unknown(check: CheckContext) -> None:
    run, other = check.run_id(), check.run_id("other")
    worker = check.actor("worker")
    _fill(check, worker, other)
    check.knows(run)
    before = check.snapshot()
    worker.delete(run)
    check.equal("the state", check.snapshot(), before)
    worker.append(run, 0)
    worker.delete(run)
    worker.delete(run)
    check.equal("the state", check.snapshot(), before)


@CLAUSES.clause("D1-blobs", "delete touches no blob.", level=Level.TRANSCRIPTS)
def _blobs(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    blob = worker.put(f"{run}/turn")
    if check.has_journal:
        worker.append(run, 0)
        worker.put_meta(run)
        worker.delete(run)
    check.equal("the blob", worker.get(f"{run}/turn"), blob)
    check.equal("the refs", worker.list_refs(run), (f"{run}/turn",))


@CLAUSES.clause("D1-again", "A recreated run sees neither journal nor row of the old one.")
def _again(check: CheckContext) -> None:
    worker = check.actor("worker")
    for run, lease in check.tenures(worker, Level.FENCED):
        _recreate(check, worker, run, lease)


def _recreate(check: CheckContext, worker: Actor, run: str, lease: Lease | None) -> None:
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
    check.equal("the journal", worker.load(run), (first,))
    check.require(
        all(row.run_id != run for row in worker.journal.list_runs(None)), "no row", "a row"
    )
    meta = worker.put_meta(run)
    rows = [row for row in worker.journal.list_runs(None) if row.run_id == run]
    check.equal("the row", rows, [meta])


@CLAUSES.clause(
    "D1-lease",
    "delete ends the lease of any holder, and the run is free.",
    level=Level.LEASABLE,
)
def _lease(check: CheckContext) -> None:
    run = check.run_id()
    owner, bare = check.actor("owner"), check.actor("bare")
    lease = owner.acquire(run)
    owner.append(run, 0, lease=lease)
    bare.delete(run)
    owner.refused("released").append(run, 1, lease=lease)
    owner.refused("released").renew(lease)
    later = bare.acquire(run)
    check.require(later.epoch > lease.epoch, "a higher epoch", later.epoch)
    check.equal("the journal", bare.load(run), ())


@CLAUSES.clause(
    "D1-own-lease", "A deletion under the live lease ends that lease.", level=Level.FENCED
)
def _own_lease(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    worker.append(run, 0, lease=lease)
    worker.put_meta(run, lease=lease)
    worker.delete(run, lease=lease)
    check.equal("the journal", worker.load(run), ())
    for _ in range(2):
        worker.refused("released").append(run, 0, lease=lease)
        worker.refused("released").delete(run, lease=lease)
    check.require(worker.acquire(run).epoch > lease.epoch, "a higher epoch", lease.epoch)


@CLAUSES.clause(
    "D-whole",
    "delete_whole_run removes journal, row, lease and blobs, and of this run alone.",
    source="WholeRunDelete",
    level=Level.TRANSCRIPTS,
    capability="WholeRunDelete",
)
def _whole(check: CheckContext) -> None:
    run = check.run_id("run")
    neighbours = [check.run_id(name) for name in _NEAR]
    worker = check.actor("worker")
    for each in (run, *neighbours):
        _fill(check, worker, each)
    leases = check.claims(Level.LEASABLE)
    if check.claims(Level.FENCED_PAIR):
        under = worker.acquire(run)
        before = check.snapshot()
        worker.delete_whole_run(run, lease=under)
        check.equal("what is left of everything", check.snapshot(), before | {run: RunState()})
        _fill(check, worker, run)
    lease = worker.acquire(run) if leases else None
    before = check.snapshot()
    worker.delete_whole_run(run)
    check.equal("what is left of everything", check.snapshot(), before | {run: RunState()})
    worker.delete_whole_run(run)
    worker.delete_whole_run(check.run_id("unknown"))
    if lease is not None:
        worker.refused("released").append(run, 0, lease=lease)
        check.require(worker.acquire(run).epoch > lease.epoch, "a higher epoch", lease.epoch)
    first = worker.append(run, 0)
    check.equal("the journal of the recreated run", worker.load(run), (first,))


@CLAUSES.clause(
    "D-whole-one-step",
    "A reader sees a run with its blobs before delete_whole_run or nothing of it after.",
    source="WholeRunDelete",
    level=Level.TRANSCRIPTS,
    capability="WholeRunDelete",
)
def _whole_one_step(check: CheckContext) -> None:
    run = check.run_id()
    journal = check.actor("worker").journal
    interleave(
        check,
        lambda: _read_at_deletion(check, lambda: journal.delete_whole_run(run), blobs=True),
        most=_MEETINGS,
    )
