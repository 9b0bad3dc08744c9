"""What the stores were doing when the power went: real calls on every surface.

Each workload is a plain function of a `Scribe`. Together they make the file, append with and
without a lease, write rows and blobs of less than a page and of several, renew, release,
take over, seize, revive, delete, move the log into the database in every way that SQLite
has, close and open again, write through two handles at once, have superseded owners refused,
and commit several callers' calls in one transaction.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import apsw
from power_observe import DATABASE, LATER_MS
from power_scribe import UnexpectedError, writer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from power_scribe import Hand, Scribe

    from rulvar.core.records import Lease

__all__ = ["FULL_ONLY", "WORKLOADS", "again"]

Workload = "Callable[[Scribe], None]"


def birth(scribe: Scribe) -> None:
    """A file is made, written, closed, opened again; then its log begins anew."""
    first = scribe.open("first")
    first.append("new")
    lease = first.acquire("new")
    first.append("new", lease)
    first.close()
    second = scribe.open("second")
    second.append("new", lease)
    second.put_meta("new", lease)
    second.close()
    third = scribe.open("third")
    third.renew(lease)
    third.append("new", lease, size=6_000)


def leases(scribe: Scribe) -> None:
    """A run changes hands in every way, and whoever lost it is refused on every surface."""
    stalled, successor = scribe.open("stalled"), scribe.open("successor")
    old = stalled.acquire("run")
    stalled.append("run", old)
    stalled.put_meta("run", old)
    stalled.put("run/note", old)
    stalled.renew(old)
    live = successor.seize("run")
    _refused_everywhere(stalled, old)
    successor.append("run", live)
    successor.renew(live)
    stalled.append("run", old, size=9_000, refused=True)
    successor.release(live)
    successor.append("run", live, refused=True)
    again = stalled.acquire("run")
    _refused_everywhere(successor, live)
    revived = stalled.revive(again)
    stalled.append("run", revived)
    stalled.append("run", again, refused=True)
    successor.raise_epoch("run", revived.epoch + 5)
    stalled.append("run", revived, refused=True)
    last = successor.acquire("run")
    successor.put_meta("run", last)


def _refused_everywhere(hand: Hand, dead: Lease) -> None:
    hand.append(dead.run_id, dead, refused=True)
    hand.put_meta(dead.run_id, dead, refused=True)
    hand.put(f"{dead.run_id}/note", dead, size=5_000, refused=True)
    hand.drop(f"{dead.run_id}/note", dead, refused=True)
    hand.renew(dead, refused=True)
    hand.release(dead, refused=True)
    hand.delete(dead.run_id, dead, refused=True)
    hand.delete(dead.run_id, dead, whole=True, refused=True)


def blobs(scribe: Scribe) -> None:
    """Blobs of less than a page and of several, replaced and deleted, between appends."""
    hand = scribe.open("hand", checkpoint_pages=30)
    lease = hand.acquire("run")
    for size in (0, 3_000, 20_000):
        hand.put("run/turn/1", lease, size=size)
        hand.append("run", lease, size=size // 2)
    hand.put("run/turn/2", lease, size=40_000)
    hand.put("other/turn", size=9_000)
    hand.drop("run/turn/1", lease)
    hand.put_meta("run", lease)
    hand.put("run/turn/2", lease, size=100)
    hand.renew(lease)
    hand.drop("run/turn/2", lease)


def deletions(scribe: Scribe) -> None:
    """Runs are deleted, with and without their blobs, and made again under the same id."""
    hand = scribe.open("hand", checkpoint_pages=12)
    for round_ in range(2):
        lease = hand.acquire("run")
        for _ in range(3):
            hand.append("run", lease, size=2_500)
        hand.put_meta("run", lease)
        hand.put("run/turn", lease, size=7_000)
        hand.append("beside")
        hand.delete("run", lease, whole=round_ == 0)
        hand.append("run", lease, refused=True)
    hand.append("run")
    hand.put("run/turn", size=200)
    hand.delete("run", whole=True)
    hand.put_meta("run")


def checkpoints(scribe: Scribe) -> None:
    """The log goes into the database and begins anew, in every way that SQLite has."""
    hand = scribe.open("hand", checkpoint_pages=8)
    bystander = apsw.Connection(str(scribe.folder / DATABASE))
    lease = hand.acquire("run")
    for size in (0, 5_000, 0, 0, 11_000, 0, 0, 0):
        hand.append("run", lease, size=size)
        hand.put_meta("run", lease)
    writer_of(hand.store).execute("PRAGMA journal_size_limit = 16384").fetchall()
    for mode in ("FULL", "RESTART", "TRUNCATE", "PASSIVE"):
        hand.append("run", lease, size=3_000)
        bystander.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        hand.renew(lease)
        hand.append("beside")
    hand.delete("run", lease)
    bystander.close()


def handles(scribe: Scribe) -> None:
    """Two handles write in turn while a reader keeps an old snapshot; then one leaves."""
    left = scribe.open("left", checkpoint_pages=6)
    right = scribe.open("right", checkpoint_pages=10)
    lease = left.acquire("run")
    reader = apsw.Connection(str(scribe.folder / DATABASE))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchall()
    for _ in range(4):
        left.append("run", lease)
        right.append("beside", size=4_000)
        right.renew(lease)
    reader.execute("COMMIT")
    reader.close()
    for _ in range(3):
        right.append("run", lease)
        left.append("beside")
    left.close()
    taken = right.seize("run")
    right.append("run", lease, refused=True)
    right.append("run", taken)
    right.close()
    last = scribe.open("last")
    last.append("run", taken)


def crowd(scribe: Scribe) -> None:
    """Several callers wait for the lock at once: their calls share one transaction."""
    hand = scribe.open("hand", checkpoint_pages=20)
    runs = [f"run-{number}" for number in range(4)]
    held = {run_id: hand.acquire(run_id) for run_id in runs}
    for size in (0, 2_000, 0):
        _together(scribe, hand, held, size)
    hand.seize(runs[0])
    _together(scribe, hand, held, 0, refused=runs[0])


def _together(
    scribe: Scribe, hand: Hand, held: dict[str, Lease], size: int, *, refused: str = ""
) -> None:
    blocker = apsw.Connection(str(scribe.folder / DATABASE))
    blocker.execute("BEGIN IMMEDIATE")
    waiting = hand.store._database._committer._queue
    threads: list[threading.Thread] = []
    calls = []
    for run_id, lease in held.items():
        call, work = hand.appending(run_id, lease, size=size)
        calls.append(call)
        threads.append(
            threading.Thread(
                target=scribe.make, args=(call, work), kwargs={"refused": run_id == refused}
            )
        )
        threads[-1].start()
        while len(waiting) < len(threads) and threads[-1].is_alive():
            pass
    blocker.execute("ROLLBACK")
    blocker.close()
    for thread in threads:
        thread.join()
    if any(call.answered is None for call in calls):
        message = "a call of the crowd was not answered as it was to be"
        raise UnexpectedError(message)


def sick_disk(scribe: Scribe) -> None:
    """Syncs of the log fail, once and twice in a row, and so do some of the database.

    What a failed sync was to keep may be gone, although a later sync succeeds. In the last two
    rounds the log goes into the database, with a sync that fails.
    """
    disk = scribe.recorder
    hand = scribe.open("hand")
    lease = hand.acquire("run")
    hand.append("run", lease)
    for failures in (1, 2, 1):
        disk.failing_log_syncs = failures
        call = hand.append("run", lease, size=9_000)
        disk.failing_log_syncs = 0
        there = {record.seq for record in hand.store.load("run")}
        scribe.settle(call, landed=f"append seq {max(there)}" == call.what)
        hand.append("run", lease)
        hand.renew(lease)
    bystander = apsw.Connection(str(scribe.folder / DATABASE))
    for _ in range(2):
        disk.failing_database_syncs = 1
        with contextlib.suppress(apsw.IOError):
            bystander.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        hand.append("run", lease, size=3_000)
    bystander.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    hand.append("run", lease)
    bystander.close()
    if disk.failed < 4 + 2:
        message = f"only {disk.failed} syncs failed: the workload is not about what it says"
        raise UnexpectedError(message)


def again(scribe: Scribe) -> None:
    """A store takes up what a power cut left, and goes on: the power goes once more."""
    # The leases of before have run out, and those of now will have when it is looked again.
    scribe.clock.set(LATER_MS // 2)
    run_id = min(scribe.history.first)
    scribe.seqs = dict.fromkeys(scribe.history.first, 1_000)
    first = scribe.open("recovering", checkpoint_pages=4)
    first.append(run_id)
    lease = first.seize(run_id)
    first.append(run_id, lease, size=5_000)
    first.put(f"{run_id}/turn", lease, size=5_000)
    first.close()
    scribe.open("next").append(run_id, lease)


FULL_ONLY = frozenset({"sick_disk"})
"""What has no promise at normal durability: see `docs/assurance/power-loss.md`."""

WORKLOADS: dict[str, Callable[[Scribe], None]] = {
    work.__name__: work
    for work in (birth, leases, blobs, deletions, checkpoints, handles, crowd, sick_disk)
}
