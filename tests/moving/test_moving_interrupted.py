"""Copies that are cut short, overtaken or lied to: continued, refused, and never called whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from moving_runs import content, fill, record, stopping

from rulvar.core.copy_runs import copy_runs
from rulvar.core.errors import StoreFullError
from rulvar.core.records import RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, reference_stores

if TYPE_CHECKING:
    from rulvar.core.records import JournalRecord


def test_a_copy_that_is_cut_short_at_any_write_is_continued() -> None:
    source = reference_stores()
    fill(source, ["a", "b", "c", "d"])
    whole = content(source)
    at = 0
    outcomes: set[str] = set()
    while True:
        destination, store = stopping()
        store.left = at
        try:
            copy_runs(source, destination, source_name="s")
        except StoreFullError:
            # Half a run has no row: no worker sees it.
            rows = {row.run_id for row in destination.journal.list_runs()}
            marks = [
                run_id
                for run_id in content(destination)
                if destination.transcripts.get(f"{run_id}/.rulvar-unfinished-copy")
            ]
            assert len(marks) <= 1
            there = content(destination)
            assert all(there[run_id] == whole[run_id] for run_id in rows - set(marks))
            for run_id in rows & set(marks):
                records, row, blobs = there[run_id]
                blobs = {ref: blob for ref, blob in blobs.items() if "unfinished" not in ref}
                assert (records, row, blobs) == whole[run_id]
            store.left = 10**9
            for mark in marks:
                (run,) = copy_runs(source, destination, source_name="t", run_ids=[mark]).runs
                assert run.outcome == "conflict"
                assert "unfinished copy of something else: s" in str(run.problem)
            assert content(destination) == there
            report = copy_runs(source, destination, source_name="s")
            outcomes |= {run.outcome for run in report.runs}
        else:
            assert content(destination) == content(source)
            break
        assert content(destination) == content(source), at
        at += 1
    assert at > 20
    assert outcomes == {"copied", "continued", "already"}


def test_an_unfinished_copy_of_a_run_that_was_recreated_is_refused() -> None:
    source = reference_stores()
    fill(source, ["a", "b", "c"])
    destination, store = stopping()
    store.left = 3
    with pytest.raises(StoreFullError):
        copy_runs(source, destination, source_name="s", run_ids=["b"])
    store.left = 10**9
    source.journal.delete("b")
    source.journal.append("b", record(500))
    source.journal.put_meta(RunMeta(run_id="b", status="ok", updated_at="now", genesis="another"))
    (run,) = copy_runs(source, destination, source_name="s", run_ids=["b"]).runs
    assert run.outcome == "conflict"
    assert "unfinished copy of something else" in str(run.problem)


def test_half_a_run_is_not_copied_on_from_where_its_own_copy_stopped() -> None:
    source = reference_stores()
    fill(source, ["a", "b", "c"])
    halfway, store = stopping()
    store.left = 3
    with pytest.raises(StoreFullError):
        copy_runs(source, halfway, source_name="s", run_ids=["b"])
    store.left = 10**9
    destination = reference_stores()
    (run,) = copy_runs(halfway, destination, source_name="halfway").runs
    assert (run.run_id, run.outcome) == ("b", "failed")
    assert "is an unfinished copy: finish it first" in str(run.problem)
    assert content(destination) == {}


class Forgetful(ReferenceStore):
    """Answers, and keeps half of one thing: a record, the row or a blob."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        put_blob = self._tables.put_blob

        def half(ref: str, blob: bytes, stored_at: int | None) -> None:
            whole = what != "blobs" or "unfinished" in ref
            put_blob(ref, blob if whole else blob[1:], stored_at)

        self._tables.put_blob = half  # type: ignore[method-assign] # loses a byte

    def append(self, run_id: str, entry: JournalRecord, /, **given: object) -> None:
        if self.what != "records" or entry.seq != 2:
            super().append(run_id, entry, **given)  # type: ignore[arg-type] # passed on as it came

    def put_meta(self, meta: RunMeta, /, **given: object) -> None:
        if self.what == "row":
            meta = replace(meta, tags=meta.tags[1:])
        super().put_meta(meta, **given)  # type: ignore[arg-type] # passed on as it came


@pytest.mark.parametrize("what", ["records", "row", "blobs"])
def test_a_copy_is_verified_and_stays_marked_when_it_is_not_equal(what: str) -> None:
    source = reference_stores()
    fill(source, ["a", "b", "x", "c", "d"])
    store = Forgetful(what)
    destination = Stores(store, store.transcripts())
    report = copy_runs(
        source, destination, source_name="s", run_ids=["b" if what == "blobs" else "d"]
    )
    (run,) = report.runs
    assert (run.outcome, report.complete) == ("failed", False)
    assert f"not the same on both sides after its copy ({what})" in str(run.problem)
    assert destination.transcripts.get(f"{run.run_id}/.rulvar-unfinished-copy") is not None


def cut_short() -> tuple[Stores, Stores]:
    """A source, and an unfinished copy of its run "c" that has everything but its row."""
    source = reference_stores()
    fill(source, ["a", "b", "x", "c"])
    source.journal.put_meta(RunMeta(run_id="c", status="ok", updated_at="now", genesis="g"))
    destination, store = stopping()
    store.left = 1 + len(source.journal.load("c")) + len(source.transcripts.list_refs("c"))
    with pytest.raises(StoreFullError):
        copy_runs(source, destination, source_name="s", run_ids=["c"])
    store.left = 10**9
    assert list(destination.journal.load("c")) == list(source.journal.load("c"))
    return source, destination


def test_an_unfinished_copy_with_records_that_the_source_has_no_more_is_refused() -> None:
    source, destination = cut_short()
    row = content(source)["c"][1]
    assert row is not None
    source.journal.delete("c")
    source.journal.append("c", record(500))
    source.journal.put_meta(row)
    (run,) = copy_runs(source, destination, source_name="s", run_ids=["c"]).runs
    assert run.outcome == "conflict"
    assert "holds records that the source no longer has" in str(run.problem)


def test_a_blob_that_the_source_has_no_more_does_not_stay_in_its_copy() -> None:
    source, destination = cut_short()
    gone, changed, *_ = source.transcripts.list_refs("c")
    source.transcripts.delete(gone)
    source.transcripts.put(changed, b"another")
    (run,) = copy_runs(source, destination, source_name="s", run_ids=["c"]).runs
    assert run.outcome == "continued"
    assert content(destination)["c"] == content(source)["c"]


class Seized(ReferenceStore):
    """Somebody takes the run over right before its n-th change."""

    left = 0

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.seize("c", "successor")
            self.at_seizure = self.snapshot()

    def append(self, run_id: str, entry: JournalRecord, /, **given: object) -> None:
        self.count()
        super().append(run_id, entry, **given)  # type: ignore[arg-type] # passed on as it came

    def put_meta(self, meta: RunMeta, /, **given: object) -> None:
        self.count()
        super().put_meta(meta, **given)  # type: ignore[arg-type] # passed on as it came


def counted(store: Seized) -> Stores:
    twin = store.transcripts()
    for name in ("put", "delete"):
        act = getattr(twin, name)

        def change(*given: object, act: object = act, **lease: object) -> None:
            store.count()
            act(*given, **lease)  # type: ignore[operator] # a method, by its name

        setattr(twin, name, change)
    return Stores(store, twin)


def test_a_copy_that_lost_the_run_at_the_destination_changes_nothing_more_there() -> None:
    source = reference_stores()
    fill(source, ["a", "b", "x", "c"])
    source.journal.put_meta(RunMeta(run_id="c", status="ok", updated_at="now"))
    at = 0
    while True:
        at += 1
        store = Seized()
        store.left = at
        (run,) = copy_runs(source, counted(store), source_name="s", run_ids=["c"]).runs
        if store.left > 0:
            break
        assert run.outcome == "failed"
        assert "superseded" in str(run.problem)
        assert store.snapshot() == store.at_seizure, at
    assert run.outcome == "copied"
    assert at > 8


class TakenOver(ReferenceStore):
    """Somebody seizes the run at the source while its copy is under way."""

    armed = False

    def load(self, run_id: str, /) -> tuple[JournalRecord, ...]:
        found = tuple(super().load(run_id))
        if self.armed:
            self.armed = False
            self.seize(run_id, "successor")
        return found


def test_a_run_that_is_taken_over_during_its_copy_is_not_called_copied() -> None:
    store = TakenOver()
    source, destination = Stores(store, store.transcripts()), reference_stores()
    fill(source, ["a", "b", "c"])
    store.armed = True
    (run,) = copy_runs(source, destination, source_name="s", run_ids=["c"]).runs
    assert run.outcome == "failed"
    assert "superseded" in str(run.problem)
    assert "'successor' holds it under epoch 2" in str(run.problem)
    assert destination.transcripts.get("c/.rulvar-unfinished-copy") is not None
