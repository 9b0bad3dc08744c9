"""Ctrl-C, thousands of times, in a main thread that shares the store with seven others.

Nothing is stuck, nothing acknowledged is lost, nothing of an interrupted call lands after the
interrupt has left it. Each storm runs in a process of its own, bounded by the count of
interrupts, and reports what it saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.errors import OutcomeUnknownError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite.group_commit import Committer
from rulvar.stores.sqlite.job import Job
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.stores.sqlite.mutations import Transaction

STORM = r"""
import json, os, random, signal, sys, threading, time
import apsw
from rulvar.core.errors import OutcomeUnknownError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

path, wanted, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# Nobody renews here, and a busy machine takes its time: the leases outlive the storm.
store = SqliteStore(path, durability=sys.argv[4], lease_ttl_ms=3_600_000)
twin = store.transcripts()
stop = threading.Event()
slowest, acknowledged, unknown, wrong = [0.0] * 7, {}, {}, []

def record(seq):
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)

def neighbour(number):
    run_id = f"neighbour-{number}"
    lease = store.acquire(run_id, "owner")
    seq = 0
    while not stop.is_set():
        begun = time.monotonic()
        try:
            store.append(run_id, record(seq), lease=lease)
            acknowledged.setdefault(run_id, []).append(seq)
        except OutcomeUnknownError:
            landed = seq in [r.seq for r in store.load_after(run_id, seq - 1, 1)]
            unknown.setdefault(run_id, []).append((seq, landed))
        except BaseException as error:
            wrong.append(repr(error))
            return
        slowest[number] = max(slowest[number], time.monotonic() - begun)
        seq += 1

armed = False

def interrupt(signum, frame):
    # Only the store's own calls are interrupted: the bookkeeping of this test is not.
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
source = random.Random(seed)
main = threading.main_thread().ident

def pester():
    while not stop.is_set():
        time.sleep(source.random() * 0.0006)
        signal.pthread_kill(main, signal.SIGINT)

crowd = [threading.Thread(target=neighbour, args=(n,)) for n in range(7)]
for thread in crowd: thread.start()
lease = store.acquire("main", "owner")
pesterer = threading.Thread(target=pester)
pesterer.start()

interrupts, attempts, after = 0, 0, {}
done = []
while interrupts < wanted:
    attempts += 1
    ref, seq = f"main/{attempts}", attempts
    kind = attempts % 3
    try:
        armed = True
        if kind == 0:
            twin.put(ref, b"x", lease=lease)
        elif kind == 1:
            store.append("main", record(seq), lease=lease)
        else:
            store.load_after("neighbour-0", -1, 500)  # all would be more with each moment
            store.list_run_ids(None, 10)
        armed = False
        if kind != 2:
            done.append((kind, ref, seq))
    except KeyboardInterrupt:
        armed = False
        interrupts += 1
        if kind == 0:
            after[ref] = twin.get(ref) is not None
    except OutcomeUnknownError:
        armed = False
armed = False
stop.set()
pesterer.join()
for thread in crowd: thread.join(30)
stuck = [t.name for t in crowd if t.is_alive()]

# The file is free, the store works on, and what was seen stayed so.
rival = apsw.Connection(path)
rival.execute("BEGIN IMMEDIATE"); rival.execute("ROLLBACK"); rival.close()
store.append("main", record(10**9), lease=lease)
main_seqs = {r.seq for r in store.load("main")}
refs = set(twin.list_refs("main"))
lost = [ref for kind, ref, _ in done if kind == 0 and ref not in refs]
lost += [seq for kind, _, seq in done if kind == 1 and seq not in main_seqs]
late = [ref for ref, landed in after.items() if (ref in refs) != landed]
for run_id, seqs in acknowledged.items():
    present = {r.seq for r in store.load(run_id)}
    lost += [(run_id, seq) for seq in seqs if seq not in present]
    late += [(run_id, seq) for seq, landed in unknown.get(run_id, []) if (seq in present) != landed]
store.close()
print(json.dumps({
    "interrupts": interrupts, "stuck": stuck, "wrong": wrong, "lost": lost, "late": late,
    "slowest": max(slowest), "unknown": sum(map(len, unknown.values())),
    "acknowledged": sum(map(len, acknowledged.values())), "checked": len(after),
}))
"""


def storm(path: Path, interrupts: int, seed: int, durability: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", STORM, str(path), str(interrupts), str(seed), durability],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def check(found: dict[str, object], interrupts: int) -> None:
    assert found["interrupts"] == interrupts
    assert (found["stuck"], found["wrong"]) == ([], [])
    assert (found["lost"], found["late"]) == ([], [])
    slowest = found["slowest"]
    assert isinstance(slowest, float)
    assert slowest < 20  # what is stuck stays so; a slow disk does not


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_thousands_of_interrupts_tear_nothing(durability: str, tmp_path: Path) -> None:
    check(storm(tmp_path / "runs.db", 1_500, 1, durability), 1_500)


@pytest.mark.storm
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_many_thousands_of_interrupts_tear_nothing(seed: int, tmp_path: Path) -> None:
    check(storm(tmp_path / "runs.db", 5_000, seed, "full"), 5_000)


# --- one interrupt, at each statement ------------------------------------------------------


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


@pytest.mark.parametrize("point", ["BEGIN IMMEDIATE", "INSERT INTO entries", "COMMIT"])
def test_an_interrupt_at_a_statement_leaves_no_transaction_open(point: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        (connection,) = store._database._committer.connections()

        def interrupt(_cursor: object, statement: str, _bound: object) -> bool:
            if statement.startswith(point):
                raise KeyboardInterrupt
            return True

        connection.set_exec_trace(interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.append("run", record(0))
        connection.set_exec_trace(None)
        rival = apsw.Connection(str(path))
        rival.execute("BEGIN IMMEDIATE")
        rival.execute("ROLLBACK")
        rival.close()
        assert store.load("run") == []
        store.append("run", record(0))
        assert store.load("run") == [record(0)]


def test_an_interrupt_after_the_commit_tells_the_neighbours_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is gone with the answers: its neighbour's write has landed, and stays so."""
    with SqliteStore(tmp_path / "runs.db") as store:
        commit = Committer._commit
        queued = threading.Event()

        def commit_and_be_interrupted(self: Committer) -> None:
            stage = self._stage
            commit(self)
            if not queued.is_set():
                queued.set()
                self._stage = "committing"
                assert stage == "working"
                raise KeyboardInterrupt

        answers: list[object] = []
        neighbour: Job[None] = Job(
            lambda tx: answers.append(tx.now), run_id="run"
        )  # queued as if its caller waited
        committer = store._database._committer
        committer._queue.append(neighbour)  # type: ignore[arg-type] # its result is not read
        monkeypatch.setattr(Committer, "_commit", commit_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append("run", record(0))
        assert neighbour.done
        with pytest.raises(OutcomeUnknownError):
            neighbour.answer()
        assert len(answers) == 1
        assert store.load("run") == [record(0)]


def test_an_interrupt_before_the_answers_are_handed_out_costs_no_neighbour_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is known to have landed: nobody's work runs again, everybody is told so."""
    with SqliteStore(tmp_path / "runs.db") as store:
        deliver = Committer._deliver
        interrupted: list[bool] = []

        def be_interrupted(self: Committer) -> None:
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            deliver(self)

        worked: list[int] = []
        neighbour: Job[None] = Job(lambda tx: worked.append(tx.now), run_id="neighbour")
        committer = store._database._committer
        committer._queue.append(neighbour)  # type: ignore[arg-type] # its result is not read
        monkeypatch.setattr(Committer, "_deliver", be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append("run", record(0))
        assert neighbour.done
        neighbour.answer()
        store.append("run", record(1))
        assert len(worked) == 1, "its work ran again"
        assert store.load("run") == [record(0), record(1)]


def test_a_job_is_not_withdrawn_while_it_is_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is interrupted just then: whoever withdraws it waits for what becomes of it."""
    with SqliteStore(tmp_path / "runs.db") as store:
        committer = store._database._committer
        waiting = Committer._waiting
        landed: list[int] = []
        at_withdrawal: list[int] = []
        job: Job[None] = Job(lambda tx: landed.append(tx.now), run_id="late")

        def withdraw() -> None:
            job.abandoned = True
            committer._withdraw(job)  # type: ignore[arg-type] # its result is not read
            at_withdrawal.append(len(landed))

        interrupted = threading.Thread(target=withdraw)

        def take(self: Committer) -> list[Job[object]]:
            found = waiting(self)
            if job in found:
                interrupted.start()
                interrupted.join(0.1)  # it has no way to say that it waits
            return found

        committer._queue.append(job)  # type: ignore[arg-type] # its result is not read
        monkeypatch.setattr(Committer, "_waiting", take)
        store.append("run", record(0))
        monkeypatch.undo()
        interrupted.join(10)
        assert at_withdrawal == [len(landed)], "it landed after it was withdrawn"


def test_an_interrupted_wait_withdraws_the_job(tmp_path: Path) -> None:
    """The caller waits behind a leader that has not begun; nothing of it lands later."""
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        blocker = apsw.Connection(str(path))
        blocker.execute("BEGIN IMMEDIATE")
        leader = threading.Thread(target=lambda: store.append("run", record(0)))
        committer = store._database._committer
        leader.start()
        while not committer._leader.locked():
            pass

        class Interrupted(Job[None]):
            """A job whose caller is interrupted as soon as it waits."""

        def work(tx: Transaction) -> None:
            tx.connection.execute("INSERT INTO meta VALUES ('late', '{}')")

        job = Interrupted(work, run_id="late")

        class Wake:
            def acquire(self, timeout: float) -> bool:
                assert timeout > 0
                raise KeyboardInterrupt

            def locked(self) -> bool:
                return False

        job.wake = Wake()  # type: ignore[assignment] # stands for an interrupt while waiting
        with pytest.raises(KeyboardInterrupt):
            committer.run(job)
        blocker.execute("ROLLBACK")
        blocker.close()
        leader.join()
        assert store.list_run_ids(None, 10) == ["run"]
