"""Busy is not lost: a locked file is waited for, fairly and not for ever; births do not clash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from rulvar.core.errors import ConfigError, StoreBusyError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite.os_checks import who_blocks
from rulvar.stores.sqlite.store import SqliteStore

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's table of locks")

HOLDER = """
import os, sys
import apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("holding", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def holder_of(path: Path) -> subprocess.Popen[str]:
    """Start a process that holds the write lock until it is told to let go."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    return holder


def wait_until_stopped(pid: int) -> None:
    while True:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        if state == "T":
            return
        time.sleep(0.001)


@pytest.mark.slow
@linux
def test_the_error_names_a_process_that_was_stopped_inside_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path, busy_timeout_ms=100) as store:
        lease = store.acquire("run", "owner")
        store.append("run", record(0), lease=lease)
        holder = holder_of(path)
        os.kill(holder.pid, signal.SIGSTOP)
        wait_until_stopped(holder.pid)
        begun = time.monotonic()
        with pytest.raises(StoreBusyError) as busy:
            store.append("run", record(1), lease=lease)
        assert 0.1 <= time.monotonic() - begun < 2
        assert busy.value.retryable
        assert busy.value.blocker is not None
        assert f"process {holder.pid} " in busy.value.blocker
        assert "stopped" in busy.value.blocker
        assert busy.value.blocker in str(busy.value)
        # Readers go on, and so does somebody who opens the file.
        assert [found.seq for found in store.load("run")] == [0]
        SqliteStore(path).close()
        os.kill(holder.pid, signal.SIGCONT)
        holder.communicate("let go\n", timeout=30)
        store.append("run", record(1), lease=lease)


@linux
def test_the_blocker_is_found_without_opening_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path, busy_timeout_ms=100) as store, SqliteStore(path) as other:
        assert who_blocks(str(path)) is None
        (connection,) = other._database._committer.connections()
        connection.execute("BEGIN IMMEDIATE")
        open_files = len(list(Path("/proc/self/fd").iterdir()))
        blocker = who_blocks(str(path))
        assert len(list(Path("/proc/self/fd").iterdir())) == open_files
        assert blocker is not None
        assert f"process {os.getpid()} (this one" in blocker
        with pytest.raises(StoreBusyError):
            store.append("run", record(0))
        connection.execute("ROLLBACK")
        store.append("run", record(0))


def test_the_table_of_locks_is_read_with_care(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    shm = Path(f"{path}-shm")
    shm.touch()
    found = shm.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    table = tmp_path / "locks"

    def told(*lines: str) -> str | None:
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return who_blocks(str(path), table)

    mine = f"{device}:{found.st_ino}"
    assert told() is None
    assert told("nonsense", "1: POSIX  ADVISORY  WRITE") is None
    assert told(f"1: POSIX  ADVISORY  READ 4000001 {mine} 120 120") is None
    assert told(f"1: POSIX  ADVISORY  WRITE 4000001 {mine} 123 123") is None
    assert told(f"1: POSIX  ADVISORY  WRITE 4000001 {device}:1 120 120") is None
    assert told(f"1: POSIX  ADVISORY  WRITE 4000001 {mine} 120 120") == "process 4000001"
    assert told(f"1: OFDLCK ADVISORY  WRITE 0 {mine} 120 120") is None
    assert told(f"1: POSIX  ADVISORY  WRITE 4000001 {mine} 0 EOF") == "process 4000001"
    path.touch()
    found = path.stat()
    whole = f"{device}:{found.st_ino}"
    assert told(f"1: POSIX  ADVISORY  READ 4000003 {whole} 1073741826 1073742335") is None
    assert told(f"1: POSIX  ADVISORY  WRITE 4000003 {whole} 120 120") is None
    for lock in ("1073741825 1073741825", "1073741826 1073742335", "1073741824 1073741824"):
        told_of = told(f"1: POSIX  ADVISORY  WRITE 4000003 {whole} {lock}")
        assert told_of == "process 4000003"
    elsewhere = f"1: POSIX  ADVISORY  WRITE 4000002 ff:ff:{shm.stat().st_ino} 120 120"
    assert told(elsewhere) == "process 4000002"
    assert told(elsewhere, f"2: POSIX  ADVISORY  WRITE 4000001 {mine} 120 120") == "process 4000001"


def test_the_busy_timeout_must_be_below_a_third_of_the_ttl(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for ttl_ms, busy_ms in ((300, 100), (1, 1), (60_000, 20_000)):
        with pytest.raises(ConfigError) as refused:
            SqliteStore(path, lease_ttl_ms=ttl_ms, busy_timeout_ms=busy_ms)
        assert str(busy_ms) in str(refused.value)
    assert not path.exists()
    with SqliteStore(path, lease_ttl_ms=300, busy_timeout_ms=99) as store:
        assert store.busy_timeout_ms == 99
    for ttl_ms in (1, 2, 3, 10, 1_000, 60_000, 2**31 - 1):
        with SqliteStore(":memory:", lease_ttl_ms=ttl_ms) as store:
            assert store.busy_timeout_ms * 4 <= ttl_ms, "well under a third, without being told"


@pytest.mark.slow
def test_a_lock_is_waited_for_and_the_write_then_lands(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        holder = holder_of(path)
        tries = 0

        def let_go_at_the_third_try(_cursor: object, statement: str, _bound: object) -> bool:
            nonlocal tries
            tries += statement == "BEGIN IMMEDIATE"
            if tries == 3 and holder.poll() is None:
                holder.communicate("let go\n", timeout=30)
            return True

        (connection,) = store._database._committer.connections()
        connection.set_exec_trace(let_go_at_the_third_try)
        store.append("run", record(0))
        connection.set_exec_trace(None)
        assert tries >= 3
        assert len(store.load("run")) == 1


BORN = """
import sys
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore
folder, name, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(files):
    # Patient, since a slow disk is no clash: what is shown is that no error comes of births.
    options = {"lease_ttl_ms": 300_000, "busy_timeout_ms": 60_000, "open_timeout_ms": 60_000}
    with SqliteStore(f"{folder}/{number}.db", **options) as store:
        lease = store.acquire(f"run-{name}", name)
        store.append(lease.run_id, JournalRecord(seq=0, payload=b'{"seq":0}'), lease=lease)
print("born", flush=True)
"""


def be_born(folder: Path, processes: int, files: int) -> float:
    """Let processes open the same fresh files at once; return how many seconds it took."""
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", BORN, str(folder), str(number), str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for one in crowd:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for one in crowd:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    said = [one.communicate(timeout=110) for one in crowd]
    assert [(out, err) for out, err in said] == [("born\n", "")] * processes
    seconds = time.monotonic() - begun
    for number in range(files):
        with SqliteStore(folder / f"{number}.db") as store:
            assert store.list_run_ids(None, 99) == [f"run-{n}" for n in range(processes)]
    return seconds


@pytest.mark.storm
def test_eight_processes_give_birth_to_forty_files_at_once(tmp_path: Path) -> None:
    assert be_born(tmp_path, processes=8, files=40) < 60


def test_an_opener_does_not_wait_for_ever_for_a_stopped_process(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    half_born = apsw.Connection(str(path))
    half_born.execute("PRAGMA journal_mode = WAL").fetchall()
    half_born.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(StoreBusyError) as busy:
        SqliteStore(path, open_timeout_ms=200)
    assert 0.2 <= time.monotonic() - begun < 2
    assert busy.value.retryable
    half_born.execute("ROLLBACK")
    half_born.close()
    SqliteStore(path, open_timeout_ms=200).close()


@pytest.mark.slow
@linux
def test_an_opener_is_told_who_keeps_it_out(tmp_path: Path) -> None:
    """A birth locks the database itself: there is no log yet whose lock could be looked up."""
    path = tmp_path / "runs.db"
    holder = holder_of(path)
    os.kill(holder.pid, signal.SIGSTOP)
    wait_until_stopped(holder.pid)
    begun = time.monotonic()
    with pytest.raises(StoreBusyError) as busy:
        SqliteStore(path, open_timeout_ms=200)
    assert 0.2 <= time.monotonic() - begun < 2
    assert busy.value.blocker is not None
    assert f"process {holder.pid} " in busy.value.blocker
    assert "stopped" in busy.value.blocker
    os.kill(holder.pid, signal.SIGCONT)
    holder.communicate("let go\n", timeout=30)
    SqliteStore(path, open_timeout_ms=200).close()


CONTENDER = """
import sys, time
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore
path, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
store = SqliteStore(path, lease_ttl_ms=300_000, busy_timeout_ms=60_000)
lease = store.acquire(name, "owner")
print("ready", flush=True)
sys.stdin.readline()
deadline, seq = time.monotonic() + seconds, 0
while time.monotonic() < deadline:
    store.append(name, JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq), lease=lease)
    seq += 1
print(seq, flush=True)
store.close()
"""


@pytest.mark.storm
def test_processes_that_contend_share_the_file_fairly(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(path), f"run-{number}", "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for one in crowd:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in crowd:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    counts = [int(one.communicate(timeout=60)[0]) for one in crowd]
    # SQLite's own busy handler lets a process starve here: next to nothing of the others' share.
    assert min(counts) > 0.1 * max(counts)
    with SqliteStore(path) as store:
        for number, count in enumerate(counts):
            assert [found.seq for found in store.load(f"run-{number}")] == list(range(count))
