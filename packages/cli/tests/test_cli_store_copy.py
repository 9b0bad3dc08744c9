"""`rulvar store copy`: what it says, and what its exit status lets a script do next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from rulvar.cli.main import main
from rulvar.core.plugins import open_stores
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def copy(*args: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ("store", "copy", *args))
    assert result.exit_code == status, result.output
    return result


def fill(url: str) -> None:
    with open_stores(url) as stores:
        for run_id in ("a", "b"):
            stores.journal.append(run_id, JournalRecord(seq=0, payload=b'{"seq":0}'))
            stores.journal.put_meta(RunMeta(run_id=run_id, status="ok", updated_at="now"))
            stores.transcripts.put(f"{run_id}/x", b"blob")


def test_a_store_is_copied_and_a_second_copy_finds_it_there(tmp_path: Path) -> None:
    source, destination = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    first = copy(source, destination).stdout
    assert [line.split() for line in first.splitlines()][1] == ["copied", "2", "2", "2"]
    again = json.loads(copy(source, destination, "--json").stdout)
    assert again["complete"] is True
    assert [run["outcome"] for run in again["runs"]] == ["already", "already"]
    with open_stores(destination) as stores:
        assert [row.run_id for row in stores.journal.list_runs()] == ["a", "b"]
        assert stores.transcripts.get("b/x") == b"blob"


def test_a_held_run_is_status_3_and_the_others_are_copied(tmp_path: Path) -> None:
    source, destination = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    with SqliteStore(tmp_path / "a.db") as store:
        store.acquire("a", "worker")
        result = copy(source, destination, status=3)
    assert "held: a: run 'a' is held by 'worker'" in result.stderr
    with open_stores(destination) as stores:
        assert [row.run_id for row in stores.journal.list_runs()] == ["b"]


def test_a_run_in_the_way_is_status_1_and_the_others_are_copied(tmp_path: Path) -> None:
    source, destination = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    copy(source, destination)
    # The store lives on: one run has moved since, and one is new.
    with open_stores(source) as stores:
        stores.journal.append("a", JournalRecord(seq=1, payload=b'{"seq":1}'))
        stores.journal.append("c", JournalRecord(seq=0, payload=b'{"seq":0}'))
    result = copy(source, destination, status=1)
    assert "conflict: a: the destination has run 'a' and keeps it" in result.stderr
    with open_stores(destination) as stores:
        assert [len(stores.journal.load(run_id)) for run_id in "abc"] == [1, 1, 1]
    told = json.loads(copy(source, destination, "--json", status=1).stdout)
    assert [run["outcome"] for run in told["runs"]] == ["conflict", "already", "already"]
    copy(source, destination, "--run", "b", "--run", "c")


def test_what_makes_no_sense_is_status_2(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    assert "is both SRC and DST" in copy(url, url, status=2).stderr
    copy(url, "nope:///b", status=2)
    assert "there is no file" in copy(url, f"sqlite:///{tmp_path}/b.db", status=2).stderr
    assert list(tmp_path.iterdir()) == []
    open_stores(url).close()
    assert copy(url, f"sqlite:///{tmp_path}/b.db").stdout == "no runs to copy\n"


def test_a_run_that_the_source_does_not_have_is_status_2(tmp_path: Path) -> None:
    source, destination = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    result = copy(source, destination, "--run", "a", "--run", "aa", status=2)
    assert "has no run 'aa'" in result.stderr
    with open_stores(destination) as stores:
        assert list(stores.journal.list_runs()) == []
