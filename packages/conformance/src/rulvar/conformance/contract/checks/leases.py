"""Leases: granted, held, renewed, given back, and numbered for ever (family L)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Level, Reach, Section
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.interleave import Crossing, cross
from rulvar.core.capabilities import has_lease_admin
from rulvar.core.errors import LeaseHeldError
from rulvar.core.records import RUN_STATUSES, Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import Trial
    from rulvar.conformance.harness.interleave import Ending
    from rulvar.core.records import JournalRecord
    from rulvar.core.stores import Stores

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.LEASABLE, source="LeasableStore")


def _try_acquire(actor: Actor, run_id: str, owner: str) -> Callable[[], Lease | None]:
    def attempt() -> Lease | None:
        try:
            return actor.journal.acquire(run_id, owner)
        except LeaseHeldError:
            return None  # the other one was first

    return attempt


@CLAUSES.clause("L-grant", "acquire grants the run that was asked for, to who asked.")
def _grant(trial: Trial) -> None:
    run = trial.run_id()
    lease = trial.actor("worker").acquire(run)
    trial.require(isinstance(lease, Lease), "a Lease", lease)
    trial.equal("its run and owner", (lease.run_id, lease.owner), (run, "worker"))
    trial.require(type(lease.epoch) is int and lease.epoch >= 1, "a positive epoch", lease.epoch)


@CLAUSES.clause("L-exclusive", "While a lease is live nobody else is granted the run.")
def _exclusive(trial: Trial) -> None:
    run = trial.run_id()
    first, second = trial.actor("first"), trial.actor("second")
    lease = first.acquire(run)
    second.refused("held").acquire(run)
    first.append(run, 0, lease=lease)
    first.renew(lease)
    second.refused("held").acquire(run)


@CLAUSES.clause("L-no-reentry", "The holder itself is refused while its lease is live.")
def _no_reentry(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    lease = worker.acquire(run)
    worker.refused("held").acquire(run)
    worker.append(run, 0, lease=lease)


@CLAUSES.clause("L-held-error", "The refusal of acquire names the run, and the true holder if any.")
def _held_error(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    lease = worker.acquire(run)
    try:
        worker.journal.acquire(run, "another")
    except LeaseHeldError as error:
        trial.equal("the reason", error.reason, "held")
        trial.equal("the run", error.run_id, run)
        trial.equal("whether a retry may succeed", error.retryable, True)
        trial.require(error.holder in {None, lease.owner}, "the holder or None", error.holder)
        trial.require(error.epoch in {None, lease.epoch}, "its epoch or None", error.epoch)
    else:
        trial.fail("LeaseHeldError", "it returned")


@CLAUSES.clause("L-dead-error", "The refusal of a write names the true holder and epoch, if any.")
def _dead_error(trial: Trial) -> None:
    run = trial.run_id()
    stalled, successor = trial.actor("stalled"), trial.actor("successor")
    dead = stalled.acquire(run)
    live = successor.take_over(dead)
    calls: dict[str, Callable[[], None]] = {
        "append": lambda: stalled.journal.append(run, record(0, trial.mark()), lease=dead),
        "renew": lambda: stalled.journal.renew(dead),
        "release": lambda: stalled.journal.release(dead),
    }
    for what, call in calls.items():
        try:
            call()
        except LeaseHeldError as error:
            trial.equal(f"the run of {what}'s error", error.run_id, run)
            trial.equal("whether a retry may succeed", error.retryable, False)
            trial.require(error.offered in {None, dead}, "the dead lease or None", error.offered)
            trial.require(error.holder in {None, live.owner}, "the holder or None", error.holder)
            trial.require(error.epoch in {None, live.epoch}, "its epoch or None", error.epoch)
        else:
            trial.fail(f"LeaseHeldError of {what}", "it returned")


@CLAUSES.clause("L-runs-apart", "The leases of two runs have nothing to do with each other.")
def _runs_apart(trial: Trial) -> None:
    one, two = trial.run_id("one"), trial.run_id("two")
    worker = trial.actor("worker")
    first, second = worker.acquire(one), worker.acquire(two)
    worker.release(first)
    worker.append(two, 0, lease=second)
    worker.renew(second)
    again = worker.acquire(one)
    worker.delete(two)
    worker.append(one, 0, lease=again)


@CLAUSES.clause("L-value", "A lease is a value: an equal one, made anew, is the same lease.")
def _value(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    lease = worker.acquire(run)
    copy = Lease(run_id="".join(lease.run_id), owner=lease.owner, epoch=int(str(lease.epoch)))
    worker.append(run, 0, lease=copy)
    worker.renew(replace(lease))
    worker.release(copy)
    worker.refused("released").append(run, 1, lease=lease)


@CLAUSES.clause(
    "L-value-travels",
    "A lease granted on one handle is honoured on another.",
    reach=Reach.PROCESS,
)
def _travels(trial: Trial) -> None:
    run = trial.run_id()
    one, other = trial.actor("one"), trial.actor("other", trial.reopen())
    lease = one.acquire(run)
    other.append(run, 0, lease=lease)
    other.renew(lease)
    other.refused("held").acquire(run)
    other.release(lease)
    one.refused("released").append(run, 1, lease=lease)


@CLAUSES.clause("L-release", "After a release the run is free at once.")
def _release(trial: Trial) -> None:
    run = trial.run_id()
    first, second = trial.actor("first"), trial.actor("second")
    lease = first.acquire(run)
    first.release(lease)
    later = second.acquire(run)
    second.append(run, 0, lease=later)
    first.refused("superseded").release(lease)


# --- epochs ---------------------------------------------------------------------------------


@CLAUSES.clause(
    "L-epoch",
    "Every grant has a higher epoch than the run id has ever had: after a release, a deletion, "
    "a recreation, whatever other runs do, and while the clock stands still or goes back.",
    source="Epochs",
    moves_clock=True,
)
def _epoch(trial: Trial) -> None:
    run, other, third = trial.run_id(), trial.run_id("other"), trial.run_id("third")
    worker = trial.actor("worker")
    highest: dict[str, int] = {}

    def grant(run_id: str) -> Lease:
        lease = worker.acquire(run_id)
        trial.require(
            lease.epoch > highest.get(run_id, 0),
            f"an epoch above {highest.get(run_id, 0)} for {run_id!r}",
            lease.epoch,
        )
        highest[run_id] = lease.epoch
        return lease

    for _ in range(3):
        if trial.place.clock is not None:
            trial.place.clock.set(trial.place.clock.now_ms() - 3_600_000)
        worker.release(grant(run))
        lease = grant(run)
        worker.append(run, 0, lease=lease)
        worker.delete(run)
        worker.release(grant(other))
        worker.delete(other)
        worker.delete(run)
        lease = grant(run)
        if trial.claims(Level.FENCED):
            worker.delete(run, lease=lease)
        else:
            worker.release(lease)
        worker.release(grant(third))
        worker.delete(third)
        worker.append(run, 0)
        worker.put_meta(run)
        worker.delete(run)
        worker.release(grant(other))


@CLAUSES.clause(
    "L-epoch-reopen",
    "Closing and opening the store loses no epoch.",
    source="Epochs",
    reach=Reach.PROCESS,
)
def _epoch_reopen(trial: Trial) -> None:
    run, gone = trial.run_id(), trial.run_id("gone")
    worker = trial.actor("worker")
    for _ in range(3):
        worker.release(worker.acquire(run))
    before = worker.acquire(run)
    worker.release(before)
    deleted = worker.acquire(gone)
    worker.append(gone, 0, lease=deleted)
    worker.delete(gone)
    trial.stores.close()
    later = trial.actor("later", trial.reopen())
    trial.require(later.acquire(run).epoch > before.epoch, "a higher epoch", before.epoch)
    trial.require(later.acquire(gone).epoch > deleted.epoch, "a higher epoch", deleted.epoch)


@CLAUSES.clause(
    "L-epoch-expiry",
    "A grant after an expiry has a higher epoch.",
    source="Epochs",
    timed=True,
)
def _epoch_expiry(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    first = worker.acquire(run)
    trial.expire()
    second = worker.acquire(run)
    trial.require(second.epoch > first.epoch, "a higher epoch", second.epoch)


@CLAUSES.clause("L-one-wins", "Of several that acquire a run at once exactly one is granted it.")
def _one_wins(trial: Trial) -> None:
    run = trial.run_id()
    trial.knows(run)
    epochs: list[int] = []
    for number in range(12):
        rivals = [_try_acquire(trial.actor("rival"), run, f"rival-{number}-{n}") for n in range(6)]
        won = [lease for lease in trial.together(rivals) if lease is not None]
        trial.equal("how many were granted the run", len(won), 1)
        epochs.append(won[0].epoch)
        trial.actor("winner").release(won[0])
    trial.equal("the epochs", epochs, sorted(set(epochs)))
    cross(trial, lambda: _acquire_the_same(trial, run))


def _acquire_the_same(trial: Trial, run: str) -> Crossing:
    one, other = trial.actor("one"), trial.actor("other", trial.another_handle())

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            trial.require(ending.returned, "it is granted or refused", ending.words())
        won = [end.value for end in (first, second) if isinstance(end.value, Lease)]
        trial.equal(f"how many were granted the run ({where})", len(won), 1)
        trial.actor("winner").release(won[0])

    return Crossing(_try_acquire(one, run, "one"), _try_acquire(other, run, "other"), judge)


@CLAUSES.clause(
    "L-one-wins-handles",
    "So too when each of them has a handle of its own.",
    reach=Reach.PROCESS,
)
def _one_wins_handles(trial: Trial) -> None:
    run = trial.run_id()
    trial.knows(run)
    actors = [trial.actor(f"rival-{n}", trial.reopen()) for n in range(3)]
    epochs: list[int] = []
    for _ in range(8):
        won = trial.together([_try_acquire(actor, run, actor.name) for actor in actors])
        winners = [lease for lease in won if lease is not None]
        trial.equal("how many were granted the run", len(winners), 1)
        epochs.append(winners[0].epoch)
        actors[0].release(winners[0])
    trial.equal("the epochs", epochs, sorted(set(epochs)))


# --- time -----------------------------------------------------------------------------------


@CLAUSES.clause("L-expiry", "A lease that is not renewed ends, and the run is free.", timed=True)
def _expiry(trial: Trial) -> None:
    run = trial.run_id()
    first, second = trial.actor("first"), trial.actor("second")
    lease = first.acquire(run)
    second.refused("held").acquire(run)
    trial.expire()
    first.refused("expired").append(run, 0, lease=lease)
    later = second.acquire(run)
    second.append(run, 0, lease=later)


@CLAUSES.clause(
    "L-boundary",
    "A lease is live for the whole of its time, and dead at the very millisecond of its expiry.",
    source="Live leases",
    timed=True,
)
def _boundary(trial: Trial) -> None:
    run = trial.run_id()
    first, second = trial.actor("first"), trial.actor("second")
    lease = first.acquire(run)
    if trial.waits:
        trial.expire()
        first.refused("expired").renew(lease)
        second.acquire(run)
        return
    trial.pass_ms(trial.lease_ttl_ms - 1)
    first.append(run, 0, lease=lease)
    second.refused("held").acquire(run)
    trial.pass_ms(1)
    first.refused("expired").append(run, 1, lease=lease)
    first.refused("expired").renew(lease)
    first.refused("expired").release(lease)
    if has_lease_admin(trial.stores.journal):
        info = trial.stores.journal.get_lease(run)
        trial.require(info is None or not info.live, "a dead lease row, or none", info)
    second.acquire(run)


@CLAUSES.clause("L-renew", "A renewal extends the lease to its full time from then on.", timed=True)
def _renew(trial: Trial) -> None:
    run = trial.run_id()
    worker, other = trial.actor("worker"), trial.actor("other")
    lease = worker.acquire(run)
    part = trial.lease_ttl_ms // 2
    for seq in range(4):
        trial.pass_ms(part)
        worker.renew(lease)
        other.refused("held").acquire(run)
        worker.append(run, seq, lease=lease)
    trial.expire()
    worker.refused("expired").append(run, 9, lease=lease)


@CLAUSES.clause(
    "L-renew-exact",
    "A renewal counts from now: it neither adds up nor keeps the old expiry.",
    timed=True,
)
def _renew_exact(trial: Trial) -> None:
    run = trial.run_id()
    worker, other = trial.actor("worker"), trial.actor("other")
    lease = worker.acquire(run)
    for _ in range(4):
        worker.renew(lease)
    if not trial.waits:
        trial.pass_ms(trial.lease_ttl_ms // 2)
        worker.renew(lease)
        trial.pass_ms(trial.lease_ttl_ms - 1)
        worker.append(run, 0, lease=lease)
        trial.pass_ms(1)
    else:
        trial.expire()
    worker.refused("expired").append(run, 1, lease=lease)
    other.acquire(run)


@CLAUSES.clause(
    "L-only-renewal",
    "Nothing but a renewal extends a lease: no append, no row, no reading.",
    timed=True,
    strength="SHOULD",
)
def _only_renewal(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    lease = worker.acquire(run)
    trial.pass_ms(trial.lease_ttl_ms // 2)
    worker.append(run, 0, lease=lease)
    worker.put_meta(run, lease=lease if trial.claims(Level.FENCED) else None)
    trial.pass_ms(trial.lease_ttl_ms - trial.lease_ttl_ms // 2 + (25 if trial.waits else 0))
    worker.refused("expired").append(run, 1, lease=lease)


@CLAUSES.clause(
    "L-lives-on", "Nothing that its holder writes ends a lease, a row of whatever status neither."
)
def _lives_on(trial: Trial) -> None:
    run = trial.run_id()
    worker, other = trial.actor("worker"), trial.actor("other")
    lease = worker.acquire(run)
    fenced = lease if trial.claims(Level.FENCED) else None
    for seq, status in enumerate((*RUN_STATUSES, "a status of tomorrow", *RUN_STATUSES)):
        worker.append(run, seq, lease=lease)
        worker.put_meta(run, lease=fenced, status=status)
        if trial.claims(Level.FENCED_PAIR):
            worker.put(f"{run}/turn", lease=lease)
            worker.delete_blob(f"{run}/turn", lease=lease)
        worker.renew(lease)
        other.refused("held").acquire(run)
    worker.release(lease)


# --- readers --------------------------------------------------------------------------------


@CLAUSES.clause(
    "L-refused-unseen",
    "No reader ever sees what the fence refuses, not for a moment.",
    source="Fence table",
)
def _unseen(trial: Trial) -> None:
    run = trial.run_id()
    stalled, successor = trial.actor("stalled"), trial.actor("successor")
    dead = stalled.acquire(run)
    live = successor.take_over(dead)
    written = successor.append(run, 0, lease=live)
    stores = trial.stores if trial.place.reach is Reach.OBJECT else trial.reopen()
    stop = threading.Event()

    def strike() -> None:
        try:
            for seq in range(1, 120):
                try:
                    stalled.journal.append(run, record(seq, trial.mark(), filling=5000), lease=dead)
                except LeaseHeldError:
                    continue  # as it must be
                trial.fail("LeaseHeldError", "the append returned")
        finally:
            stop.set()

    def read() -> None:
        while not stop.is_set():
            found = tuple(stores.journal.load(run))
            trial.equal("the journal that a reader sees", found, (written,))

    trial.together([strike, read, read])
    cross(trial, lambda: _read_at_refusal(trial, stores, dead, written))


def _read_at_refusal(trial: Trial, stores: Stores, dead: Lease, written: JournalRecord) -> Crossing:
    journal, run = trial.stores.journal, dead.run_id
    refused = record(written.seq + 1, trial.mark(), filling=300)

    def judge(append: Ending, read: Ending, where: str) -> None:
        trial.require(
            isinstance(append.error, LeaseHeldError),
            "LeaseHeldError",
            f"{append.words()} ({where})",
        )
        if read.error is not None:
            trial.fail("the journal can be read", f"{read.words()} ({where})")
        unseen = tuple(read.value) == (written,)  # type: ignore[arg-type]
        trial.require(unseen, "what was there before", f"{read.value} ({where})")

    return Crossing(
        lambda: journal.append(run, refused, lease=dead),  # type: ignore[call-arg]
        lambda: stores.journal.load(run),
        judge,
    )
