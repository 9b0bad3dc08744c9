"""An id that no call could have written is named by the inventory, and hides no other run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core import Lease, Stores
from rulvar.core.audit import audit_runs
from rulvar.core.copy_runs import copy_runs
from rulvar.core.spi import JournalRecord, RunFilter, RunMeta
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

RUNS = ["a", "m", "m\u00e9", "z"]
DAMAGE = {
    "no UTF-8": ("CAST(x'6d80' AS TEXT)", "m\udc80"),
    "no UTF-8, and last": ("CAST(x'ff' AS TEXT)", "\udcff"),
    "no text": ("x'6d'", "m\udc00"),
    "no text at all": ("x'80'", "\udc80\udc00"),
}


def fill(path: Path) -> None:
    with SqliteStore(path) as store:
        for run_id in [*RUNS, "spoilt"]:
            store.append(run_id, JournalRecord(seq=0, payload=b'{"seq":0,"kind":"note"}'))
            store.put_meta(RunMeta(run_id=run_id, status="running", updated_at="-"))
            store.transcripts().put(f"{run_id}/blob", b"x")
            store.acquire(run_id, "somebody")


def spoil(path: Path, table: str, value: str) -> None:
    """Change an id as no store would: in another process, for its locks' sake."""
    code = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(sys.argv[2])"
    change = f"UPDATE {table} SET run_id = {value} WHERE run_id = 'spoilt'"
    subprocess.run([sys.executable, "-c", code, str(path), change], check=True, timeout=60)


@pytest.mark.parametrize("table", ["entries", "meta", "leases", "blobs"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_id_is_named_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, damage: str
) -> None:
    monkeypatch.setattr("rulvar.core.inventory._PAGE", 2)
    value, name = DAMAGE[damage]
    fill(tmp_path / "runs.db")
    spoil(tmp_path / "runs.db", table, value)
    with SqliteStore(tmp_path / "runs.db") as store:
        assert sorted(store.list_run_ids(None, 99)) == sorted([*RUNS, "spoilt", name])
        listed = [row.run_id for row in store.list_runs()]
        assert listed == sorted(RUNS + ["spoilt"] * (table != "meta"))
        by_page = []
        after: str | None = None
        while page := store.list_runs(RunFilter(limit=1, after_run_id=after)):
            by_page += [row.run_id for row in page]
            after = page[-1].run_id
        assert by_page == listed
        by_status = store.list_runs(RunFilter(statuses=("running",), limit=9))
        assert [row.run_id for row in by_status] == listed
        audits = list(audit_runs(Stores(store, store.transcripts())))
        found = {audit.run_id: audit for audit in audits}
        assert set(found) == {*RUNS, "spoilt", name}
        assert len(audits) == len(found)
        assert (found[name].verdict, found[name].findings[0].code) == ("damaged", "run-id")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_id_keeps_no_other_from_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("rulvar.core.inventory._PAGE", 2)
    value, name = DAMAGE[damage]
    with SqliteStore(tmp_path / "there.db") as there:
        there.append("spoilt", JournalRecord(seq=0, payload=b'{"seq":0,"kind":"note"}'))
    for file in ("here.db", "there.db"):
        if file == "here.db":
            fill(tmp_path / file)
        spoil(tmp_path / file, "entries", value)
    with SqliteStore(tmp_path / "here.db") as here, SqliteStore(tmp_path / "there.db") as there:
        for info in here.list_leases(None, 99):
            here.release(Lease(run_id=info.run_id, owner=info.owner, epoch=info.epoch))
        source, destination = (Stores(each, each.transcripts()) for each in (here, there))
        report = copy_runs(source, destination, source_name="s")
        outcomes = {run.run_id: run.outcome for run in report.runs}
        assert outcomes == {**dict.fromkeys([*RUNS, "spoilt"], "copied"), name: "failed"}
        assert not report.complete
        named = copy_runs(source, destination, source_name="s", run_ids=["m"])
        assert [run.outcome for run in named.runs] == ["already"]


def test_a_ref_that_is_no_utf_8_damages_its_run_alone(tmp_path: Path) -> None:
    fill(tmp_path / "runs.db")
    code = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(sys.argv[2])"
    change = "UPDATE blobs SET ref = CAST(x'6d2f80' AS TEXT) WHERE ref = 'm/blob'"
    path = str(tmp_path / "runs.db")
    subprocess.run([sys.executable, "-c", code, path, change], check=True, timeout=60)
    with SqliteStore(path) as store:
        for info in store.list_leases(None, 99):
            store.delete(info.run_id)  # ends its lease
            store.append(info.run_id, JournalRecord(seq=0, payload=b'{"seq":0,"kind":"note"}'))
        found = {audit.run_id: audit for audit in audit_runs(Stores(store, store.transcripts()))}
        assert found["m"].verdict == "damaged"
        assert found["m"].findings[-1].code == "blobs-unreadable"
        assert {found[run_id].verdict for run_id in found if run_id != "m"} == {"suspect"}


def test_an_id_that_no_call_takes_is_left_out_of_listings_and_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        for run_id in ("a", "z"):
            store.put_meta(RunMeta(run_id=run_id, status="running", updated_at="-"))
            store.acquire(run_id, "owner")
        other = apsw.Connection(str(path))
        row = '{"status":"running","updatedAt":"-"}'
        for odd in ("b/c", "x" * 300, "new\nline"):
            other.execute("INSERT INTO meta (run_id, payload) VALUES (?, ?)", (odd, row))
            other.execute("INSERT INTO leases VALUES (?, 'other', 1, 9000000000000)", (odd,))
        other.close()
        assert [meta.run_id for meta in store.list_runs()] == ["a", "z"]
        pages = [store.list_runs(RunFilter(limit=1, after_run_id=after)) for after in (None, "a")]
        assert [[meta.run_id for meta in page] for page in pages] == [["a"], ["z"]]
        assert [info.run_id for info in store.list_leases(None, 10)] == ["a", "z"]
        assert set(store.list_run_ids(None, 10)) == {"a", "b/c", "new\nline", "x" * 300, "z"}
