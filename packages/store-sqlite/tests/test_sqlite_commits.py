"""Group commit: callers share transactions, each is fenced by itself, none disturbs another."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest
from sqlite_crowd import together

from rulvar.core.errors import (
    JournalOrderViolation,
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
)
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rulvar.stores.sqlite.group_commit import Committer


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def committer_of(store: SqliteStore) -> Committer:
    return store._database._committer


@contextmanager
def statements_of(store: SqliteStore) -> Iterator[list[str]]:
    """Note every statement that the writer runs."""
    (connection,) = committer_of(store).connections()
    noted: list[str] = []

    def note(_cursor: object, statement: str, _bound: object) -> bool:
        noted.append(statement)
        return True

    connection.set_exec_trace(note)
    yield noted
    connection.set_exec_trace(None)


def test_callers_that_wait_share_one_commit(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        lease = [store.acquire(f"run-{n}", "owner") for n in range(8)]
        with statements_of(store) as noted:
            answers = together(
                store,
                [
                    lambda n=n: store.append(f"run-{n}", record(0), lease=lease[n])  # type: ignore[misc]
                    for n in range(8)
                ],
            )
        assert answers == [None] * 8
        assert noted.count("COMMIT") == 1
        assert all(len(store.load(f"run-{n}")) == 1 for n in range(8))


def test_a_refusal_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        dead = store.acquire("lost", "owner")
        store.seize("lost", "successor")
        live = store.acquire("run", "owner")
        store.append("stale", record(7))
        twin = store.transcripts()
        with statements_of(store) as noted:
            answers = together(
                store,
                [
                    lambda: store.append("run", record(0), lease=live),
                    lambda: store.append("lost", record(0), lease=dead),
                    lambda: store.append("stale", record(7)),
                    lambda: twin.put("run/blob", b"1", lease=live),
                    lambda: store.delete("lost", lease=dead),
                    lambda: store.acquire("run", "other"),
                    lambda: store.acquire("new", "other"),
                ],
            )
        assert noted.count("COMMIT") == 1
        assert answers[0] is None
        assert isinstance(answers[1], LeaseHeldError)
        assert isinstance(answers[2], JournalOrderViolation)
        assert answers[3] is None
        assert isinstance(answers[4], LeaseHeldError)
        assert isinstance(answers[5], LeaseHeldError)
        assert getattr(answers[6], "epoch", None) == 1
        assert [found.seq for found in store.load("run")] == [0]
        assert [found.seq for found in store.load("stale")] == [7]
        assert store.load("lost") == []
        assert twin.get("run/blob") == b"1"


def test_members_of_a_batch_fence_each_other(tmp_path: Path) -> None:
    """The release comes first, as all releases do; the same lease's append is then dead."""
    with SqliteStore(tmp_path / "runs.db") as store:
        lease = store.acquire("run", "owner")
        answers = together(
            store,
            [
                lambda: store.append("run", record(0), lease=lease),
                lambda: store.release(lease),
            ],
        )
        assert answers[1] is None
        refused = answers[0]
        assert isinstance(refused, LeaseHeldError)
        assert refused.reason == "released"
        assert store.load("run") == []


def test_nobody_is_answered_before_the_commit(tmp_path: Path) -> None:
    """A refusal neither: what it says of the store must have been committed."""
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store, SqliteStore(path) as observer:
        lease = store.acquire("run", "owner")
        seen: list[list[bool]] = []
        committer = committer_of(store)
        (connection,) = committer.connections()

        def look(_cursor: object, statement: str, _bound: object) -> bool:
            if statement == "COMMIT":
                seen.append([job.done for job in committer._batch])
                assert observer.load("run") == []
            return True

        connection.set_exec_trace(look)
        answers = together(
            store,
            [
                lambda: store.append("run", record(0), lease=lease),
                lambda: store.acquire("run", "other"),
            ],
        )
        connection.set_exec_trace(None)
        assert seen == [[False, False]]
        assert answers[0] is None
        assert isinstance(answers[1], LeaseHeldError)


def test_a_statement_that_fails_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    """The batch is rolled back whole, and its members run again one by one."""
    with SqliteStore(tmp_path / "runs.db") as store:
        (connection,) = committer_of(store).connections()

        def fail(_cursor: object, statement: str, bound: object) -> bool:
            if "INTO meta" in statement and "broken" in str(bound):
                msg = "the disk, as this test has it"
                raise apsw.IOError(msg)
            return True

        row = RunMeta(run_id="broken", status="ok", updated_at="2026-01-01T00:00:00.000Z")
        connection.set_exec_trace(fail)
        answers = together(
            store,
            [
                lambda: store.append("run", record(0)),
                lambda: store.put_meta(row),
                lambda: store.append("run", record(1)),
            ],
        )
        connection.set_exec_trace(None)
        assert (answers[0], answers[2]) == (None, None)
        assert isinstance(answers[1], StoreError)
        assert not isinstance(answers[1], OutcomeUnknownError)
        assert [found.seq for found in store.load("run")] == [0, 1]
        assert store.get_meta("broken") is None
        store.put_meta(row)


def test_a_mutation_of_several_statements_is_whole_or_nothing(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        store.append("run", record(0))
        row = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")
        store.put_meta(row)
        lease = store.acquire("run", "owner")
        (connection,) = committer_of(store).connections()

        def fail(_cursor: object, statement: str, _bound: object) -> bool:
            if statement.startswith("DELETE FROM leases"):
                msg = "the disk, as this test has it"
                raise apsw.IOError(msg)
            return True

        for calls in ([], [lambda: store.append("neighbour", record(0))]):
            connection.set_exec_trace(fail)
            answers = together(store, [lambda: store.delete("run", lease=lease), *calls])
            connection.set_exec_trace(None)
            assert isinstance(answers[0], StoreError)
            assert len(store.load("run")) == 1
            assert store.get_meta("run") == row
            store.renew(lease)
        assert len(store.load("neighbour")) == 1


def test_a_batch_is_bounded_in_bytes(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        twin = store.transcripts()
        blob = b"x" * (3 * 1024 * 1024)
        with statements_of(store) as noted:
            answers = together(
                store,
                [lambda n=n: twin.put(f"run/{n}", blob) for n in range(6)],  # type: ignore[misc]
            )
        assert answers == [None] * 6
        assert noted.count("COMMIT") >= 3


def test_each_caller_keeps_its_own_deadline(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db", busy_timeout_ms=150) as store:
        blocker = apsw.Connection(store.path)
        blocker.execute("BEGIN IMMEDIATE")
        answers: list[StoreBusyError] = []

        def wait(seq: int) -> None:
            with pytest.raises(StoreBusyError) as busy:
                store.append("run", record(seq))
            answers.append(busy.value)

        crowd = [threading.Thread(target=wait, args=(seq,)) for seq in range(4)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        blocker.execute("ROLLBACK")
        blocker.close()
        assert all(error.retryable and error.waited_ms is not None for error in answers)
        waited = [error.waited_ms or 0 for error in answers]
        assert min(waited) >= 150
        assert max(waited) < 2_000
        assert store.load("run") == []
        store.append("run", record(0))


def test_sixty_four_threads_all_get_their_answers(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        barrier = threading.Barrier(64)

        def work(number: int) -> None:
            lease = store.acquire(f"run-{number}", "owner")
            barrier.wait()
            for seq in range(20):
                store.append(f"run-{number}", record(seq), lease=lease)
                if seq % 7 == 0:
                    store.renew(lease)
            store.release(lease)

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        for number in range(64):
            assert [found.seq for found in store.load(f"run-{number}")] == list(range(20))
        assert store.list_leases(None, 100) == []
