"""One file has one name, and keeps it: otherwise it is two databases, or none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.os_checks import other_names

if TYPE_CHECKING:
    from pathlib import Path


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq}}}'.encode())


def test_a_file_with_two_names_is_refused_under_either(tmp_path: Path) -> None:
    first, second = tmp_path / "runs.db", tmp_path / "other.db"
    SqliteStore(first).close()
    os.link(first, second)
    for path in (first, second):
        with pytest.raises(ConfigError, match="has 2 names"):
            SqliteStore(path)
    second.unlink()
    SqliteStore(first).close()


def test_a_file_that_is_bound_into_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my runs.db"
    SqliteStore(path).close()
    mounts = tmp_path / "mountinfo"
    folder = str(tmp_path).replace(" ", "\\040")
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/x rw\n"
        f"23 22 8:1 /a {folder}/my\\040runs.db rw - ext4 /dev/x rw\n"
    )
    assert "mount point" in str(other_names(str(path), mounts))
    assert other_names(str(tmp_path / "absent.db"), mounts) is None
    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/x rw\n")
    assert other_names(str(path), mounts) is None


def test_what_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not an ordinary file"):
        SqliteStore(tmp_path / "pipe")


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_taken_away_takes_no_more_writes(tmp_path: Path, how: str) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    lease = store.acquire("run", "owner")
    store.append("run", record(0), lease=lease)
    if how == "replaced":
        other = tmp_path / "new.db"
        SqliteStore(other).close()
        other.replace(path)
    else:
        path.unlink()
    for call in (
        lambda: store.append("run", record(1), lease=lease),
        lambda: store.renew(lease),
        lambda: store.load("run"),
    ):
        with pytest.raises(StoreCorruptError, match=how):
            call()
    store.close()


def test_an_odd_lease_row_fails_its_own_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    good = store.acquire("good", "owner")
    bad = store.acquire("bad", "owner")
    outside = apsw.Connection(str(path))
    outside.execute("UPDATE leases SET expires_at = '2026-01-01 00:00:00' WHERE run_id = 'bad'")
    for call in (
        lambda: store.acquire("bad", "another"),
        lambda: store.seize("bad", "another"),
        lambda: store.get_lease("bad"),
        lambda: store.revive(bad),
    ):
        with pytest.raises(StoreCorruptError, match="'bad'"):
            call()
    assert [info.run_id for info in store.list_leases(None, 10)] == ["good"]
    store.append("good", record(0), lease=good)
    outside.close()
    store.close()


def test_a_mark_that_is_no_integer_is_never_counted_on_from(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    outside = apsw.Connection(str(path))
    for odd in ("'seven'", "1.5"):
        outside.execute(f"INSERT OR REPLACE INTO epochs (run_id, epoch) VALUES ('run', {odd})")
        with pytest.raises(StoreCorruptError, match="mark"):
            store.acquire("run", "owner")
    outside.close()
    store.close()


def test_a_lease_page_is_filled_past_an_unreadable_row(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    for name in ("a", "b", "c", "d"):
        store.acquire(name, "owner")
    outside = apsw.Connection(str(path))
    outside.execute("UPDATE leases SET owner = CAST(x'ff' AS TEXT) WHERE run_id = 'b'")
    first = store.list_leases(None, 2)
    assert [info.run_id for info in first] == ["a", "c"]
    assert [info.run_id for info in store.list_leases("c", 2)] == ["d"]
    outside.close()
    store.close()
