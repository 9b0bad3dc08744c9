"""Several processes on one state, one of which is killed (family P), and waiting (family B)."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.children import ChildDied
from rulvar.conformance.harness.failure import NotVerified
from rulvar.core.capabilities import busy_timeout_ms_of, lease_ttl_ms_of
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.children import Child
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Several processes")

_BOOTS = 4
_FIRST_OPENS = 8
_LONGEST_S = 12
_STOPS = 30
_SLACK_MS = 750
"""How much later than its bound a call may come back on a machine that has other things to do."""


# --- what the other process does; sent there by name ------------------------------------------


def keep_appending(
    stores: Stores, tell: Callable[[object], None], run_id: str, first: int, filling: int
) -> None:
    """Append for ever, telling each seq once its append has returned."""
    seq = first
    while True:
        stores.journal.append(run_id, record(seq, f"child-{seq}", filling=filling))
        tell(seq)
        seq += 1


def keep_rebuilding(stores: Stores, tell: Callable[[object], None], run_id: str) -> None:
    """Write a run of three records, its row and its blob, and delete it, for ever."""
    from rulvar.core.records import RunMeta  # noqa: PLC0415 - in the other process

    turn = 0
    while True:
        for seq in range(3):
            stores.journal.append(run_id, record(seq, f"turn-{turn}", filling=20_000))
        row = RunMeta(run_id=run_id, status="ok", updated_at="2026-01-01T00:00:00.000Z")
        stores.journal.put_meta(row)
        tell(turn)
        stores.journal.delete(run_id)
        turn += 1


def claim_seqs(
    stores: Stores, tell: Callable[[object], None], run_id: str, count: int, name: str
) -> list[int]:
    """Append after the tail that is loaded, ``count`` times; return the seqs that landed."""
    del tell
    landed: list[int] = []
    began = time.monotonic()
    while len(landed) < count:
        _give_up(began, len(landed), count)
        found = stores.journal.load(run_id)
        seq = found[-1].seq + 1 if found else 0
        try:
            stores.journal.append(run_id, record(seq, f"{name}-{seq}"))
        except (JournalOrderViolation, StoreBusyError):
            continue  # another process was first, or is at it: look again
        landed.append(seq)
    return landed


def _give_up(began: float, done: int, count: int) -> None:
    if time.monotonic() - began > _LONGEST_S:
        message = f"{done} of {count} calls landed within {_LONGEST_S} s"
        raise TimeoutError(message)


def claim_leases(
    stores: Stores, tell: Callable[[object], None], run_id: str, count: int, owner: str
) -> list[int]:
    """Acquire and release ``count`` times, whenever the run is free; return the epochs."""
    del tell
    journal = stores.journal
    epochs: list[int] = []
    began = time.monotonic()
    while len(epochs) < count:
        _give_up(began, len(epochs), count)
        try:
            lease = cast("Lease", journal.acquire(run_id, owner))  # type: ignore[attr-defined]
        except (LeaseHeldError, StoreBusyError):
            continue  # another process has it now: until it is free
        epochs.append(lease.epoch)
        while True:
            try:
                journal.release(lease)  # type: ignore[attr-defined]
            except StoreBusyError:
                continue  # nothing happened, so it is still to be released
            break
    return epochs


# --- the clauses ------------------------------------------------------------------------------


@CLAUSES.clause(
    "P-visible",
    "What has returned in one process is there in another at once.",
    source="A3",
    sharing=Sharing.SHARED,
)
def _visible(check: CheckContext) -> None:
    run = check.run_id()
    _, over_there = check.child()
    here, there = check.actor("here"), check.actor("there", over_there)
    for seq in range(0, 8, 2):
        first = here.append(run, seq)
        check.equal("the last record over there", there.load(run)[-1:], (first,))
        second = there.append(run, seq + 1)
        check.equal("the last record here", here.load(run)[-1:], (second,))
        there.out_of_order().append(run, seq + 1)
    meta = there.put_meta(run)
    rows = [row for row in here.journal.list_runs(None) if row.run_id == run]
    check.equal("the row", rows, [meta])
    if check.has_blobs:
        blob = there.put(f"{run}/turn")
        check.equal("the blob", here.get(f"{run}/turn"), blob)
    there.delete(run)
    check.equal("the journal", here.load(run), ())


@CLAUSES.clause(
    "P-lease",
    "A lease that one process holds keeps every other out, and can be handed over.",
    level=Level.LEASABLE,
    sharing=Sharing.SHARED,
)
def _lease(check: CheckContext) -> None:
    run = check.run_id()
    _, over_there = check.child()
    here, there = check.actor("here"), check.actor("there", over_there)
    lease = here.acquire(run)
    there.refused("held").acquire(run)
    there.append(run, 0, lease=lease)
    there.renew(lease)
    live = there.take_over(lease)
    here.refused("superseded").append(run, 1, lease=lease)
    here.refused("superseded").renew(lease)
    here.refused("superseded").release(lease)
    if check.claims(Level.FENCED):
        here.refused("superseded").put_meta(run, lease=lease)
        here.refused("superseded").delete(run, lease=lease)
    if check.claims(Level.FENCED_PAIR):
        here.refused("superseded").put(f"{run}/x", lease=lease)
        here.refused("superseded").delete_blob(f"{run}/x", lease=lease)
    there.append(run, 1, lease=live)


@CLAUSES.clause(
    "P-appenders",
    "Of several processes that append to one run each seq is won by exactly one.",
    source="A5",
    sharing=Sharing.SHARED,
)
def _appenders(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    children = [check.child()[0] for _ in range(3)]
    for number, child in enumerate(children):
        child.begin("run", claim_seqs, (run, 12, f"child-{number}"))
    landed = [cast("list[int]", child.answer()) for child in children]
    everything = sorted(seq for mine in landed for seq in mine)
    found = [each.seq for each in check.actor("reader").load(run)]
    check.equal("the seqs in the journal", found, everything)
    check.equal("each of them once", everything, sorted(set(everything)))


@CLAUSES.clause(
    "P-epochs",
    "Processes that acquire one run in turn are granted every epoch once, rising.",
    level=Level.LEASABLE,
    sharing=Sharing.SHARED,
)
def _epochs(check: CheckContext) -> None:
    run = check.run_id()
    check.knows(run)
    children = [check.child()[0] for _ in range(3)]
    for number, child in enumerate(children):
        child.begin("run", claim_leases, (run, 8, f"child-{number}"))
    granted = [cast("list[int]", child.answer()) for child in children]
    for mine in granted:
        check.equal("the epochs of one process", mine, sorted(set(mine)))
    everything = [epoch for mine in granted for epoch in mine]
    check.equal("how many epochs there are", len(set(everything)), len(everything))


@CLAUSES.clause(
    "P-first-open",
    "Processes that open a new store at the same moment all get it.",
    sharing=Sharing.SHARED,
)
def _first_open(check: CheckContext) -> None:
    if not check.place.fresh:
        message = "the place is not new: put @tmp@ into the URL"
        raise NotVerified(message)
    children = [check.spare_child() for _ in range(_BOOTS)]
    for round_ in range(_FIRST_OPENS):
        place = check.another_place()
        try:
            opener = place.opener()
            for child in children:
                child.begin("open", opener)
            for child in children:
                _answer(check, child, "open the new store")
            for number, child in enumerate(children):
                arguments = (check.run_id(f"boot-{number}"), 3, f"boot-{round_}")
                child.begin("run", claim_seqs, arguments)
            for child in children:
                check.equal("the seqs that landed", _answer(check, child, "append"), [0, 1, 2])
            later = place.open()
            for number in range(_BOOTS):
                found = [each.seq for each in later.journal.load(check.run_id(f"boot-{number}"))]
                check.equal(f"what a later handle loads of process {number}", found, [0, 1, 2])
            for child in children:
                child.ask("close")
        finally:
            place.discard()
    check.count("boots", _FIRST_OPENS * _BOOTS)


def _answer(check: CheckContext, child: Child, what: str) -> object:
    try:
        return child.answer()
    except ChildDied:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it broke the clause
        check.timeline.add("child", what, type(error).__name__)
        check.fail(f"to {what} works", f"{type(error).__name__}: {error}")


@CLAUSES.clause(
    "P-killed",
    "What was acknowledged survives a SIGKILL; at most one append more has landed, whole.",
    source="A1, A3",
    sharing=Sharing.SHARED,
    kills=True,
)
def _killed(check: CheckContext) -> None:
    reader = check.actor("reader")
    for round_ in range(3):
        run = check.run_id(f"run-{round_}")
        check.knows(run)
        child, _ = check.child()
        child.begin("run", keep_appending, (run, 0, 30_000))
        told = -1
        for _ in range(check.random.randrange(3, 12)):
            told = cast("int", child.told())
        # Not a wait for anything: it moves the kill to another moment of an append.
        time.sleep(check.random.uniform(0, 0.004))
        child.kill()
        told = max([told, *_rest(child)])
        found = reader.load(run)
        expected = [record(seq, f"child-{seq}", filling=30_000) for seq in range(len(found))]
        check.require(len(found) >= told + 1, f"seq 0 to {told}", f"{len(found)} records")
        check.require(len(found) <= told + 2, "at most one more", f"{len(found)} records")
        check.equal("the records", list(found), expected)
        reader.append(run, len(found))


def _rest(child: Child) -> list[int]:
    """Return what was told between the last look and the end."""
    rest: list[int] = []
    while True:
        try:
            rest.append(cast("int", child.told()))
        except ChildDied:
            return rest


@CLAUSES.clause(
    "P-killed-delete",
    "A SIGKILL in the middle leaves a run deleted as a whole or not at all.",
    source="D1",
    sharing=Sharing.SHARED,
    kills=True,
)
def _killed_delete(check: CheckContext) -> None:
    reader = check.actor("reader")
    run = check.run_id()
    check.knows(run)
    for _ in range(4):
        reader.delete(run)
        child, _ = check.child()
        child.begin("run", keep_rebuilding, (run,))
        child.told()
        # Not a wait for anything: it moves the kill to another moment of a deletion.
        time.sleep(check.random.uniform(0, 0.006))
        child.kill()
        found = check.state_of(run)
        seqs = [seq for seq, _ in found.journal]
        check.equal("the seqs", seqs, list(range(len(seqs))))
        # The row is written last and goes in the deletion's own step.
        check.require(found.row is None or len(seqs) == 3, "the row of a whole run", seqs)  # noqa: PLR2004
        marks = {data.split(b'"mark":"')[1].split(b'"')[0] for _, data in found.journal}
        check.require(len(marks) <= 1, "records of one recreation", marks)


@CLAUSES.clause(
    "P-killed-holder",
    "The lease of a killed process lives on, and can be ended by its value.",
    level=Level.LEASABLE,
    sharing=Sharing.SHARED,
    kills=True,
)
def _killed_holder(check: CheckContext) -> None:
    run = check.run_id()
    child, over_there = check.child()
    victim, here = check.actor("victim", over_there), check.actor("here")
    lease = victim.acquire(run)
    written = victim.append(run, 0, lease=lease)
    child.kill()
    here.refused("held").acquire(run)
    check.equal("the journal", here.load(run), (written,))
    live = here.take_over(lease)
    here.append(run, 1, lease=live)
    here.refused("superseded").append(run, 2, lease=lease)


@CLAUSES.clause(
    "B-bound",
    "The declared busy timeout is below a third of a lease's time.",
    source="Attributes",
    level=Level.LEASABLE,
    capability="busy_timeout_ms",
)
def _bound(check: CheckContext) -> None:
    busy = busy_timeout_ms_of(check.stores.journal) or 0
    ttl = lease_ttl_ms_of(check.stores.journal)
    check.require(busy >= 0, "a busy timeout of 0 ms or more", busy)
    check.require(ttl is None or busy * 3 < ttl, f"less than a third of {ttl} ms", busy)


@CLAUSES.clause(
    "B-stopped",
    "While a process is stopped inside a call, others land or raise StoreBusyError within the "
    "declared bound; nothing of a refused one lands.",
    source="Attributes",
    capability="busy_timeout_ms",
    sharing=Sharing.SHARED,
    lease_ttl_ms=3_000,  # stores derive how long they wait from it
)
def _stopped(check: CheckContext) -> None:
    if not hasattr(signal, "SIGSTOP"):
        message = "this system cannot stop a process"
        raise NotVerified(message)
    busy_ms = busy_timeout_ms_of(check.stores.journal) or 0
    run, other = check.run_id(), check.run_id("other")
    check.knows(run)
    check.knows(other)
    child, _ = check.child()
    child.begin("run", keep_appending, (run, 0, 500_000))
    child.told()
    here = check.actor("here")
    landed: list[int] = []
    met = 0
    try:
        for seq in range(_STOPS):
            met += _while_stopped(check, child, other, seq, landed)
            child.told()
            if met == 2:  # noqa: PLR2004 - seen often enough
                break
    finally:
        child.kill()
    check.count("calls that met a stopped process", met)
    # One that was refused and goes on trying has its turn now.
    time.sleep(min(busy_ms, 1000) / 1000 if met else 0)
    here.append(run, 10**6)
    found = [each.seq for each in here.load(other)]
    check.equal("what landed", found, landed)
    here.append(other, 100)


def _while_stopped(
    check: CheckContext, child: Child, run_id: str, seq: int, landed: list[int]
) -> int:
    """Append while the child is stopped; return 1 when it was refused as busy."""
    busy_ms = busy_timeout_ms_of(check.stores.journal) or 0
    errors: list[Exception] = []

    def append() -> None:
        try:
            check.stores.journal.append(run_id, record(seq, f"here-{seq}"))
        except Exception as error:  # noqa: BLE001 - judged below
            errors.append(error)

    thread = threading.Thread(target=append, daemon=True)
    # Not a wait for anything: it moves the stop away from the moment at which the child tells.
    time.sleep(check.random.uniform(0, 0.01))
    child.stop()
    try:
        began = time.monotonic()
        thread.start()
        thread.join((busy_ms + _SLACK_MS) / 1000)
        took_ms = (time.monotonic() - began) * 1000
        in_time = not thread.is_alive()
    finally:
        child.go_on()
    answer = type(errors[0]).__name__ if errors else "ok"
    told = f"{answer} in {took_ms:.0f} ms" if in_time else f"nothing for {took_ms:.0f} ms"
    check.timeline.add("here", f"append({run_id!r}, seq {seq})", told)
    check.require(in_time, f"an answer within {busy_ms} ms and a margin of {_SLACK_MS}", told)
    if not errors:
        landed.append(seq)
        return 0
    check.require(
        isinstance(errors[0], StoreBusyError), "it lands or raises StoreBusyError", repr(errors[0])
    )
    return 1
