"""Which runs an audit looks at, in which order, and that it changes none."""

from __future__ import annotations

import pytest
from audit_journals import WORKED, record, row, scattered, settle

from rulvar.core.audit import audit_run, audit_runs, count_runs
from rulvar.core.errors import (
    ConfigError,
)
from rulvar.core.records import RunFilter
from rulvar.core.testing import WatchedStores, reference_stores

# --- which runs ---------------------------------------------------------------------------


def test_every_trace_is_a_run() -> None:
    verdicts = {audit.run_id: audit.verdict for audit in audit_runs(scattered())}
    assert verdicts == {
        "a-journal": "suspect",
        "b-row": "consistent",
        "c-lease": "owned",
        "d-blob": "consistent",
    }


def test_without_an_inventory_rows_and_leases_are_what_there_is() -> None:
    hidden = {"list_run_ids", "get_meta"}
    stores = WatchedStores(scattered(), without=hidden)
    assert [audit.run_id for audit in audit_runs(stores)] == ["b-row", "c-lease"]
    assert count_runs(stores) == 2
    assert audit_run(stores, "a-journal").verdict == "suspect"
    bare = WatchedStores(scattered(), without=hidden | {"list_leases", "get_lease", "seize"})
    assert [audit.run_id for audit in audit_runs(bare)] == ["b-row"]


def test_runs_are_chosen_by_name_or_by_what_their_rows_say() -> None:
    stores = reference_stores()
    for number, status in enumerate(["ok", "running", "suspended"]):
        stores.journal.put_meta(row(status, f"r{number}"))
    assert [a.run_id for a in audit_runs(stores, run_ids=["r2", "r0", "r2"])] == ["r2", "r0"]
    chosen = audit_runs(stores, statuses=("ok", "suspended"))
    assert [audit.run_id for audit in chosen] == ["r0", "r2"]
    both = audit_runs(stores, run_ids=["r1", "r2", "x"], statuses=("suspended",))
    assert [audit.run_id for audit in both] == ["r2"]


def test_arguments_are_checked_before_anything_is_read() -> None:
    stores = WatchedStores(reference_stores())
    with pytest.raises(ConfigError):
        audit_run(stores, "a/b")
    with pytest.raises(ConfigError):
        audit_runs(stores, run_ids=["a/b"])
    with pytest.raises(ConfigError):
        audit_runs(stores, statuses=["ok"])  # type: ignore[arg-type]
    assert stores.calls == []


def test_a_sweep_goes_by_pages_and_tells_how_far_it_is() -> None:
    stores = reference_stores()
    for number in range(1_203):
        stores.journal.put_meta(row("running", f"r{number:05}"))
    watched = WatchedStores(stores)
    told: list[int] = []
    found = [audit.run_id for audit in audit_runs(watched, progress=told.append)]
    assert found == [f"r{number:05}" for number in range(1_203)]
    assert told == list(range(1, 1_204))
    pages = [call for call in watched.calls if call.method == "list_run_ids"]
    assert len(pages) == 3
    assert not any(call.method == "list_runs" for call in watched.calls)


def test_nothing_is_changed_by_looking() -> None:
    stores = scattered()
    for entry in [*WORKED, settle(3, "ok")]:
        stores.journal.append("r", record(entry))
    stores.journal.put_meta(row("running"))
    watched = WatchedStores(stores)
    before = stores.journal.snapshot()  # type: ignore[attr-defined]
    assert len(list(audit_runs(watched))) == 5
    assert watched.changes() == []
    assert stores.journal.snapshot() == before  # type: ignore[attr-defined]
    assert stores.journal.list_runs(RunFilter(statuses=("ok",))) == ()
