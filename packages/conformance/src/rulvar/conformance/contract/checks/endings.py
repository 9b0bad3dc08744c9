"""Errors and the end of a store's life: typed, in one order, for every call (family E)."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.failure import NotVerified
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.capabilities import has_blob_info, has_close, has_lease_revival
from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    RulvarError,
    StoreClosedError,
    StoreForkedError,
)
from rulvar.core.records import Lease, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending
    from rulvar.conformance.harness.store_under_test import TestLocation
    from rulvar.core.records import JournalRecord

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Errors of store calls")

_OF_BLOBS = frozenset({"put", "get", "list_refs", "transcripts.delete", "blob_info"})


def _every_call(check: CheckContext, lease: Lease | None) -> dict[str, Callable[[], object]]:
    actor = check.actor("caller")
    journal, blobs, run = actor.journal, actor.transcripts, check.run_id()
    meta = RunMeta(run_id=run, status="ok", updated_at="2026-01-01T00:00:00.000Z")
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: journal.append(run, record(50, check.mark())),
        "load": lambda: journal.load(run),
        "put_meta": lambda: journal.put_meta(meta),
        "list_runs": lambda: journal.list_runs(None),
        "delete": lambda: journal.delete(run),
    }
    if check.has_blobs:
        calls["put"] = lambda: blobs.put(f"{run}/x", b"x")
        calls["get"] = lambda: blobs.get(f"{run}/x")
        calls["list_refs"] = lambda: blobs.list_refs(run)
        calls["transcripts.delete"] = lambda: blobs.delete(f"{run}/x")
        if has_blob_info(check.stores.transcripts):
            calls["blob_info"] = lambda: blobs.blob_info(f"{run}/x")
    if lease is not None:
        calls["acquire"] = lambda: journal.acquire(run, "another")
        calls["renew"] = lambda: journal.renew(lease)
        calls["release"] = lambda: journal.release(lease)
        if has_lease_revival(check.stores.journal):
            calls["revive"] = lambda: journal.revive(lease)
        calls["append under a lease"] = lambda: journal.append(
            run, record(51, check.mark()), lease=lease
        )
    optional: dict[str, Callable[[], object]] = {
        "get_meta": lambda: journal.get_meta(run),
        "load_after": lambda: journal.load_after(run, -1, 1),
        "get_lease": lambda: journal.get_lease(run),
        "list_leases": lambda: journal.list_leases(None, 1),
        "seize": lambda: journal.seize(run, "operator"),
        "renew_all": lambda: journal.renew_all(() if lease is None else (lease,)),
        "list_run_ids": lambda: journal.list_run_ids(None, 1),
        "raise_epoch": lambda: journal.raise_epoch(run, 1),
        "delete_whole_run": lambda: journal.delete_whole_run(run),
    }
    return calls | {
        name: call for name, call in optional.items() if callable(getattr(journal, name, None))
    }


def _raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - compared with what is expected
        return type(error).__name__
    return "nothing"


@CLAUSES.clause(
    "E-closed",
    "close is idempotent; every call after it, of the twin too, raises StoreClosedError.",
    source="Closing",
    capability="Closable",
)
def _closed(check: CheckContext) -> None:
    worker = check.actor("worker")
    lease = worker.acquire(check.run_id()) if check.claims(Level.LEASABLE) else None
    worker.append(check.run_id(), 0, lease=lease)
    for _ in range(2):
        worker.call("close()", worker.journal.close)
        if has_close(check.stores.transcripts):
            worker.call("transcripts.close()", check.stores.transcripts.close)
    for what, call in _every_call(check, lease).items():
        if not _of_a_twin(check) and what in _OF_BLOBS:
            continue  # a transcript store of its own, without a close
        check.equal(f"what {what} raises after close", _raised(call), StoreClosedError.__name__)


def _of_a_twin(check: CheckContext) -> bool:
    return has_close(check.stores.transcripts) or check.claims(Level.FENCED_PAIR)


@CLAUSES.clause(
    "E-closed-order",
    "A wrong argument is ConfigError on a closed store too.",
    source="Order of checks",
    capability="Closable",
)
def _closed_order(check: CheckContext) -> None:
    worker = check.actor("worker")
    worker.append(check.run_id(), 0)
    worker.call("close()", worker.journal.close)
    for what, call in (
        ("append", lambda: worker.journal.append("", record(0, check.mark()))),
        ("load", lambda: worker.journal.load("a/b")),
        ("delete", lambda: worker.journal.delete("..")),
    ):
        check.equal(f"what {what} raises", _raised(call), ConfigError.__name__)
    if check.claims(Level.FENCED):
        foreign = Lease(run_id=check.run_id("other"), owner="x", epoch=1)
        check.equal(
            "what an append under a foreign lease raises",
            _raised(
                lambda: worker.journal.append(
                    check.run_id(), record(1, check.mark()), lease=foreign
                )
            ),
            StoreClosedError.__name__,
        )


@CLAUSES.clause(
    "E-order",
    "A wrong argument is ConfigError under a dead lease too, and a dead lease goes "
    "before a stale seq.",
    source="Order of checks",
    level=Level.LEASABLE,
)
def _order(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    dead = worker.acquire(run)
    worker.append(run, 5, lease=dead)
    worker.release(dead)
    strict = worker.raising(ConfigError)
    strict.call("append(no record)", lambda: worker.journal.append(run, "x", lease=dead))  # type: ignore[arg-type]
    worker.refused("released").append(run, 5, lease=dead)
    worker.refused("released").append(run, 6, lease=dead)
    foreign = Lease(run_id=check.run_id("other"), owner="worker", epoch=dead.epoch)
    worker.refused("foreign-run").append(run, 0, lease=foreign)
    forged = Lease(run_id=run, owner="nobody", epoch=dead.epoch)
    worker.refused("released").append(run, 6, lease=forged)


@CLAUSES.clause("E-pickles", "An error keeps its type and its facts when it is pickled.")
def _pickles(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.append(run, 5)
    calls: list[Callable[[], object]] = [
        lambda: worker.journal.append(run, record(5, check.mark())),
        lambda: worker.journal.load("a/b"),
    ]
    if check.claims(Level.LEASABLE):
        dead = worker.acquire(run)
        live = worker.take_over(dead)
        other = check.run_id("other")
        calls += [
            lambda: worker.journal.acquire(run, "another"),
            lambda: worker.journal.append(run, record(6, check.mark()), lease=dead),
            lambda: worker.journal.append(other, record(6, check.mark()), lease=live),
            lambda: worker.journal.renew(dead),
            lambda: worker.journal.release(dead),
        ]
    for call in calls:
        _require_portable(check, call)
    if has_close(check.stores.journal):
        check.stores.journal.close()
        _require_portable(check, lambda: worker.journal.load(run))


def _require_portable(check: CheckContext, call: Callable[[], object]) -> None:
    try:
        call()
    except RulvarError as error:
        there = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
        facts = {name: value for name, value in vars(error).items() if not name.startswith("__")}
        check.equal("the type of the error that arrives", type(there), type(error))
        check.equal("its text", str(there), str(error))
        check.equal("its code", there.code, error.code)
        for name, value in facts.items():
            check.equal(f"its {name}", getattr(there, name, "missing"), value)
    else:
        check.fail("an error of rulvar's tree", "it returned")


@CLAUSES.clause(
    "E-close-waits",
    "close waits for the calls in flight: each of them returns or is refused.",
    source="Closing",
    capability="Closable",
)
def _close_waits(check: CheckContext) -> None:
    runs = [check.run_id(f"run-{number}") for number in range(4)]
    worker = check.actor("worker")
    started = threading.Event()

    def work(run: str) -> Callable[[], tuple[str, int]]:
        def append() -> tuple[str, int]:
            for seq in range(20_000):
                try:
                    worker.journal.append(run, record(seq, "w"))
                except Exception as error:  # noqa: BLE001 - compared with what is expected
                    return type(error).__name__, seq
                started.set()
            return "nothing", 20_000

        return append

    def close() -> tuple[str, int]:
        started.wait(10)
        worker.journal.close()
        return StoreClosedError.__name__, 0

    outcomes = check.together([*(work(run) for run in runs), close])
    for what, _ in outcomes:
        check.equal("what ends a caller's work", what, StoreClosedError.__name__)
    if check.place.sharing is Sharing.OBJECT:
        return
    reader = check.actor("reader", check.reopen())
    for run, (_, landed) in zip(runs, outcomes, strict=False):
        found = [each.seq for each in reader.load(run)]
        check.equal("what landed is what returned", found, list(range(landed)))


@CLAUSES.clause(
    "E-close-meets",
    "An append that meets a close lands and returns, or is refused and never lands.",
    source="Closing",
    capability="Closable",
)
def _close_meets(check: CheckContext) -> None:
    if not check.place.fresh:
        message = "the place is not new: put @tmp@ into the URL"
        raise NotVerified(message)
    for closes_first in (True, False):
        places: list[TestLocation] = []
        try:
            interleave(check, lambda: _append_at_close(check, places, closes_first), most=20)  # noqa: B023
        finally:
            for place in places:
                place.discard()


def _append_at_close(
    check: CheckContext, places: list[TestLocation], closes_first: bool
) -> Interleaving:
    place = check.another_place()
    places.append(place)
    stores, run, added = place.open(), check.run_id(), record(0, check.mark())

    def append() -> None:
        stores.journal.append(run, added)

    seen: list[tuple[JournalRecord, ...]] = []

    def close() -> None:
        check.actor("closer", stores).journal.close()
        if place.sharing is not Sharing.OBJECT:
            seen.append(tuple(place.open().journal.load(run)))

    def judge(first: Ending, second: Ending, where: str) -> None:
        closing, appending = (first, second) if closes_first else (second, first)
        check.require(closing.returned, "close returns", closing.words())
        refused = isinstance(appending.error, StoreClosedError)
        check.require(
            appending.returned or refused,
            f"the append returns or raises StoreClosedError ({where})",
            appending.words(),
        )
        if place.sharing is not Sharing.OBJECT:
            found = tuple(place.open().journal.load(run))
            landed = (added,) if appending.returned else ()
            check.equal(f"what landed ({where})", found, landed)
            if second.inside and not closes_first:
                check.equal(f"what landed after close returned ({where})", found, seen[0])

    return (
        Interleaving(close, append, judge) if closes_first else Interleaving(append, close, judge)
    )


@CLAUSES.clause(
    "E-forked",
    "In a forked child every call raises StoreForkedError, and the parent goes on.",
    strength="MUST" if hasattr(os, "fork") else "SHOULD",
)
def _forked(check: CheckContext) -> None:
    if not hasattr(os, "fork"):
        message = "this system has no fork"
        raise NotVerified(message)
    worker = check.actor("worker")
    lease = worker.acquire(check.run_id()) if check.claims(Level.LEASABLE) else None
    worker.append(check.run_id(), 0, lease=lease)
    before = check.snapshot()
    calls = _every_call(check, lease)
    if has_close(check.stores.journal):
        calls["close"] = check.stores.journal.close
    told = _in_a_fork(calls)
    for what in calls:
        check.equal(
            f"what {what} raises in a forked child", told.get(what), StoreForkedError.__name__
        )
    check.equal("the state", check.snapshot(), before)
    worker.append(check.run_id(), 1, lease=lease)


def _in_a_fork(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Make each call in a forked child and return the names of what was raised."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Other threads are at rest, and the child only calls, answers and leaves.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            for what, call in calls.items():
                os.write(writing, f"{what}\t{_raised(call)}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(pid, 0)
    lines = [line.partition("\t") for line in told.splitlines()]
    return {what: raised for what, _, raised in lines}


@CLAUSES.clause(
    "E-recovers",
    "A refused call leaves the store in order: the next one works.",
    level=Level.LEASABLE,
)
def _recovers(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    lease = worker.acquire(run)
    dead = Lease(run_id=run, owner="x", epoch=lease.epoch)
    for seq in range(5):
        worker.refused("unknown").append(run, seq, lease=dead)
        worker.append(run, seq, lease=lease)
        worker.out_of_order().append(run, seq, lease=lease)
        worker.raising(ConfigError).append(run, -1, lease=lease)
        worker.refused("held").acquire(run)
    check.equal("how many records there are", len(worker.load(run)), 5)
    _same_errors(check, dead)


def _same_errors(check: CheckContext, dead: Lease) -> None:
    """Refusals on many threads at once belong each to its own call."""
    run = check.run_id()
    actor = check.actor("rival")

    def offer(owner: str) -> Callable[[], None]:
        forged = Lease(run_id=run, owner=owner, epoch=dead.epoch)

        def attempt() -> None:
            try:
                actor.journal.append(run, record(99, check.mark()), lease=forged)
            except LeaseHeldError as error:
                check.require(error.offered in {None, forged}, "its own lease", error.offered)
            else:
                check.fail("LeaseHeldError", "it returned")

        return attempt

    check.together([offer(f"owner-{number}") for number in range(6)])
