"""What operators do with leases: look at them, seize, raise a floor, revive (family L)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.records import Lease, RunMeta

if TYPE_CHECKING:
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.LEASABLE, source="LeaseAdmin, LeaseBatch, EpochFloor, LeaseRevival")


@CLAUSES.clause(
    "L-admin",
    "get_lease and list_leases show every lease row as it is, in pages.",
    source="LeaseAdmin",
    capability="LeaseAdmin",
)
def _admin(check: CheckContext) -> None:
    worker = check.actor("worker")
    runs = [check.run_id(name) for name in ("a", "B", "\u00e9", "c")]
    leases = {run: worker.acquire(run) for run in runs}
    free = check.run_id("free")
    check.equal("the lease of a run without one", worker.journal.get_lease(free), None)
    worker.release(worker.acquire(free))
    for run, lease in leases.items():
        info = worker.journal.get_lease(run)
        if info is None:
            check.fail(f"a lease row of {run!r}", "None")
        check.equal("its owner and epoch", (info.owner, info.epoch), (lease.owner, lease.epoch))
        check.equal("whether it is live", info.live, True)
    for limit in (1, 3, 1000):
        found, after = [], min(runs)[:-1]
        while True:
            page = list(worker.journal.list_leases(after, limit))
            check.require(len(page) <= limit, f"at most {limit}", len(page))
            found += [info.run_id for info in page if info.run_id in leases and info.live]
            if len(page) < limit:
                break
            after = page[-1].run_id
        check.equal(f"the runs in pages of {limit}", found, sorted(runs))
    for wrong in ((None, 0), ("", 1), ("a/b", 1)):
        worker.raising(ConfigError).call(
            f"list_leases{wrong}",
            lambda each=wrong: worker.journal.list_leases(*each),  # type: ignore[misc]
        )


@CLAUSES.clause(
    "L-seize",
    "seize grants a higher epoch though a lease is live, which is dead from then on.",
    source="LeaseAdmin",
    capability="LeaseAdmin",
)
def _seize(check: CheckContext) -> None:
    run = check.run_id()
    stalled, operator = check.actor("stalled"), check.actor("operator")
    dead = stalled.acquire(run)
    live = operator.seize(run)
    check.require(live.epoch > dead.epoch, "a higher epoch", live.epoch)
    check.equal("its run and owner", (live.run_id, live.owner), (run, "operator"))
    stalled.refused("superseded").append(run, 0, lease=dead)
    stalled.refused("superseded").renew(dead)
    stalled.refused("superseded").release(dead)
    operator.append(run, 0, lease=live)
    stalled.refused("held").acquire(run)
    again = operator.seize(run)
    check.require(again.epoch > live.epoch, "a higher epoch", again.epoch)
    operator.refused("superseded").append(run, 1, lease=live)
    fresh = check.run_id("fresh")
    operator.append(fresh, 0, lease=operator.seize(fresh))


@CLAUSES.clause(
    "L-seize-over",
    "seize with over takes the run from exactly that lease, live or expired, and from no other.",
    source="LeaseAdmin",
    capability="LeaseAdmin",
    timed=True,
)
def _seize_over(check: CheckContext) -> None:
    run, free, never = check.run_id(), check.run_id("free"), check.run_id("never")
    gone, first, second = check.actor("gone"), check.actor("first"), check.actor("second")
    dead = gone.acquire(run)
    gone.append(run, 0, lease=dead)
    live = first.seize(run, over=dead)
    check.require(live.epoch > dead.epoch, "a higher epoch", live.epoch)
    gone.refused("superseded").append(run, 1, lease=dead)
    # The second has proved the same death, and must leave the first alone.
    second.refused("superseded").seize(run, over=dead)
    first.append(run, 1, lease=live)
    for other in (replace(live, owner="gone"), replace(live, epoch=live.epoch + 1), dead):
        second.refused("superseded").seize(run, over=other)
    second.refused("foreign-run").seize(free, over=live)
    ended = first.acquire(free)
    first.release(ended)
    second.refused("superseded").seize(free, over=ended)
    second.refused("superseded").seize(never, over=replace(ended, run_id=never))
    first.append(run, 2, lease=live)
    check.expire()
    later = second.seize(run, over=live)
    check.require(later.epoch > live.epoch, "a higher epoch", later.epoch)
    second.append(run, 3, lease=later)


@CLAUSES.clause(
    "L-seize-over-meets",
    "Of several that seize over the same lease at once exactly one is granted the run.",
    source="LeaseAdmin",
    capability="LeaseAdmin",
)
def _seize_over_meets(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    interleave(check, lambda: _seize_the_same(check, run))


def _seize_the_same(check: CheckContext, run: str) -> Interleaving:
    one, other = check.actor("one"), check.actor("other", check.another_handle())
    dead = one.seize(run, "gone")

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            refused = isinstance(ending.error, LeaseHeldError)
            check.require(
                ending.returned or refused, f"it is granted or refused ({where})", ending.words()
            )
        won = [end.value for end in (first, second) if isinstance(end.value, Lease)]
        check.equal(f"how many were granted the run ({where})", len(won), 1)
        one.renew(won[0])

    return Interleaving(
        lambda: one.journal.seize(run, "one", over=dead),
        lambda: other.journal.seize(run, "other", over=dead),
        judge,
    )


@CLAUSES.clause(
    "L-batch",
    "renew_all renews every live lease, and returns a refusal for each dead one, in order.",
    source="LeaseBatch",
    capability="LeaseBatch",
    timed=True,
)
def _batch(check: CheckContext) -> None:
    worker, other = check.actor("worker"), check.actor("other")
    names = ("first", "taken", "second", "released", "third", "gone")
    runs = {name: check.run_id(name) for name in names}
    leases = {name: worker.acquire(run) for name, run in runs.items()}
    check.equal("what is refused of none", worker.renew_all(), [])
    check.equal("what is refused of live ones", worker.renew_all(*leases.values()), [])
    successor = other.take_over(leases["taken"])
    worker.release(leases["released"])
    worker.delete(runs["gone"])
    forged = replace(leases["third"], owner="another")
    unknown = Lease(run_id=check.run_id("never"), owner="x", epoch=1)
    part = check.lease_ttl_ms // 2
    for _ in range(3):
        check.pass_ms(part)
        other.renew(successor)
        refused = worker.renew_all(*leases.values(), forged, unknown)
        expected = [
            (leases["taken"], "superseded"),
            (leases["released"], "released"),
            (leases["gone"], "released"),
            (forged, "unknown"),
            (unknown, "unknown"),
        ]
        check.equal("what is refused", refused, expected)
    for name in ("first", "second", "third"):
        other.refused("held").acquire(runs[name])
        worker.append(runs[name], 0, lease=leases[name])
    other.append(runs["taken"], 0, lease=successor)
    worker.raising(ConfigError).call(
        "renew_all(None among them)",
        lambda: worker.journal.renew_all([leases["first"], None]),  # type: ignore[list-item]
    )
    check.expire()
    late = [leases["first"], leases["second"]]
    refused = worker.renew_all(*late)
    check.equal("what is refused", refused, [(lease, "expired") for lease in late])
    other.acquire(runs["first"])


@CLAUSES.clause(
    "L-batch-atomic",
    "No owner can take a run over between the check and the write of a renewal of many.",
    source="One unit",
    capability="LeaseBatch",
)
def _batch_atomic(check: CheckContext) -> None:
    interleave(check, lambda: _renew_and_take(check))


def _renew_and_take(check: CheckContext) -> Interleaving:
    run, beside = check.run_id(), check.run_id("beside")
    check.knows(run)
    check.knows(beside)
    worker, other = check.actor("worker"), check.actor("other", check.another_handle())
    worker.journal.delete(run)
    worker.journal.delete(beside)
    leases = [worker.acquire(run), worker.acquire(beside)]

    def take() -> Lease:
        other.journal.release(leases[0])
        return other.journal.acquire(run, "successor")

    def judge(renewed: Ending, taken: Ending, where: str) -> None:
        for ending in (renewed, taken):
            check.require(ending.returned, f"it returns ({where})", ending.words())
        live = taken.value
        if isinstance(live, Lease):
            # A renewal that wrote what it had checked before would have ended the successor.
            other.renew(live)
        worker.renew(leases[1])

    return Interleaving(lambda: worker.journal.renew_all(leases), take, judge)


@CLAUSES.clause(
    "L-floor",
    "raise_epoch ends the lease, and no epoch up to it is granted any more.",
    source="EpochFloor",
    capability="EpochFloor",
)
def _floor(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    floor = lease.epoch + 1000
    row = RunMeta(run_id=run, status="running", updated_at="2026-01-02T03:04:05.678Z")
    worker.put_row(row)
    worker.call(f"raise_epoch({run!r}, {floor})", lambda: worker.journal.raise_epoch(run, floor))
    worker.refused("superseded").append(run, 0, lease=lease)
    forged = replace(lease, epoch=floor)
    worker.refused("released").append(run, 0, lease=forged)
    rows = worker.call("list_runs()", worker.journal.list_runs)
    check.equal("the row", [each for each in rows if each.run_id == run], [row])
    later = worker.acquire(run)
    check.require(later.epoch > floor, f"an epoch above {floor}", later.epoch)
    worker.call(f"raise_epoch({run!r}, 1)", lambda: worker.journal.raise_epoch(run, 1))
    worker.refused("released").append(run, 0, lease=later)
    last = worker.acquire(run)
    check.require(last.epoch > later.epoch, "the floor never sinks", last.epoch)
    fresh = check.run_id("fresh")
    worker.call("raise_epoch(5)", lambda: worker.journal.raise_epoch(fresh, 5))
    check.require(worker.acquire(fresh).epoch > 5, "an epoch above 5", "less")  # noqa: PLR2004
    for wrong in (-1, 2**53, True, 1.5, None):
        worker.raising(ConfigError).call(
            f"raise_epoch({wrong!r})",
            lambda each=wrong: worker.journal.raise_epoch(run, each),  # type: ignore[misc]
        )


@CLAUSES.clause(
    "L-revive",
    "revive grants the next epoch to the holder of an expired lease that no later one passed.",
    source="LeaseRevival",
    capability="LeaseRevival",
    timed=True,
)
def _revive(check: CheckContext) -> None:
    run = check.run_id()
    worker, other = check.actor("worker"), check.actor("other")
    lease = worker.acquire(run)
    worker.append(run, 0, lease=lease)
    check.expire()
    later = worker.revive(lease)
    check.equal("the lease", later, replace(lease, epoch=lease.epoch + 1))
    worker.append(run, 1, lease=later)
    other.refused("held").acquire(run)
    worker.refused("superseded").revive(lease)
    worker.refused("superseded").append(run, 2, lease=lease)


@CLAUSES.clause(
    "L-revive-refused",
    "revive refuses every other lease with its reason, and changes nothing.",
    source="LeaseRevival",
    capability="LeaseRevival",
    timed=True,
)
def _revive_refused(check: CheckContext) -> None:
    run, free, gone = check.run_id(), check.run_id("free"), check.run_id("gone")
    worker, other = check.actor("worker"), check.actor("other")
    taken = worker.acquire(run)
    released = worker.acquire(free)
    worker.release(released)
    deleted = worker.acquire(gone)
    worker.delete(gone)
    check.expire()
    live = other.acquire(run)
    worker.refused("superseded").revive(taken)
    worker.refused("released").revive(released)
    worker.refused("released").revive(deleted)
    worker.refused("unknown").revive(replace(live, owner="worker"))
    worker.refused("unknown").revive(replace(live, epoch=live.epoch + 1))
    worker.refused("unknown").revive(Lease(run_id=check.run_id("never"), owner="x", epoch=1))
    other.refused("held").revive(live)
    other.append(run, 0, lease=live)


@CLAUSES.clause(
    "L-grants-meet",
    "Grants that meet have epochs of their own, and the highest is the live one.",
    source="LeaseAdmin",
    capability="LeaseAdmin",
)
def _grants_meet(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    interleave(check, lambda: _seize_both(check, run))


def _seize_both(check: CheckContext, run: str) -> Interleaving:
    one, other = check.actor("one"), check.actor("other", check.another_handle())
    found = one.journal.load(run)
    seq = found[-1].seq + 1 if found else 0

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            check.require(ending.returned, f"it is granted ({where})", ending.words())
        granted = [end.value for end in (first, second) if isinstance(end.value, Lease)]
        epochs = sorted(lease.epoch for lease in granted)
        check.equal(f"how many epochs were granted ({where})", len(set(epochs)), 2)
        lower, higher = sorted(granted, key=lambda lease: lease.epoch)
        one.refused("superseded").append(run, seq, lease=lower)
        one.append(run, seq, lease=higher)

    return Interleaving(
        lambda: one.journal.seize(run, "one"), lambda: other.journal.seize(run, "other"), judge
    )


@CLAUSES.clause(
    "L-revive-meets",
    "Of a revival and an acquire that meet exactly one is granted.",
    source="LeaseRevival",
    capability="LeaseRevival",
    timed=True,
)
def _revive_meets(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    interleave(check, lambda: _revive_and_acquire(check, run), most=4 if check.waits else 40)


def _revive_and_acquire(check: CheckContext, run: str) -> Interleaving:
    worker, other = check.actor("worker"), check.actor("other", check.another_handle())
    worker.journal.delete(run)
    lease = worker.acquire(run)
    check.expire()

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            refused = isinstance(ending.error, LeaseHeldError)
            check.require(
                ending.returned or refused, f"it is granted or refused ({where})", ending.words()
            )
        won = [end.value for end in (first, second) if isinstance(end.value, Lease)]
        check.equal(f"how many were granted the run ({where})", len(won), 1)
        worker.append(run, 0, lease=won[0])

    return Interleaving(
        lambda: worker.journal.revive(lease), lambda: other.journal.acquire(run, "other"), judge
    )
