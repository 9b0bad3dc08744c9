"""The layout that two languages share, the pragmas on every connection, and the plans."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core import open_stores
from rulvar.core.errors import ConfigError
from rulvar.core.records import JournalRecord, RunFilter
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

SHARED_TABLES = {
    "entries": [
        ("id", "INTEGER", 0, None, 1),
        ("run_id", "TEXT", 1, None, 0),
        ("payload", "TEXT", 1, None, 0),
    ],
    "meta": [("run_id", "TEXT", 0, None, 1), ("payload", "TEXT", 1, None, 0)],
    "leases": [
        ("run_id", "TEXT", 0, None, 1),
        ("owner", "TEXT", 1, None, 0),
        ("epoch", "INTEGER", 1, None, 0),
        ("expires_at", "INTEGER", 1, None, 0),
    ],
    "epochs": [("run_id", "TEXT", 0, None, 1), ("epoch", "INTEGER", 1, None, 0)],
    "blobs": [
        ("ref", "TEXT", 0, None, 1),
        ("run_id", "TEXT", 1, None, 0),
        ("data", "BLOB", 1, None, 0),
    ],
}
SHARED_INDEXES = {
    "entries_by_run": "entries (run_id, id)",
    "entries_run_seq": "entries (run_id, CAST(json_extract(payload, '$.seq') AS INTEGER))",
    "meta_by_status": "meta (json_extract(payload, '$.status'))",
    "meta_by_name": "meta (json_extract(payload, '$.name'))",
    "blobs_by_run": "blobs (run_id)",
}


def test_a_fresh_file_has_the_shared_layout_and_names_of_our_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    SqliteStore(path).close()
    look = apsw.Connection(str(path))
    for table, wanted in SHARED_TABLES.items():
        columns = look.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,)
        ).fetchall()
        assert columns == wanted, table
    rows = look.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL").fetchall()
    made = {str(name): str(sql) for name, sql in rows}
    assert "AUTOINCREMENT" in made["entries"]
    for index, on in SHARED_INDEXES.items():
        assert made[index] == f"CREATE INDEX {index} ON {on}"
    own = set(made) - set(SHARED_TABLES) - set(SHARED_INDEXES) - {"sqlite_sequence"}
    assert own == {"rulvar_meta_by_status", "rulvar_meta_by_name"}
    for pragma, value in (("user_version", 0), ("application_id", 0), ("journal_mode", "wal")):
        assert look.pragma(pragma) == value
    look.close()


def test_a_file_of_the_other_language_is_taken_as_it_is(tmp_path: Path) -> None:
    """A dead lease row, a payload with spaces, escaped surrogates: all as that side writes."""
    path = tmp_path / "runs.db"
    other = apsw.Connection(str(path))
    other.execute("PRAGMA journal_mode = WAL").fetchall()
    for name, statement in schema.OBJECTS.items():
        if not name.startswith("rulvar_"):
            other.execute(statement)
    payload = '{ "seq": 0, "value": "\\ud800" }'
    other.execute("INSERT INTO entries (run_id, payload) VALUES ('run', ?)", (payload,))
    other.execute(
        "INSERT INTO meta VALUES ('run', ?)",
        ('{"runId":"run","status":"ok","updatedAt":"x","later":[1]}',),
    )
    other.execute("INSERT INTO epochs VALUES ('run', 4)")
    other.execute("INSERT INTO leases VALUES ('run', 'node', 4, 5)")
    other.execute("INSERT INTO blobs VALUES ('run/a', 'run', x'00ff')")
    other.execute("INSERT INTO blobs VALUES ('run', 'run', x'00')")
    with SqliteStore(path) as store:
        assert store.load("run") == [JournalRecord(seq=0, payload=payload.encode())]
        (meta,) = store.list_runs(RunFilter(statuses=("ok",)))
        assert dict(meta.extra) == {"later": "[1]"}
        assert store.transcripts().list_refs("run") == ["run/a"]
        lease = store.acquire("run", "python")
        assert lease.epoch == 5
        store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'), lease=lease)
        seen = other.execute("SELECT owner, epoch, typeof(expires_at) FROM leases").fetchall()
        assert seen == [("python", 5, "integer")]
        assert other.execute("SELECT count(*) FROM entries").get == 2
        names = {name for (name,) in other.execute("SELECT name FROM sqlite_schema").fetchall()}
        assert names >= set(schema.OBJECTS)
    other.close()


def test_opening_a_file_that_has_everything_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    SqliteStore(path).close()
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    SqliteStore(path, open_timeout_ms=0).close()
    holder.execute("ROLLBACK")
    holder.close()


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_pragmas_hold_on_every_connection(durability: str, level: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path, durability=durability) as store:  # type: ignore[arg-type]
        held = [reader.lock for reader in store._database._readers]
        # Each reader in its turn: those before it are busy.
        for lock in held:
            store.load("run")
            lock.acquire()
        for lock in held:
            lock.release()
        found = list(store._database.connections())
        assert len(found) == 1 + len(held)
        for connection in found:
            assert connection.pragma("journal_mode") == "wal"
            assert connection.pragma("synchronous") == level
            assert connection.pragma("busy_timeout") == 0
            assert connection.pragma("fullfsync") == 1
            assert connection.pragma("checkpoint_fullfsync") == 1
            assert connection.pragma("foreign_keys") == 0
            assert 0 < connection.pragma("journal_size_limit") <= 64 * 1024 * 1024
            assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
            assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, -1) == 0
            assert connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1) == 0


def test_commits_survive_power_loss_unless_asked_otherwise(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'by-url.db'}"
    with SqliteStore(tmp_path / "runs.db") as store, open_stores(url) as stores:
        by_url = stores.journal
        assert isinstance(by_url, SqliteStore)
        for each in (store, by_url):
            assert each.durability == "full"
            (connection,) = each._database._committer.connections()
            assert connection.pragma("synchronous") == 2


def test_a_sqlite_that_corrupts_is_refused_before_the_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(ConfigError, match=r"3\.51\.2"):
        SqliteStore(tmp_path / "runs.db")
    assert list(tmp_path.iterdir()) == []


def test_a_trigger_in_the_file_does_not_run_inside_a_store_transaction(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        other = apsw.Connection(str(path))
        other.execute(
            "CREATE TRIGGER meddler BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END"
        )
        other.close()
        store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
        assert len(store.load("run")) == 1


# Another spelling of the expression still finds the index by its run, and reads every payload.
COVERED = "COVERING INDEX entries_run_seq"
HOT = {
    schema.APPEND: {COVERED},
    schema.APPEND_FENCED: {COVERED, "sqlite_autoindex_leases_1"},
    schema.TAIL: {COVERED},
    schema.LOAD: {"entries_by_run"},
    schema.LOAD_AFTER: {"entries_run_seq"},
    schema.LIST_ALL: {"sqlite_autoindex_meta_1"},
    schema.LIST_BY_STATUS: {"rulvar_meta_by_status"},
    schema.LIST_BY_NAME: {"rulvar_meta_by_name"},
    schema.RENEW: {"sqlite_autoindex_leases_1", "sqlite_autoindex_epochs_1"},
    schema.RELEASE: {"sqlite_autoindex_leases_1", "sqlite_autoindex_epochs_1"},
    schema.ACQUIRE: {"sqlite_autoindex_leases_1", "sqlite_autoindex_epochs_1"},
    schema.JUDGE: {"sqlite_autoindex_leases_1", "sqlite_autoindex_epochs_1"},
    schema.PUT_META_FENCED: {"sqlite_autoindex_leases_1"},
    schema.PUT_BLOB_FENCED: {"sqlite_autoindex_leases_1"},
    schema.DELETE_BLOB_FENCED: {"sqlite_autoindex_blobs_1"},
    schema.LIST_REFS: {"blobs_by_run"},
    schema.LIST_LEASES: {"sqlite_autoindex_leases_1"},
    **{key: {"INDEX entries_"} for key in schema.DELETE_RUN_FENCED[:1]},
    **{key: {"INDEX entries_"} for key in schema.LIST_RUN_IDS[:1]},
    **{key: {"blobs_by_run"} for key in schema.LIST_RUN_IDS[3:]},
}


def test_no_hot_statement_scans_a_table(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        (connection,) = store._database.connections()
        for statement, indexes in HOT.items():
            bound = tuple(0 for _ in range(_parameters(statement)))
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", bound).fetchall()
            said = "\n".join(str(line[-1]) for line in plan)
            for index in indexes:
                assert index in said, f"{statement}\n{said}"
            for table in (*SHARED_TABLES, "held", "mark"):
                assert f"SCAN {table}" not in said, f"{statement}\n{said}"
            if statement != schema.LIST_REFS:
                assert "TEMP B-TREE" not in said, f"{statement}\n{said}"


def _parameters(statement: str) -> int:
    return max((n for n in range(1, 9) if f"?{n}" in statement), default=0)


def test_a_statement_is_prepared_once(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        lease = store.acquire("run", "owner")
        (connection,) = store._database.connections()
        for seq in range(50):
            record = JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)
            store.append("run", record, lease=lease)
            if seq == 5:
                before = connection.cache_stats()
        after = connection.cache_stats()
        assert after["misses"] == before["misses"]
        assert after["hits"] > before["hits"]


def test_a_reader_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
        (connection,) = store._database._committer.connections()
        inside, leave = threading.Event(), threading.Event()

        def pause(_cursor: object, statement: str, _bound: object) -> bool:
            if statement == "COMMIT":
                inside.set()
                leave.wait(30)
            return True

        connection.set_exec_trace(pause)
        record = JournalRecord(seq=1, payload=b'{"seq":1}')
        writer = threading.Thread(target=lambda: store.append("run", record))
        writer.start()
        inside.wait(30)
        assert [found.seq for found in store.load("run")] == [0]
        assert store.list_run_ids(None, 5) == ["run"]
        leave.set()
        writer.join()
        connection.set_exec_trace(None)
        assert len(store.load("run")) == 2
