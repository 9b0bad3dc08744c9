"""Disks fail and fill: nothing half-written is visible, and the next write works.

Faults are injected into SQLite's own calls (write, sync, truncate) at point 1, then 2, then 3,
until the work completes untouched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import apsw
import pytest
from sqlite_crowd import together

from rulvar.core.clock import SystemClock
from rulvar.core.errors import (
    LeaseHeldError,
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
)
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_POINTS = 200


def record(seq: int, size: int = 20) -> JournalRecord:
    text = f'{{"seq":{seq},"pad":"{"x" * size}"}}'
    return JournalRecord(seq=seq, payload=text.encode())


def row(run_id: str) -> RunMeta:
    return RunMeta(run_id=run_id, status="ok", updated_at="2026-01-01T00:00:00.000Z")


class FaultyDisk(apsw.VFS):
    """Counts the calls on the write-ahead log, and fails those it is told to."""

    def __init__(self) -> None:
        self.sound = apsw.vfs_names()[0]
        super().__init__("rulvar-faulty", self.sound, makedefault=True)
        self.calls = 0
        self.fail_at = range(0)
        self.kinds = frozenset({"write", "sync"})
        self.failed: list[str] = []

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> FaultyFile:
        return FaultyFile(self, name, flags)

    def meet(self, kind: str) -> None:
        if kind not in self.kinds:
            return
        self.calls += 1
        if self.calls in self.fail_at:
            self.failed.append(kind)
            codes = {"write": apsw.SQLITE_IOERR_WRITE, "sync": apsw.SQLITE_IOERR_FSYNC}
            raise apsw.exception_for(codes[kind])


class FaultyFile(apsw.VFSFile):
    def __init__(
        self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__(disk.sound, name, flags)
        self.disk = disk if flags[0] & apsw.SQLITE_OPEN_WAL else None

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        if self.disk is not None:
            self.disk.meet("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if self.disk is not None:
            self.disk.meet("sync")
        super().xSync(flags)


class LeapingClock(SystemClock):
    """Leaps over every lease as soon as the disk has failed."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk

    def now_ms(self) -> int:
        return super().now_ms() + (3_600_000 if self._disk.failed else 0)


@contextmanager
def faulty(path: Path, *, leaps: bool = False) -> Iterator[tuple[SqliteStore, FaultyDisk]]:
    """Open a store whose writer has a faulty disk; every later connection has a sound one."""
    disk = FaultyDisk()
    try:
        store = SqliteStore(path, clock=LeapingClock(disk) if leaps else None)
    finally:
        disk.unregister()
    yield store, disk
    disk.fail_at = range(0)
    store.close()


def after_a_crash(path: Path, aside: Path) -> SqliteStore:
    """Open a copy of the files as a crash would leave them, without the shared memory."""
    aside.mkdir()
    copy = aside / path.name
    # In another process: closing a handle on these files in this one would drop its locks.
    code = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
    for end in ("", "-wal"):
        subprocess.run([sys.executable, "-c", code, f"{path}{end}", f"{copy}{end}"], check=True)
    return SqliteStore(copy)


@pytest.mark.slow
def test_a_fault_at_every_point_leaves_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with faulty(path) as (store, disk):
        lease = store.acquire("run", "owner")
        seq = 0
        completed = False
        for point in range(1, MOST_POINTS):
            seq += 1
            disk.calls, disk.failed = 0, []
            disk.fail_at = range(point, point + 1)
            try:
                store.append("run", record(seq, 9_000), lease=lease)
                landed: bool | None = True
            except OutcomeUnknownError:
                landed = None
            except LeaseHeldError:
                raise
            except StoreError:
                landed = False
            disk.fail_at = range(0)
            present = seq in [found.seq for found in store.load("run")]
            assert landed is None or landed == present
            with after_a_crash(path, tmp_path / f"crash-{point}") as crashed:
                # What a reader was told is what a crash leaves.
                assert crashed.load("run") == store.load("run")
            shutil.rmtree(tmp_path / f"crash-{point}")
            seq += 1
            store.append("run", record(seq), lease=lease)
            if landed and not disk.failed:
                completed = True
                break
        assert completed
        assert point > 3


@pytest.mark.slow
def test_an_unconfirmed_commit_is_settled_before_anybody_reads(tmp_path: Path) -> None:
    """The sync fails and goes on failing: the outcome is unknown, and reading says so too."""
    path = tmp_path / "runs.db"
    with faulty(path) as (store, disk):
        store.append("run", record(0))
        disk.kinds = frozenset({"sync"})
        disk.fail_at = range(1_000_000)
        with pytest.raises(OutcomeUnknownError):
            store.append("run", record(1))
        with pytest.raises(StoreError):
            store.load("run")
        with pytest.raises(StoreError):
            store.append("run", record(2))
        disk.fail_at = range(0)
        told = [found.seq for found in store.load("run")]
        with after_a_crash(path, tmp_path / "crash") as crashed:
            assert [found.seq for found in crashed.load("run")] == told
        store.append("run", record(5))


def test_a_batch_whose_sync_fails_runs_again_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with faulty(path) as (store, disk):
        store.append("run-0", record(0))
        disk.kinds = frozenset({"sync"})
        disk.calls, disk.fail_at = 0, range(1, 2)
        calls = [partial(store.append, f"run-{number}", record(1)) for number in range(4)]
        answers = together(store, calls)
        assert disk.failed == ["sync"]
        assert answers == [None] * 4
        assert [store.load(f"run-{n}")[-1].seq for n in range(4)] == [1] * 4


@pytest.mark.slow
def test_a_batch_whose_sync_failed_is_off_the_disk_before_it_runs_again(tmp_path: Path) -> None:
    """Who is refused the second time is told that nothing changed: no crash may say otherwise."""
    path = tmp_path / "runs.db"
    with faulty(path, leaps=True) as (store, disk):
        leases = [store.acquire(f"run-{number}", "owner") for number in range(2)]
        disk.kinds = frozenset({"sync"})
        disk.calls, disk.fail_at = 0, range(1, 2)
        calls = [partial(store.put_meta, row(held.run_id), lease=held) for held in leases]
        answers = together(store, calls)
        assert disk.failed == ["sync"]
        assert [getattr(answer, "reason", answer) for answer in answers] == ["expired"] * 2
        with after_a_crash(path, tmp_path / "crash") as crashed:
            assert crashed.list_runs() == []


FULL = """
import resource, signal, sys, threading
from rulvar.core.errors import StoreFullError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

def record(seq):
    return JournalRecord(seq=seq, payload=b'{"seq":%d,"pad":"%s"}' % (seq, b"x" * 3000))

store = SqliteStore(sys.argv[1])
callers = int(sys.argv[2])
acknowledged = [[] for _ in range(callers)]
full = []

def work(number):
    for seq in range(100_000):
        try:
            store.append(f"run-{number}", record(seq))
        except StoreFullError as error:
            full.append(error)
            return
        acknowledged[number].append(seq)

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
crowd = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
for thread in crowd: thread.start()
for thread in crowd: thread.join()
assert len(full) == callers, full
assert "rollback" not in str(full[0]), full[0]
for number in range(callers):
    assert [r.seq for r in store.load(f"run-{number}")] == acknowledged[number]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(callers):
    last = len(acknowledged[number])
    store.append(f"run-{number}", record(last))
    assert [r.seq for r in store.load(f"run-{number}")] == [*acknowledged[number], last]
store.close()
print(sum(map(len, acknowledged)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("callers", [1, 6])
def test_a_full_disk_says_so_and_the_next_write_works(callers: int, tmp_path: Path) -> None:
    """The limit is the operating system's, on the size of a file, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "runs.db"), str(callers)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert int(done.stdout) > 10


def test_a_full_database_says_so_and_its_neighbours_go_on(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        store.append("run", record(0))
        (connection,) = store._database._committer.connections()
        pages = connection.pragma("page_count")
        connection.pragma("max_page_count", pages + 2)
        blob = b"x" * 100_000
        with pytest.raises(StoreFullError) as full:
            store.transcripts().put("run/large", blob)
        assert full.value.run_id == "run"
        assert store.transcripts().get("run/large") is None
        meta = row("run")
        store.put_meta(meta)
        connection.pragma("max_page_count", 1_000_000)
        store.transcripts().put("run/large", blob)
        assert store.transcripts().get("run/large") == blob


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"this is a text, and a long one at that. " * 100)
    with pytest.raises(StoreError) as corrupt:
        SqliteStore(path)
    assert corrupt.value.code == "store-corrupt"
    assert str(path) in str(corrupt.value)
