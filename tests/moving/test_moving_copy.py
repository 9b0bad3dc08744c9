"""Copies between stores: equal, verified, and never in anybody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from moving_runs import content, files, fill, record, sqlite

from rulvar.core.copy_runs import copy_runs
from rulvar.core.errors import ConfigError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, reference_stores

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.copy_runs import CopiedRun

AWKWARD = ["a", "A", "CON", "é", "e\u0301", "z" * 200, "100%", "order-17"]


def test_file_to_sqlite_and_back_is_equal_record_for_record(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def progress(run: CopiedRun, done: int, total: int) -> None:
        told.append((run.run_id, done, total))

    with (
        files(tmp_path / "first") as first,
        sqlite(tmp_path / "runs.db") as database,
        files(tmp_path / "second") as second,
    ):
        fill(first, AWKWARD)
        there = copy_runs(first, database, source_name="first", progress=progress)
        back = copy_runs(database, second, source_name="database")
        assert there.complete
        assert back.complete
        assert {run.outcome for run in (*there.runs, *back.runs)} == {"copied"}
        assert content(first) == content(database) == content(second)
        ids = sorted([*AWKWARD, "only a blob"])
        assert told == [(run_id, number + 1, len(ids)) for number, run_id in enumerate(ids)]
        by_id = {run.run_id: run for run in there.runs}
        assert by_id["CON"].records == len(first.journal.load("CON"))
        assert by_id["order-17"].blobs == 3
        # Again: everything is there already, and nothing is written twice.
        again = copy_runs(first, database, source_name="first")
        assert {run.outcome for run in again.runs} == {"already"}
        assert content(first) == content(database)
        assert not any(database.journal.list_leases(None, 99))  # type: ignore[attr-defined]
    originals, copies = (
        {
            str(each.relative_to(root)): each.read_bytes()
            for folder in ("journals", "rows", "blobs", "names")
            for each in (root / folder).rglob("*")
            if each.is_file()
        }
        for root in (tmp_path / "first", tmp_path / "second")
    )
    # The names of what was only in passing there are never forgotten.
    assert {name: copies.get(name) for name in originals} == originals
    assert {name for name in copies if not name.startswith("names")} <= set(originals)


def test_only_the_runs_that_are_named() -> None:
    source, destination = reference_stores(), reference_stores()
    fill(source, ["a", "b", "c"])
    report = copy_runs(source, destination, source_name="s", run_ids=["b"])
    assert [run.run_id for run in report.runs] == ["b"]
    assert list(content(destination)) == ["b"]


def test_no_epoch_of_the_source_is_ever_granted_again() -> None:
    source, destination = reference_stores(), reference_stores()
    journal = source.journal
    assert isinstance(journal, ReferenceStore)
    for _ in range(7):
        journal.release(journal.acquire("a", "worker"))
    journal.append("a", record(0, epoch=3))
    journal.append("b", record(0, epoch=40))
    report = copy_runs(source, destination, source_name="s")
    assert isinstance(destination.journal, ReferenceStore)
    for run in report.runs:
        granted = destination.journal.acquire(run.run_id, "worker").epoch
        assert granted > run.epoch
        assert granted > journal.acquire(run.run_id, "zombie").epoch - 1
    assert {run.run_id: run.epoch for run in report.runs} == {"a": 8, "b": 40}
    assert destination.journal.acquire("c", "worker").epoch == 1


def test_epochs_in_a_journal_of_a_store_without_leases_count(tmp_path: Path) -> None:
    with files(tmp_path / "store") as source:
        source.journal.append("a", record(0, epoch=12))
        destination = reference_stores()
        copy_runs(source, destination, source_name="s")
        assert isinstance(destination.journal, ReferenceStore)
        assert destination.journal.acquire("a", "worker").epoch > 12


def test_a_run_whose_epochs_are_used_up_fails_alone_and_takes_no_number() -> None:
    source, destination = reference_stores(), reference_stores()
    source.journal.append("a", record(0, epoch=2**53 - 1))
    source.journal.append("b", record(0, epoch=2**53 - 3))
    source.journal.append("c", record(0))
    report = copy_runs(source, destination, source_name="s")
    assert [run.outcome for run in report.runs] == ["failed", "copied", "copied"]
    assert "has used up its epochs" in str(report.runs[0].problem)
    assert list(content(destination)) == ["b", "c"]
    assert isinstance(destination.journal, ReferenceStore)
    leases = [destination.journal.acquire(run_id, "worker") for run_id in "ab"]
    assert [lease.epoch for lease in leases] == [2, 2**53 - 1]
    for lease in leases:
        destination.journal.release(lease)
    # The last number is granted now: it cannot be held once more, and keeps no other back.
    again = copy_runs(source, destination, source_name="s")
    assert [run.outcome for run in again.runs] == ["failed", "failed", "already"]
    assert "has used up its epochs" in str(again.runs[1].problem)


def test_a_held_run_is_left_for_another_time() -> None:
    source, destination = reference_stores(), reference_stores()
    fill(source, ["a", "b", "c"])
    assert isinstance(source.journal, ReferenceStore)
    assert isinstance(destination.journal, ReferenceStore)
    source.journal.acquire("a", "worker")
    lease = destination.journal.acquire("b", "worker")
    before = destination.journal.snapshot()
    report = copy_runs(source, destination, source_name="s", run_ids=["a", "b"])
    assert [run.outcome for run in report.runs] == ["held", "held"]
    assert "'worker' under epoch 1" in str(report.runs[0].problem)
    assert not report.complete
    assert destination.journal.snapshot() == before
    destination.journal.release(lease)
    assert copy_runs(source, destination, source_name="s", run_ids=["b", "c"]).complete


def test_a_run_that_is_there_and_not_equal_is_left_alone_and_the_others_are_copied() -> None:
    source, destination = reference_stores(), reference_stores()
    fill(source, ["a", "b", "c", "d"])
    destination.journal.append("c", record(0))
    before = content(destination)["c"]
    report = copy_runs(source, destination, source_name="s")
    by_id = {run.run_id: run for run in report.runs}
    assert {run_id for run_id, run in by_id.items() if run.outcome == "copied"} == (
        by_id.keys() - {"c"}
    )
    assert by_id["c"].outcome == "conflict"
    assert "'c' and keeps it: it is there and is not equal" in str(by_id["c"].problem)
    assert not report.complete
    assert content(destination)["c"] == before
    # Not even a lease was taken of it, on either side.
    assert isinstance(destination.journal, ReferenceStore)
    assert isinstance(source.journal, ReferenceStore)
    assert destination.journal.acquire("c", "worker").epoch == 1
    assert source.journal.acquire("c", "worker").epoch == 1
    ref = next(ref for ref in source.transcripts.list_refs("d"))
    destination.transcripts.put(ref, b"another")
    again = {run.run_id: run for run in copy_runs(source, destination, source_name="s").runs}
    assert "its blobs are not equal" in str(again["d"].problem)
    assert (again["a"].outcome, again["d"].outcome) == ("already", "conflict")


def test_a_run_that_went_on_since_its_copy_keeps_no_other_from_being_copied() -> None:
    source, destination = reference_stores(), reference_stores()
    fill(source, ["a", "b"])
    assert copy_runs(source, destination, source_name="s").complete
    last = source.journal.load("a")[-1].seq
    source.journal.append("a", record(last + 1))
    source.journal.append("c", record(0))
    report = copy_runs(source, destination, source_name="s")
    outcomes = {run.run_id: run.outcome for run in report.runs}
    assert outcomes == {"a": "conflict", "b": "already", "c": "copied", "only a blob": "already"}
    destination.journal.delete("a")
    for ref in destination.transcripts.list_refs("a"):
        destination.transcripts.delete(ref)
    assert copy_runs(source, destination, source_name="s").complete


def test_a_damaged_run_fails_alone(tmp_path: Path) -> None:
    with files(tmp_path / "store") as source:
        fill(source, ["a", "b", "c"])
    path = tmp_path / "store" / "journals" / "b.jsonl"
    path.write_bytes(b"damage\n" + path.read_bytes())
    with files(tmp_path / "store") as source:
        destination = reference_stores()
        report = copy_runs(source, destination, source_name="s")
        outcomes = {run.run_id: run.outcome for run in report.runs}
        assert outcomes == {"a": "copied", "b": "failed", "c": "copied", "only a blob": "copied"}


def test_a_run_that_is_damaged_since_its_copy_keeps_no_other_from_being_copied(
    tmp_path: Path,
) -> None:
    destination = reference_stores()
    with files(tmp_path / "store") as source:
        fill(source, ["a", "b"])
        assert copy_runs(source, destination, source_name="s").complete
        before = content(destination)["b"]
    path = tmp_path / "store" / "journals" / "b.jsonl"
    path.write_bytes(b"damage\n" + path.read_bytes())
    with files(tmp_path / "store") as source:
        source.journal.append("c", record(0))
        report = copy_runs(source, destination, source_name="s")
    outcomes = {run.run_id: run.outcome for run in report.runs}
    assert outcomes == {"a": "already", "b": "failed", "c": "copied", "only a blob": "already"}
    assert "cannot be read" in str(report.runs[1].problem)
    assert content(destination)["b"] == before


def test_a_damaged_run_at_the_destination_is_in_the_way(tmp_path: Path) -> None:
    source = reference_stores()
    fill(source, ["a", "b"])
    with files(tmp_path / "store") as destination:
        destination.journal.append("b", record(0))
    path = tmp_path / "store" / "journals" / "b.jsonl"
    path.write_bytes(b"damage\n" + path.read_bytes())
    with files(tmp_path / "store") as destination:
        runs = {run.run_id: run for run in copy_runs(source, destination, source_name="s").runs}
        assert (runs["a"].outcome, runs["b"].outcome) == ("copied", "conflict")
        assert "line 1 in the journal of run 'b'" in str(runs["b"].problem)


class NoFloor:
    """Leases and no way to raise an epoch."""

    def __init__(self) -> None:
        self._store = ReferenceStore()
        for name in ("append", "load", "put_meta", "list_runs", "delete"):
            setattr(self, name, getattr(self._store, name))
        for name in ("acquire", "renew", "release", "lease_ttl_ms"):
            setattr(self, name, getattr(self._store, name))


def test_a_destination_that_could_grant_an_old_epoch_is_refused() -> None:
    source = reference_stores()
    destination = Stores(NoFloor(), reference_stores().transcripts)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no raise_epoch"):
        copy_runs(source, destination, source_name="s")


def test_leases_are_renewed_while_a_copy_takes_its_time() -> None:
    clock = ManualClock()
    source = reference_stores(clock=clock, lease_ttl_ms=1)
    renewals: list[int] = []
    store = source.journal
    assert isinstance(store, ReferenceStore)
    renew = store.renew

    def counted(lease: object) -> None:
        renewals.append(1)
        renew(lease)  # type: ignore[arg-type]

    store.renew = counted  # type: ignore[method-assign]
    fill(source, ["a", "b", "c"])
    assert copy_runs(source, reference_stores(), source_name="s").complete
    assert renewals
