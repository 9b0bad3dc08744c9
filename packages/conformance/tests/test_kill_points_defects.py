"""Every property that a kill point is judged by: a defect that breaks it is found, and named."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import FactorySubject
from rulvar.conformance.kill_points import kill_points

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


def _subject(name: str) -> FactorySubject:
    opening: Callable[[Home], Stores] = getattr(defects, f"open_{name}")
    return FactorySubject(name, opening)


DEFECTS = [
    # the defect, the workload, the property
    ("late_appends", "steps", "acknowledged"),
    ("late_rows", "steps", "acknowledged"),
    ("late_blobs", "turns", "acknowledged"),
    ("blobs_written_once", "turns", "acknowledged"),
    ("row_before_settle", "error", "settle first"),
    ("journal_deleted_first", "delete-by-calls", "journal last"),
    ("epochs_fall", "error", "epochs"),
    ("chance_not_recorded", "steps", "result"),
    ("settled_again", "error", "settled"),
    ("row_not_healed", "error", "row"),
    ("patch_lost", "worktree", "audit"),
    ("checkpoint_misnamed", "turns", "orphans"),
    ("steps_paid_twice", "steps", "paid"),
    ("few_checkpoints", "turns", "paid"),
    ("lease_kept", "error", "leases"),
    ("blobs_never_deleted", "delete", "nothing left"),
    ("worktree_left", "worktree", "worktrees"),
    ("lock_left_behind", "error", "recovery"),
]


@pytest.mark.parametrize(("defect", "workload", "about"), DEFECTS, ids=str)
def test_a_defect_is_found_by_its_property(defect: str, workload: str, about: str) -> None:
    report = kill_points(_subject(defect), workloads=[workload], stop_at_failure=True)
    assert not report.ok
    found = {failure.about for failure in report.failures}
    assert about in found, report.text()
    [row] = report.workloads
    assert (row.outcome, row.workload) == ("failed", workload)


def test_every_property_has_a_defect() -> None:
    from rulvar.conformance.kill_points import judge  # noqa: PLC0415 - for its documentation

    assert judge.__doc__ is not None
    table = judge.__doc__.split("=\n")[1].splitlines()
    named = {line[:16].strip() for line in table if line[:1].isalpha()}
    assert named == {about for _, _, about in DEFECTS}


def test_without_a_defect_the_same_workloads_recover() -> None:
    names = sorted({workload for _, workload, _ in DEFECTS})
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
