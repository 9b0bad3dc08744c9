"""A store's life: opening, options, sharing a file, forking, closing, and its URL."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.capabilities import (
    fencing_domain_of,
    has_blob_info,
    has_epoch_floor,
    has_fenced_journal,
    has_fenced_transcripts,
    has_journal_tail,
    has_lease_admin,
    has_lease_batch,
    has_lease_revival,
    has_meta_lookup,
    has_run_inventory,
    has_whole_run_delete,
)
from rulvar.core.errors import ConfigError, StoreClosedError, StoreError, StoreForkedError
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.stores.sqlite import connection as connections
from rulvar.stores.sqlite import group_commit
from rulvar.stores.sqlite.connection import require_sqlite, resolve
from rulvar.stores.sqlite.database import Database
from rulvar.stores.sqlite.os_checks import network_filesystem
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.spi import (
        BlobInfo,
        Closable,
        EpochFloor,
        FencedJournalStore,
        FencedTranscriptStore,
        JournalTail,
        LeaseAdmin,
        LeaseBatch,
        LeaseRevival,
        MetaLookup,
        RunInventory,
        WholeRunDelete,
    )
    from rulvar.stores.sqlite.database import _Reader

WHEN = "2026-01-01T00:00:00.000Z"
RECORD = JournalRecord(seq=0, payload=b'{"seq":0}')
LEASE = Lease(run_id="run", owner="owner", epoch=1)

CALLS: dict[str, Callable[[SqliteStore], object]] = {
    "append": lambda store: store.append("run", RECORD),
    "load": lambda store: store.load("run"),
    "load_after": lambda store: store.load_after("run", -1, 1),
    "put_meta": lambda store: store.put_meta(RunMeta(run_id="run", status="ok", updated_at=WHEN)),
    "get_meta": lambda store: store.get_meta("run"),
    "list_runs": lambda store: store.list_runs(),
    "list_run_ids": lambda store: store.list_run_ids(None, 1),
    "delete": lambda store: store.delete("run"),
    "delete_whole_run": lambda store: store.delete_whole_run("run"),
    "acquire": lambda store: store.acquire("run", "owner"),
    "renew": lambda store: store.renew(LEASE),
    "renew_all": lambda store: store.renew_all([LEASE]),
    "release": lambda store: store.release(LEASE),
    "revive": lambda store: store.revive(LEASE),
    "seize": lambda store: store.seize("run", "owner"),
    "raise_epoch": lambda store: store.raise_epoch("run", 1),
    "get_lease": lambda store: store.get_lease("run"),
    "list_leases": lambda store: store.list_leases(None, 1),
    "blob put": lambda store: store.transcripts().put("run/blob", b""),
    "blob get": lambda store: store.transcripts().get("run/blob"),
    "blob list": lambda store: store.transcripts().list_refs("run"),
    "blob delete": lambda store: store.transcripts().delete("run/blob"),
    "blob info": lambda store: store.transcripts().blob_info("run/blob"),
}


def typed(store: SqliteStore) -> None:
    """Both halves satisfy their protocols, for the type checker that reads this."""
    journal: FencedJournalStore = store
    blobs: FencedTranscriptStore = store.transcripts()
    lookup: MetaLookup = store
    tail: JournalTail = store
    admin: LeaseAdmin = store
    batch: LeaseBatch = store
    floor: EpochFloor = store
    revival: LeaseRevival = store
    inventory: RunInventory = store
    whole: WholeRunDelete = store
    info: BlobInfo = store.transcripts()
    closable: Closable = store
    assert [
        journal,
        blobs,
        lookup,
        tail,
        admin,
        batch,
        floor,
        revival,
        inventory,
        whole,
        info,
        closable,
    ]


def test_every_capability_is_there_and_the_marker_is_declared(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db", lease_ttl_ms=9_000) as store:
        typed(store)
        twin = store.transcripts()
        guards: list[Callable[[object], object]] = [
            has_fenced_journal,
            has_meta_lookup,
            has_journal_tail,
            has_lease_admin,
            has_epoch_floor,
            has_lease_batch,
            has_lease_revival,
            has_run_inventory,
            has_whole_run_delete,
        ]
        assert all(guard(store) for guard in guards)
        assert has_fenced_transcripts(twin)
        assert has_blob_info(twin)
        assert twin is store.transcripts()
        assert (store.lease_ttl_ms, store.busy_timeout_ms) == (9_000, 1_800)
        assert fencing_domain_of(store) == fencing_domain_of(twin) is not None


# --- one file, many stores ----------------------------------------------------------------


def test_the_fencing_domain_is_the_database(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    paths = [tmp_path / "a.db", tmp_path / "link" / "a.db", tmp_path / "b.db"]
    stores = [SqliteStore(path) for path in paths]
    stores += [SqliteStore(":memory:"), SqliteStore(":memory:")]
    domains = [store.fencing_domain for store in stores]
    assert domains[0] == domains[1]
    assert len(set(domains)) == 4
    for store in stores:
        store.close()


def test_two_stores_of_one_process_fence_each_other(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as one, SqliteStore(path) as two:
        leases = [one.acquire("a", "one"), two.acquire("b", "two")]

        def work(store: SqliteStore, lease: Lease) -> None:
            for seq in range(200):
                record = JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)
                store.append(lease.run_id, record, lease=lease)

        crowd = [
            threading.Thread(target=work, args=pair)
            for pair in zip((one, two), leases, strict=True)
        ]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert len(one.load("b")) == len(two.load("a")) == 200


def test_a_database_in_memory_is_its_own(tmp_path: Path) -> None:
    with SqliteStore(":memory:") as one, SqliteStore(":memory:") as two:
        one.append("run", RECORD)
        assert two.load("run") == []
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            barrier.wait()
            lease = one.acquire(f"r{number}", "owner")
            for seq in range(50):
                record = JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)
                one.append(lease.run_id, record, lease=lease)
                assert len(one.load(lease.run_id)) == seq + 1

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert [len(one.load(f"r{n}")) for n in range(8)] == [50] * 8
    assert list(tmp_path.iterdir()) == []


# --- closing and forking ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["runs.db", ":memory:"])
def test_after_close_every_call_is_refused(path: str, tmp_path: Path) -> None:
    store = SqliteStore(path if path == ":memory:" else tmp_path / path)
    store.append("run", RECORD)
    store.load("run")
    store.transcripts().close()
    store.close()
    for call in CALLS.values():
        with pytest.raises(StoreClosedError):
            call(store)
    assert not Path(f"{tmp_path / path}-wal").exists()


def test_close_waits_for_the_calls_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that were not in the batch which the closing store meets."""
    monkeypatch.setattr(group_commit, "_MOST_JOBS", 1)
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE")
    landed: list[int] = []

    def append(number: int) -> None:
        store.append(f"run-{number}", RECORD)
        landed.append(number)

    crowd = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for number, thread in enumerate(crowd, start=1):
        thread.start()
        while len(store._database._committer._queue) < number:
            pass
    closers = [threading.Thread(target=store.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    while not store._database.life.is_closed:
        pass
    assert all(closer.is_alive() for closer in closers)
    blocker.execute("ROLLBACK")
    blocker.close()
    for thread in (*crowd, *closers):
        thread.join()
    assert sorted(landed) == [0, 1, 2, 3]
    with SqliteStore(path) as again:
        assert again.list_run_ids(None, 9) == [f"run-{number}" for number in range(4)]


def test_a_read_that_waited_for_a_store_that_closes_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was let in, and then waited for a connection: no connection may outlive the store."""
    store = SqliteStore(tmp_path / "runs.db")
    database, choose = store._database, Database._choose

    def close_and_choose(self: Database) -> _Reader:
        store.close()
        return choose(self)

    monkeypatch.setattr(Database, "_choose", close_and_choose)
    with pytest.raises(StoreClosedError):
        store.load("run")
    assert list(database.connections()) == []


def in_a_forked_child(check: Callable[[], None]) -> int:
    """Run the check in a forked child; return its exit status, 0 when the check passed."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_closes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    held = {"store": store}
    store.append("run", RECORD)
    store.load("run")
    own = [*store._database.connections(), *store._database.cursors()]
    assert len(own) == 3
    ghosts = [weakref.ref(handle) for handle in own]
    own.clear()
    del store

    def check() -> None:
        for call in CALLS.values():
            with pytest.raises(StoreForkedError):
                call(held["store"])
        for close in (held["store"].close, held["store"].transcripts().close):
            with pytest.raises(StoreForkedError):
                close()
        del call, close
        held.clear()
        gc.collect()
        # Nobody refers to the store any more, and what it had open is kept all the same.
        assert all(ghost() is not None for ghost in ghosts)

    assert in_a_forked_child(check) == 0
    assert Path(f"{path}-wal").exists()
    held["store"].append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
    held["store"].close()
    assert not Path(f"{path}-wal").exists()


FORKED = """
import os, sys
from rulvar.core.errors import StoreForkedError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
child = os.fork()
if child == 0:
    try:
        store.load("run")
    except StoreForkedError:
        sys.exit(0)  # an ordinary end, which finalises whatever it can
    sys.exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert os.path.exists(sys.argv[1] + "-wal")
store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
print(status, [record.seq for record in store.load("run")])
store.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_that_ends_in_an_ordinary_way_harms_nobody(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "runs.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 [0, 1]\n", "")


# --- opening ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl_ms": 0},
        {"lease_ttl_ms": 2**31},
        {"lease_ttl_ms": 1.5},
        {"lease_ttl_ms": True},
        {"busy_timeout_ms": -1},
        {"busy_timeout_ms": 1.5},
        {"open_timeout_ms": "1"},
        {"durability": "off"},
    ],
)
def test_a_wrong_option_is_refused_before_the_file_is_made(
    options: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    with pytest.raises(ConfigError) as refused:
        SqliteStore(path, **options)  # type: ignore[arg-type]
    (name, value), *_ = options.items()
    assert name in str(refused.value)
    assert str(value) in str(refused.value)
    assert not path.exists()


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "runs.db"
    for path in ("", "a\0b", "a\ud800", "a\udcff", 7, b"runs.db", tmp_path, nowhere):
        with pytest.raises(ConfigError):
            SqliteStore(path)  # type: ignore[arg-type]


def test_a_relative_path_is_kept_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with SqliteStore("runs.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.append("run", RECORD)
        assert len(store.load("run")) == 1
        assert store.path == str(tmp_path / "runs.db")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_sqlite_that_corrupts_is_refused() -> None:
    for version in ("3.7.0", "3.51.2", "3.9.99"):
        with pytest.raises(ConfigError) as refused:
            require_sqlite(version)
        assert version in str(refused.value)
    for version in ("3.51.3", "3.52.0", "4.0.0"):
        require_sqlite(version)
    require_sqlite()


def test_somebody_elses_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("CREATE TABLE entries (title TEXT)")
    theirs.close()
    with pytest.raises(ConfigError) as refused:
        SqliteStore(path)
    assert "entries" in str(refused.value)
    theirs = apsw.Connection(str(path))
    names = [name for (name,) in theirs.execute("SELECT name FROM sqlite_schema").fetchall()]
    theirs.close()
    assert names == ["entries"]
    sixteen = tmp_path / "sixteen.db"
    other = apsw.Connection(str(sixteen))
    other.execute("PRAGMA encoding = 'UTF-16'").fetchall()
    other.execute("CREATE TABLE unrelated (title TEXT)")
    other.close()
    with pytest.raises(ConfigError):
        SqliteStore(sixteen)


@pytest.mark.skipif(sys.platform != "linux", reason="a file that nobody may write")
def test_a_file_that_may_not_be_written_is_reported() -> None:
    with pytest.raises(StoreError) as refused:
        SqliteStore("/proc/version")
    assert "/proc/version" in str(refused.value)


MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/nfs rw - nfs4 server:/export rw
31 21 0:41 / /mnt/with\040space rw - cifs //server/share rw
32 21 0:42 / /mnt/nfs/local rw - xfs /dev/sdb1 rw
33 21 0:43 / /srv rw - nfs server:/srv rw
34 21 0:44 / /srv rw - ext4 /dev/sdc1 rw
35 21 0:45 / /media rw shared:2 master:1 - fuse.sshfs me@host: rw
36 21 0:46 / /mnt/nine rw - 9p share rw
nonsense
"""


def test_a_network_file_system_is_refused_with_the_way_to_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS, encoding="utf-8")
    kinds = {
        "/var/runs.db": None,
        "/mnt/nfs/runs.db": "nfs4",
        "/mnt/nfs-not/runs.db": None,
        "/mnt/with space/runs.db": "cifs",
        "/mnt/nfs/local/runs.db": None,
        "/srv/runs.db": None,
        "/media/x/runs.db": "fuse.sshfs",
        "/mnt/nine/runs.db": "9p",
    }
    assert {path: network_filesystem(path, table) for path in kinds} == kinds
    assert network_filesystem("/var/runs.db", tmp_path / "none") is None
    monkeypatch.setattr(connections, "network_filesystem", lambda _path: "nfs4")
    with pytest.raises(ConfigError) as refused:
        SqliteStore(tmp_path / "runs.db")
    assert "nfs4" in str(refused.value)
    assert "allow_network_filesystem=True" in str(refused.value)
    assert not (tmp_path / "runs.db").exists()
    assert resolve(tmp_path / "runs.db", allow_network_filesystem=True)
    SqliteStore(tmp_path / "runs.db", allow_network_filesystem=True).close()
