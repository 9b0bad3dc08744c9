"""A store that is opened to be looked at: nothing on disk changes, not even by closing it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from rulvar.core import open_stores
from rulvar.core.errors import ConfigError, LeaseHeldError, StoreClosedError
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.urls import StoreURL
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.errors import translate

DIES = """
import os, signal, sys
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.append("r", JournalRecord(seq=0, payload=b'{"seq":0}'))
store.put_meta(RunMeta(run_id="r", status="running", updated_at="-"))
store.transcripts().put("r/x", b"blob")
os.kill(os.getpid(), signal.SIGKILL)
"""

READS = """
import sys
from rulvar.stores.sqlite import SqliteStore
with SqliteStore(sys.argv[1], read_only=True) as store:
    assert [r.seq for r in store.load("r")] == [0]
    assert [m.run_id for m in store.list_runs()] == ["r"]
    assert store.transcripts().get("r/x") == b"blob"
    assert store.list_run_ids(None, 10) == ["r"]
"""

META = RunMeta(run_id="r", status="running", updated_at="-")
RECORD = JournalRecord(seq=1, payload=b'{"seq":1}')


def killed(path: Path) -> None:
    """Leave a file whose writer has died, with everything still in its log."""
    done = subprocess.run([sys.executable, "-c", DIES, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def on_disk(folder: Path) -> dict[str, bytes]:
    """Return the bytes of what is kept; the ``-shm`` file is an index in memory, rebuilt at will.

    No store of this process has the file open: closing a handle would drop its locks.
    """
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix != ".db-shm"}


@pytest.mark.slow
def test_reading_changes_neither_the_database_nor_its_log(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    killed(path)
    before = on_disk(tmp_path)
    assert before["runs.db-wal"]
    # In a process of its own, so that it is the last to close the file.
    subprocess.run([sys.executable, "-W", "error", "-c", READS, str(path)], check=True, timeout=60)
    assert on_disk(tmp_path) == before
    # The opposite, so that the comparison is known to see something.
    writing = READS.replace(", read_only=True", "")
    subprocess.run([sys.executable, "-c", writing, str(path)], check=True, timeout=60)
    assert on_disk(tmp_path) != before


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        SqliteStore(tmp_path / "missing.db", read_only=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="in memory"):
        SqliteStore(":memory:", read_only=True)


@pytest.mark.parametrize("tables", [(), ("CREATE TABLE entries (a)",)])
def test_a_file_without_the_layout_is_refused_as_it_is(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    for statement in ("CREATE TABLE theirs (a)", *tables):
        connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="no runs and never had"):
        SqliteStore(path, read_only=True)
    assert path.read_bytes() == before


def test_every_call_that_would_change_something_is_refused_typed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        lease = store.acquire("r", "o")
        store.append("r", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=lease)
    with SqliteStore(path, read_only=True) as store:
        twin = store.transcripts()
        for mutate in (
            lambda: store.append("r", RECORD),
            lambda: store.append("r", RECORD, lease=lease),
            lambda: store.put_meta(META),
            lambda: store.delete("r"),
            lambda: store.delete_whole_run("r", lease=lease),
            lambda: store.acquire("x", "o"),
            lambda: store.renew(lease),
            lambda: store.release(lease),
            lambda: store.revive(lease),
            lambda: store.seize("r", "o"),
            lambda: store.raise_epoch("r", 9),
            lambda: twin.put("r/x", b""),
            lambda: twin.delete("r/x", lease=lease),
        ):
            with pytest.raises(ConfigError, match="read_only"):
                mutate()
        # The order of the checks is the same as ever.
        with pytest.raises(LeaseHeldError, match="is for run"):
            store.put_meta(META, lease=Lease(run_id="s", owner="o", epoch=1))
        seen = store.get_lease("r")
        assert seen is not None
        assert (seen.epoch, seen.live) == (1, True)
    with pytest.raises(StoreClosedError):
        store.acquire("x", "o")


def test_a_reader_sees_what_a_writer_commits_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as writer, SqliteStore(path, read_only=True) as reader:
        assert reader.load("r") == []
        writer.append("r", JournalRecord(seq=0, payload=b'{"seq":0}'))
        assert [record.seq for record in reader.load("r")] == [0]
        assert reader.fencing_domain == writer.fencing_domain


def test_a_url_can_ask_for_it_and_a_caller_can_prefer_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}{os.sep}runs.db"
    preferred = StoreURL.parse(url).preferring(read_only="true", unheard_of="1")
    for wish in (f"{url}?read_only=true", preferred):
        with pytest.raises(ConfigError, match="there is no file"):
            open_stores(wish)
    with open_stores(StoreURL.parse(f"{url}?read_only=false").preferring(read_only="true")):
        assert Path(tmp_path / "runs.db").exists()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_read_only_file_system_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    path = str(tmp_path / "runs.db")
    flags = os.ST_RDONLY if read_only else 0
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=flags))
    said = str(translate(apsw.CantOpenError("unable to open database file"), path=path))
    assert path in said
    assert ("is on a read-only file system" in said) == read_only
    assert ("copy it with its -wal file" in said) == read_only
