"""Leases: granted, held, renewed, given back, and numbered for ever (family L)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.capabilities import has_lease_admin
from rulvar.core.errors import LeaseHeldError
from rulvar.core.records import RUN_STATUSES, Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
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
def _grant(check: CheckContext) -> None:
    run = check.run_id()
    lease = check.actor("worker").acquire(run)
    check.require(isinstance(lease, Lease), "a Lease", lease)
    check.equal("its run and owner", (lease.run_id, lease.owner), (run, "worker"))
    check.require(type(lease.epoch) is int and lease.epoch >= 1, "a positive epoch", lease.epoch)


@CLAUSES.clause("L-exclusive", "While a lease is live no other owner is granted the run.")
def _exclusive(check: CheckContext) -> None:
    run = check.run_id()
    first, second = check.actor("first"), check.actor("second")
    lease = first.acquire(run)
    second.refused("held").acquire(run)
    first.append(run, 0, lease=lease)
    first.renew(lease)
    second.refused("held").acquire(run)


@CLAUSES.clause("L-no-reentry", "The holder itself is refused while its lease is live.")
def _no_reentry(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    worker.refused("held").acquire(run)
    worker.append(run, 0, lease=lease)


@CLAUSES.clause("L-held-error", "The refusal of acquire names the run, and the true holder if any.")
def _held_error(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    try:
        worker.journal.acquire(run, "another")
    except LeaseHeldError as error:
        check.equal("the reason", error.reason, "held")
        check.equal("the run", error.run_id, run)
        check.equal("whether a retry may succeed", error.retryable, True)
        check.require(error.holder in {None, lease.owner}, "the holder or None", error.holder)
        check.require(error.epoch in {None, lease.epoch}, "its epoch or None", error.epoch)
    else:
        check.fail("LeaseHeldError", "it returned")


@CLAUSES.clause("L-dead-error", "The refusal of a write names the true holder and epoch, if any.")
def _dead_error(check: CheckContext) -> None:
    run = check.run_id()
    stalled, successor = check.actor("stalled"), check.actor("successor")
    dead = stalled.acquire(run)
    live = successor.take_over(dead)
    calls: dict[str, Callable[[], None]] = {
        "append": lambda: stalled.journal.append(run, record(0, check.mark()), lease=dead),
        "renew": lambda: stalled.journal.renew(dead),
        "release": lambda: stalled.journal.release(dead),
    }
    for what, call in calls.items():
        try:
            call()
        except LeaseHeldError as error:
            check.equal(f"the run of {what}'s error", error.run_id, run)
            check.equal("whether a retry may succeed", error.retryable, False)
            check.require(error.offered in {None, dead}, "the dead lease or None", error.offered)
            check.require(error.holder in {None, live.owner}, "the holder or None", error.holder)
            check.require(error.epoch in {None, live.epoch}, "its epoch or None", error.epoch)
        else:
            check.fail(f"LeaseHeldError of {what}", "it returned")


@CLAUSES.clause("L-runs-apart", "The leases of two runs have nothing to do with each other.")
def _runs_apart(check: CheckContext) -> None:
    one, two = check.run_id("one"), check.run_id("two")
    worker = check.actor("worker")
    first, second = worker.acquire(one), worker.acquire(two)
    worker.release(first)
    worker.append(two, 0, lease=second)
    worker.renew(second)
    again = worker.acquire(one)
    worker.delete(two)
    worker.append(one, 0, lease=again)


@CLAUSES.clause("L-value", "A lease is a value: an equal one, made anew, is the same lease.")
def _value(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    copy = Lease(run_id="".join(lease.run_id), owner=lease.owner, epoch=int(str(lease.epoch)))
    worker.append(run, 0, lease=copy)
    worker.renew(replace(lease))
    worker.release(copy)
    worker.refused("released").append(run, 1, lease=lease)


@CLAUSES.clause(
    "L-value-travels",
    "A lease granted on one handle is honoured on another.",
    sharing=Sharing.PROCESS,
)
def _travels(check: CheckContext) -> None:
    run = check.run_id()
    one, other = check.actor("one"), check.actor("other", check.reopen())
    lease = one.acquire(run)
    other.append(run, 0, lease=lease)
    other.renew(lease)
    other.refused("held").acquire(run)
    other.release(lease)
    one.refused("released").append(run, 1, lease=lease)


@CLAUSES.clause("L-release", "After a release the run is free at once.")
def _release(check: CheckContext) -> None:
    run = check.run_id()
    first, second = check.actor("first"), check.actor("second")
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
def _epoch(check: CheckContext) -> None:
    run, other, third = check.run_id(), check.run_id("other"), check.run_id("third")
    worker = check.actor("worker")
    highest: dict[str, int] = {}

    def grant(run_id: str) -> Lease:
        lease = worker.acquire(run_id)
        check.require(
            lease.epoch > highest.get(run_id, 0),
            f"an epoch above {highest.get(run_id, 0)} for {run_id!r}",
            lease.epoch,
        )
        highest[run_id] = lease.epoch
        return lease

    for _ in range(3):
        if check.place.clock is not None:
            check.place.clock.set(check.place.clock.now_ms() - 3_600_000)
        worker.release(grant(run))
        lease = grant(run)
        worker.append(run, 0, lease=lease)
        worker.delete(run)
        worker.release(grant(other))
        worker.delete(other)
        worker.delete(run)
        lease = grant(run)
        if check.claims(Level.FENCED):
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
    sharing=Sharing.PROCESS,
)
def _epoch_reopen(check: CheckContext) -> None:
    run, gone = check.run_id(), check.run_id("gone")
    worker = check.actor("worker")
    for _ in range(3):
        worker.release(worker.acquire(run))
    before = worker.acquire(run)
    worker.release(before)
    deleted = worker.acquire(gone)
    worker.append(gone, 0, lease=deleted)
    worker.delete(gone)
    check.stores.close()
    later = check.actor("later", check.reopen())
    check.require(later.acquire(run).epoch > before.epoch, "a higher epoch", before.epoch)
    check.require(later.acquire(gone).epoch > deleted.epoch, "a higher epoch", deleted.epoch)


@CLAUSES.clause(
    "L-epoch-expiry",
    "A grant after an expiry has a higher epoch.",
    source="Epochs",
    timed=True,
)
def _epoch_expiry(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    first = worker.acquire(run)
    check.expire()
    second = worker.acquire(run)
    check.require(second.epoch > first.epoch, "a higher epoch", second.epoch)


@CLAUSES.clause("L-one-wins", "Of several that acquire a run at once exactly one is granted it.")
def _one_wins(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    epochs: list[int] = []
    for number in range(12):
        rivals = [_try_acquire(check.actor("rival"), run, f"rival-{number}-{n}") for n in range(6)]
        won = [lease for lease in check.together(rivals) if lease is not None]
        check.equal("how many were granted the run", len(won), 1)
        epochs.append(won[0].epoch)
        check.actor("winner").release(won[0])
    check.equal("the epochs", epochs, sorted(set(epochs)))
    interleave(check, lambda: _acquire_the_same(check, run))


def _acquire_the_same(check: CheckContext, run: str) -> Interleaving:
    one, other = check.actor("one"), check.actor("other", check.another_handle())

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            check.require(ending.returned, "it is granted or refused", ending.words())
        won = [end.value for end in (first, second) if isinstance(end.value, Lease)]
        check.equal(f"how many were granted the run ({where})", len(won), 1)
        check.actor("winner").release(won[0])

    return Interleaving(_try_acquire(one, run, "one"), _try_acquire(other, run, "other"), judge)


@CLAUSES.clause(
    "L-one-wins-handles",
    "So too when each of them has its own handle.",
    sharing=Sharing.PROCESS,
)
def _one_wins_handles(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    actors = [check.actor(f"rival-{n}", check.reopen()) for n in range(3)]
    epochs: list[int] = []
    for _ in range(8):
        won = check.together([_try_acquire(actor, run, actor.name) for actor in actors])
        winners = [lease for lease in won if lease is not None]
        check.equal("how many were granted the run", len(winners), 1)
        epochs.append(winners[0].epoch)
        actors[0].release(winners[0])
    check.equal("the epochs", epochs, sorted(set(epochs)))


# --- time -----------------------------------------------------------------------------------


@CLAUSES.clause("L-expiry", "A lease that is not renewed ends, and the run is free.", timed=True)
def _expiry(check: CheckContext) -> None:
    run = check.run_id()
    first, second = check.actor("first"), check.actor("second")
    lease = first.acquire(run)
    second.refused("held").acquire(run)
    check.expire()
    first.refused("expired").append(run, 0, lease=lease)
    later = second.acquire(run)
    second.append(run, 0, lease=later)


@CLAUSES.clause(
    "L-boundary",
    "A lease is live for the whole of its time, and dead at the very millisecond of its expiry.",
    source="Live leases",
    timed=True,
)
def _boundary(check: CheckContext) -> None:
    run = check.run_id()
    first, second = check.actor("first"), check.actor("second")
    lease = first.acquire(run)
    if check.waits:
        check.expire()
        first.refused("expired").renew(lease)
        second.acquire(run)
        return
    check.pass_ms(check.lease_ttl_ms - 1)
    first.append(run, 0, lease=lease)
    second.refused("held").acquire(run)
    check.pass_ms(1)
    first.refused("expired").append(run, 1, lease=lease)
    first.refused("expired").renew(lease)
    first.refused("expired").release(lease)
    if has_lease_admin(check.stores.journal):
        info = check.stores.journal.get_lease(run)
        check.require(info is None or not info.live, "a dead lease row, or none", info)
    second.acquire(run)


@CLAUSES.clause("L-renew", "A renewal extends the lease to its full time from then on.", timed=True)
def _renew(check: CheckContext) -> None:
    run = check.run_id()
    worker, other = check.actor("worker"), check.actor("other")
    lease = worker.acquire(run)
    part = check.lease_ttl_ms // 2
    for seq in range(4):
        check.pass_ms(part)
        worker.renew(lease)
        other.refused("held").acquire(run)
        worker.append(run, seq, lease=lease)
    check.expire()
    worker.refused("expired").append(run, 9, lease=lease)


@CLAUSES.clause(
    "L-renew-exact",
    "A renewal counts from now: it neither adds up nor keeps the old expiry.",
    timed=True,
)
def _renew_exact(check: CheckContext) -> None:
    run = check.run_id()
    worker, other = check.actor("worker"), check.actor("other")
    lease = worker.acquire(run)
    for _ in range(4):
        worker.renew(lease)
    if not check.waits:
        check.pass_ms(check.lease_ttl_ms // 2)
        worker.renew(lease)
        check.pass_ms(check.lease_ttl_ms - 1)
        worker.append(run, 0, lease=lease)
        check.pass_ms(1)
    else:
        check.expire()
    worker.refused("expired").append(run, 1, lease=lease)
    other.acquire(run)


@CLAUSES.clause(
    "L-only-renewal",
    "Nothing but a renewal extends a lease: no append, no row, no reading.",
    timed=True,
    strength="SHOULD",
)
def _only_renewal(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    check.pass_ms(check.lease_ttl_ms // 2)
    worker.append(run, 0, lease=lease)
    worker.put_meta(run, lease=lease if check.claims(Level.FENCED) else None)
    check.pass_ms(check.lease_ttl_ms - check.lease_ttl_ms // 2 + (25 if check.waits else 0))
    worker.refused("expired").append(run, 1, lease=lease)


@CLAUSES.clause(
    "L-lives-on", "Nothing that its holder writes ends a lease, a row of whatever status neither."
)
def _lives_on(check: CheckContext) -> None:
    run = check.run_id()
    worker, other = check.actor("worker"), check.actor("other")
    lease = worker.acquire(run)
    fenced = lease if check.claims(Level.FENCED) else None
    for seq, status in enumerate((*RUN_STATUSES, "a status of tomorrow", *RUN_STATUSES)):
        worker.append(run, seq, lease=lease)
        worker.put_meta(run, lease=fenced, status=status)
        if check.claims(Level.FENCED_PAIR):
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
def _unseen(check: CheckContext) -> None:
    run = check.run_id()
    stalled, successor = check.actor("stalled"), check.actor("successor")
    dead = stalled.acquire(run)
    live = successor.take_over(dead)
    written = successor.append(run, 0, lease=live)
    stores = check.stores if check.place.sharing is Sharing.OBJECT else check.reopen()
    stop = threading.Event()

    def strike() -> None:
        try:
            for seq in range(1, 120):
                try:
                    stalled.journal.append(run, record(seq, check.mark(), filling=5000), lease=dead)
                except LeaseHeldError:
                    continue  # as it must be
                check.fail("LeaseHeldError", "the append returned")
        finally:
            stop.set()

    def read() -> None:
        while not stop.is_set():
            found = tuple(stores.journal.load(run))
            check.equal("the journal that a reader sees", found, (written,))

    check.together([strike, read, read])
    interleave(check, lambda: _read_at_refusal(check, stores, dead, written))


def _read_at_refusal(
    check: CheckContext, stores: Stores, dead: Lease, written: JournalRecord
) -> Interleaving:
    journal, run = check.stores.journal, dead.run_id
    refused = record(written.seq + 1, check.mark(), filling=300)

    def judge(append: Ending, read: Ending, where: str) -> None:
        check.require(
            isinstance(append.error, LeaseHeldError),
            "LeaseHeldError",
            f"{append.words()} ({where})",
        )
        if read.error is not None:
            check.fail("the journal can be read", f"{read.words()} ({where})")
        unseen = tuple(read.value) == (written,)  # type: ignore[arg-type]
        check.require(unseen, "what was there before", f"{read.value} ({where})")

    return Interleaving(
        lambda: journal.append(run, refused, lease=dead),  # type: ignore[call-arg]
        lambda: stores.journal.load(run),
        judge,
    )
