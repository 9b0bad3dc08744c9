"""Who replaces a database or its log under a running store ends that store, and harms nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.errors import StoreCorruptError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite import SqliteStore, open_files
from rulvar.stores.sqlite.open_files import OpenFiles

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

WHEN = "2026-01-01T00:00:00.000Z"


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def index_of(path: Path) -> Path:
    return Path(f"{path}-shm")


def remove_log(path: Path) -> None:
    log_of(path).unlink()


def remove_index(path: Path) -> None:
    index_of(path).unlink()


def replace_log(path: Path) -> None:
    other = path.with_name("other-wal")
    other.touch()
    other.replace(log_of(path))


def use_another_library(path: Path) -> None:
    """Open and close it with the interpreter's own SQLite, which knows nothing of apsw's."""
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM entries").fetchall()
    other.close()


TAKINGS = [remove_log, remove_index, replace_log, use_another_library]


def in_another_process(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SUCCESSOR = """
import sys
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

with SqliteStore(sys.argv[1]) as store:
    tail = [record.seq for record in store.load("run")]
    lease = store.seize("run", "successor")
    store.append("run", JournalRecord(seq=50, payload=b'{"seq":50}'), lease=lease)
    print(tail)
"""


@pytest.mark.parametrize("take", TAKINGS, ids=lambda take: take.__name__)
def test_a_log_that_is_taken_away_takes_no_more(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    lease = store.acquire("run", "owner")
    store.append("run", record(0), lease=lease)
    take(path)
    if not index_of(path).exists():  # with the old index, another process would meet an error
        in_another_process(SUCCESSOR, path)
    calls: list[Callable[[], object]] = [
        lambda: store.append("run", record(1), lease=lease),
        lambda: store.renew(lease),
        lambda: store.put_meta(RunMeta(run_id="run", status="ok", updated_at=WHEN), lease=lease),
        lambda: store.transcripts().put("run/blob", b"late", lease=lease),
        lambda: store.seize("run", "another"),
        lambda: store.load("run"),
        lambda: store.get_lease("run"),
    ]
    for call in calls:
        with pytest.raises(StoreCorruptError, match=r"runs\.db-(wal|shm) was (removed|replaced)"):
            call()
    store.close()
    assert integrity(path) == "ok"
    in_another_process(SUCCESSOR.replace("50", "60"), path)
    with SqliteStore(path) as again:
        assert 1 not in [found.seq for found in again.load("run")]
        assert again.transcripts().list_refs("run") == []


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    try:
        return str(connection.execute("PRAGMA integrity_check").get)
    finally:
        connection.close()


def test_a_reader_that_opens_late_sees_the_replacement(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    store.append("run", record(0))  # no read yet, and so no connection for reads
    remove_log(path)
    remove_index(path)
    in_another_process(SUCCESSOR, path)
    with pytest.raises(StoreCorruptError, match="-wal was replaced"):
        store.load("run")
    store.close()


def test_another_store_of_the_process_does_not_join_a_log_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    store.append("run", record(0))
    remove_log(path)
    remove_index(path)
    log_of(path).touch()
    with pytest.raises(StoreCorruptError, match=r"-(wal|shm) was replaced"):
        SqliteStore(path)
    store.close()
    SqliteStore(path).close()


def test_a_log_that_goes_while_another_store_opens_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look before the opening saw nothing yet; the one after it does."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    store.append("run", record(0))
    look = open_files.check_open

    def look_then_lose(path_: str) -> None:
        look(path_)
        remove_log(path)
        remove_index(path)
        index_of(path).touch()

    monkeypatch.setattr(open_files, "check_open", look_then_lose)
    # As on a system that does not tell which files a process has open.
    monkeypatch.setattr(open_files, "open_descriptors", set)
    with pytest.raises(StoreCorruptError, match=r"-(wal|shm) was replaced"):
        SqliteStore(path)
    monkeypatch.undo()
    store.close()
    SqliteStore(path).close()


def test_what_is_not_open_here_is_not_taken_for_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between SQLite's opening of the log and the look at it, another one took its name."""
    path = tmp_path / "runs.db"
    SqliteStore(path).close()
    if not open_files.open_descriptors():
        pytest.skip("this system does not tell what is open")
    look = OpenFiles.of.__func__  # type: ignore[attr-defined]

    def late(
        cls: type[OpenFiles], connection: apsw.Connection, path: str, *, logged: bool
    ) -> OpenFiles:
        replace_log(Path(path))
        return look(cls, connection, path, logged=logged)  # type: ignore[no-any-return]

    monkeypatch.setattr(OpenFiles, "of", classmethod(late))
    with pytest.raises(StoreCorruptError, match="-wal was replaced"):
        SqliteStore(path)


# --- a restore in place ---------------------------------------------------------------------


def copy_of(path: Path, *, how: str) -> Path:
    """Make a backup as operators do: with the log moved, or by VACUUM INTO."""
    backup = path.with_name("backup.db")
    if how == "vacuum":
        connection = apsw.Connection(str(path))
        connection.execute("VACUUM INTO ?", (str(backup),))
        connection.close()
    else:
        shutil.copy(path, backup)
    return backup


def restore(backup: Path, path: Path) -> None:
    in_another_process(
        "import shutil, sys, os\n"
        "shutil.copyfile(sys.argv[1], sys.argv[2])\n"
        "for end in ('-wal', '-shm'):\n"
        "    os.remove(sys.argv[2] + end)\n",
        backup,
        path,
    )


@pytest.mark.parametrize(
    ("how", "next_holder"),
    # A VACUUM INTO copy has no log yet, and nobody can give it one while the worker has it open.
    [("copy", False), ("copy", True), ("vacuum", False)],
)
def test_a_restore_in_place_ends_a_live_worker(tmp_path: Path, how: str, next_holder: bool) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as before:
        for at in range(40):
            before.append(f"old-{at}", record(0))
        before.delete("old-7")
        backup_lease = before.acquire("run", "first")
        before.release(backup_lease)
    backup = copy_of(path, how=how)
    worker = SqliteStore(path)
    lease = worker.acquire("run", "worker")
    for seq in range(30):
        worker.append("run", record(seq), lease=lease)
    restore(backup, path)
    holder = SUCCESSOR.replace("seize", "acquire")
    if next_holder:  # it is granted the same epoch a second time: the tombstone was restored too
        assert in_another_process(holder, path) == "[]\n"
    calls: list[Callable[[], object]] = [
        lambda: worker.append("run", record(30), lease=lease),
        lambda: worker.renew(lease),
        lambda: worker.transcripts().put("run/blob", b"late", lease=lease),
        lambda: worker.load("run"),
    ]
    for call in calls:
        with pytest.raises(StoreCorruptError, match="nothing was written"):
            call()
    worker.close()
    assert integrity(path) == "ok"
    with SqliteStore(path) as store:
        assert [found.seq for found in store.load("run")] == ([50] if next_holder else [])
        assert store.load("old-39") == [record(0)]
        assert store.transcripts().list_refs("run") == []


def test_a_worker_that_just_ends_harms_a_restored_file_as_little(tmp_path: Path) -> None:
    """It never closes its store: what is only dropped moves no log."""
    path = tmp_path / "runs.db"
    with SqliteStore(path) as before:
        before.append("old", record(0))
    backup = copy_of(path, how="vacuum")
    worker = SqliteStore(path)
    for seq in range(30):
        worker.append("run", record(seq))
    restore(backup, path)
    del worker
    assert path.read_bytes() == backup.read_bytes()


FROZEN = """
import os, sys
from rulvar.core.errors import StoreCorruptError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1], lease_ttl_ms=600_000)
lease = store.acquire("run", "worker")
store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=lease)
print("ready", flush=True)
sys.stdin.readline()
try:
    store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'), lease=lease)
    print("landed")
except StoreCorruptError:
    print("refused")
store.close()
"""


def test_a_restore_under_a_frozen_worker(tmp_path: Path) -> None:
    """It waits for the file's lock, is stopped there, and goes on over another file."""
    path = tmp_path / "runs.db"
    SqliteStore(path).close()
    backup = copy_of(path, how="copy")
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        blocker = apsw.Connection(str(path))
        blocker.execute("BEGIN IMMEDIATE")
        worker.stdin.write("\n")
        worker.stdin.flush()
        os.kill(worker.pid, signal.SIGSTOP)
        blocker.execute("ROLLBACK")
        restore(backup, path)
        blocker.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        blocker.close()
        in_another_process(SUCCESSOR, path)
        os.kill(worker.pid, signal.SIGCONT)
        assert worker.communicate(timeout=60)[0] == "refused\n"
    assert integrity(path) == "ok"
    with SqliteStore(path) as store:
        assert [found.seq for found in store.load("run")] == [50]


def test_a_commit_into_a_log_that_has_just_gone_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    store.append("run", record(0))
    committer = store._database._committer
    commit = committer._commit

    def late() -> None:
        remove_log(path)
        commit()

    monkeypatch.setattr(committer, "_commit", late)
    with pytest.raises(StoreCorruptError, match="what was written at that moment is lost"):
        store.append("run", record(1))
    store.close()


# --- what is no replacement -------------------------------------------------------------------

VISITOR = """
import sys
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

with SqliteStore(sys.argv[1]) as store:
    store.append(sys.argv[2], JournalRecord(seq=0, payload=b'{"seq":0}'))
    store.load(sys.argv[2])
"""


def test_what_others_do_by_sqlite_itself_is_no_replacement(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    second = SqliteStore(path)
    for seq in range(3):
        in_another_process(VISITOR, path, f"visitor-{seq}")  # opens, writes, and closes
        store.append("run", record(seq))
        second.load("run")
    other = apsw.Connection(str(path))
    for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint"):
        other.execute(statement).fetchall()
        seq += 1
        store.append("run", record(seq))
    other.close()
    second.close()
    assert [found.seq for found in store.load("run")] == list(range(6))
    store.close()
    assert not log_of(path).exists()
    with SqliteStore(path) as again:  # the files are new ones now
        again.append("run", record(6))
        assert len(again.load("run")) == 7


def test_a_killed_writer_s_log_is_recovered_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    code = VISITOR + "    import os; os.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", code, str(path), "run"], check=False, timeout=60)
    assert done.returncode == -9
    assert log_of(path).exists()
    with SqliteStore(path) as store, SqliteStore(path, read_only=True) as reader:
        store.append("run", record(1))
        assert len(reader.load("run")) == 2
