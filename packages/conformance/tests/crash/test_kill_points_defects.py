"""Every property that a kill point is judged by: a defect that breaks it is found, and named."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import StoreFromFactory
from rulvar.conformance.crash import KillPoint, kill_points

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import Home
    from rulvar.core import Stores

pytestmark = [
    pytest.mark.storm,
    pytest.mark.skipif(sys.platform == "win32", reason="nothing is killed on Windows"),
]

_FILE = Path(__file__).with_name("kill_points_defects.py")
_SPEC = importlib.util.spec_from_file_location("kill_points_defects", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
defects = importlib.util.module_from_spec(_SPEC)
sys.modules["kill_points_defects"] = defects
_SPEC.loader.exec_module(defects)


def _subject(name: str) -> StoreFromFactory:
    opening: Callable[[Home], Stores] = getattr(defects, f"open_{name}")
    return StoreFromFactory(name, opening)


DEFECTS: list[tuple[str, str, str, KillPoint | None]] = [
    # the defect, the workload, the property, and where it was found: None where nobody died
    ("late_appends", "steps", "acknowledged", KillPoint(7, "after")),
    ("late_rows", "steps", "acknowledged", KillPoint(6, "after")),
    ("late_blobs", "turns", "acknowledged", KillPoint(5, "after")),
    ("blobs_written_once", "turns", "acknowledged", None),
    ("row_before_settle", "error", "settle first", KillPoint(10, "after")),
    ("journal_deleted_first", "delete-by-calls", "journal last", KillPoint(4, "after")),
    ("epochs_fall", "error", "epochs", None),
    ("chance_not_recorded", "steps", "result", KillPoint(16, "after")),
    ("children_cancelled_alone", "cancel-inside", "result", KillPoint(27, "before")),
    ("settled_again", "error", "settled", None),
    ("row_not_healed", "error", "row", KillPoint(10, "after")),
    ("patch_lost", "worktree", "audit", None),
    ("checkpoint_misnamed", "turns", "orphans", None),
    ("steps_paid_twice", "steps", "paid", KillPoint(9, "after")),
    ("deaths_not_told", "steps", "deaths", KillPoint(8, "after")),
    ("few_checkpoints", "turns", "paid", KillPoint(12, "before")),
    ("lease_kept", "error", "leases", None),
    ("blobs_never_deleted", "delete", "nothing left", None),
    ("worktree_left", "worktree", "worktrees", KillPoint(10, "before")),
    ("forked_child_let_in", "forked", "result", None),
    ("forked_child_takes_the_log", "forked", "recovery", None),
    ("seizure_half_done", "dead-owner", "recovery", KillPoint(2, "after")),
    ("renewal_of_many_half_done", "renewal-of-two", "recovery", KillPoint(19, "after")),
    ("lock_left_behind", "error", "recovery", KillPoint(1, "before")),
]


@pytest.mark.parametrize(
    ("defect", "workload", "about", "kill"), DEFECTS, ids=[each[0] for each in DEFECTS]
)
def test_a_defect_is_found_by_its_property(
    defect: str, workload: str, about: str, kill: KillPoint | None
) -> None:
    subject = _subject(defect)
    kill = kill or KillPoint(1, "before")
    report = kill_points(subject, workloads=[workload], at=kill.at, side=kill.side)
    if report.ok:  # the engine makes other calls by now: look for it everywhere
        report = kill_points(subject, workloads=[workload], stop_at_failure=True)
    assert not report.ok
    found = {failure.about for failure in report.failures}
    assert about in found, report.text()
    [row] = report.workloads
    assert (row.outcome, row.workload) == ("failed", workload)


def test_every_property_has_a_defect() -> None:
    from rulvar.conformance.crash import invariants  # noqa: PLC0415 - for its documentation

    assert invariants.__doc__ is not None
    table = invariants.__doc__.split("=\n")[1].splitlines()
    named = {line[:16].strip() for line in table if line[:1].isalpha()}
    assert named == {about for _, _, about, _ in DEFECTS}


def test_without_a_defect_the_same_workloads_recover() -> None:
    names = sorted({workload for _, workload, _, _ in DEFECTS})
    report = kill_points(_subject("sound"), workloads=names, sample=2)
    assert report.ok, report.text()
    assert report.deaths == 2 * len(names)


def test_a_process_that_hangs_is_ended_and_told() -> None:
    report = kill_points(_subject("stuck"), workloads=["error"], at=2, side="after", deadline_s=2)
    assert [failure.about for failure in report.failures] == ["recovery", "recovery"]
    assert report.failures[0].found == "hung: it had not ended after 2 s"


def test_a_failure_says_where_and_how_to_see_it_again() -> None:
    report = kill_points(_subject("late_appends"), workloads=["error"], at=10, side="after")
    failure = report.failures[0]
    assert (failure.workload, failure.call) == ("error", "journal.append")
    assert failure.command == (
        "kill_points(<the subject 'late_appends'>, workloads=['error'], at=10, side='after')"
    )
