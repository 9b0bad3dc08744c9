"""What is counted while a storm goes on, and that thin coverage is never a pass."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance.soak import CI, SoakReport
from rulvar.conformance.soak.coverage import Shortfall, coverage_of, shortfall, thin_names
from rulvar.conformance.soak.history import EventLog, Recorder
from rulvar.conformance.soak.progress import Progress
from rulvar.conformance.soak.results import Tally, Verdict, Violation, ViolationKind
from rulvar.core import Lease, Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.history import Operation, Outcome

GOALS = CI.goals


def matrix() -> CoverageMatrix:
    store = ReferenceStore()
    return coverage_of(Stores(store, store.transcripts()))


def enough(here: CoverageMatrix) -> Progress:
    """Return counts that reach the coverage goals exactly, as far as each cell goes."""
    progress = Progress()
    for op in (*here.surfaces, *here.grants):
        progress.accepted[op] = max(GOALS.per_surface, GOALS.accepted)
        progress.overtaken[op] = GOALS.overtaken // 2 if op == "revive" else GOALS.overtaken
    for cell in here.cells:
        progress.refused[cell] = GOALS.per_cell
    progress.refused["append", ""] = GOALS.refused
    for death in here.fatal:
        progress.takeovers[death] = GOALS.per_death
    progress.takeovers[""] = GOALS.takeovers
    progress.faults["stopped"] = GOALS.stops
    progress.faults["killed"] = GOALS.kills
    progress.faults["forked"] = GOALS.forks
    return progress


def report(
    progress: Progress, here: CoverageMatrix, *, violations: tuple[Violation, ...] = ()
) -> SoakReport:
    return SoakReport(
        subject="a store",
        plan=CI,
        matrix=here,
        progress=progress,
        thin=tuple(shortfall(progress, here, GOALS)),
        verdict=Verdict(violations=violations, tally=Tally()),
        seconds=1.0,
        folder=None,
    )


# --- the goals -----------------------------------------------------------------------------


def test_exactly_enough_is_enough() -> None:
    here = matrix()
    assert shortfall(enough(here), here, GOALS) == []
    passed = report(enough(here), here)
    assert passed.passed
    assert passed.words() == "PASSED: no violation, and every coverage goal was reached"
    assert passed.text().endswith(passed.words())


def test_every_single_cell_that_is_thin_keeps_a_storm_from_passing() -> None:
    here = matrix()
    for cell in here.cells:
        progress = enough(here)
        progress.refused[cell] -= 1
        (thin,) = shortfall(progress, here, GOALS)
        assert (thin.surface, thin.death, thin.missing) == (*cell, 1)
        assert not report(progress, here).passed
        assert thin_names([thin]) == {f"{cell[0]} {cell[1]}": 1}


def test_every_other_number_counts_as_well() -> None:
    here = matrix()
    ops = (*here.surfaces, *here.grants)
    for counter, keys in (
        ("overtaken", ops),
        ("takeovers", here.fatal),
        ("faults", ("stopped", "killed")),
    ):
        for key in keys:
            progress = enough(here)
            getattr(progress, counter)[key] = 1
            (thin,) = shortfall(progress, here, GOALS)
            assert thin.have == 1
            assert not report(progress, here).passed
    for op in ops:
        progress = enough(here)
        progress.accepted[op] = 0
        (thin,) = shortfall(progress, here, GOALS)
        assert str(thin) == f"{op} accepted: 0 of {GOALS.per_surface}"


def test_the_whole_storm_has_its_own_numbers() -> None:
    here = matrix()
    for name, goals, words in (
        ("accepted", replace(GOALS, accepted=1 << 40), "accepted mutations: "),
        ("refused", replace(GOALS, refused=1 << 40), "refused mutations: "),
        ("takeovers", replace(GOALS, takeovers=1 << 40), "takeovers: "),
    ):
        (thin,) = shortfall(enough(here), here, goals)
        assert thin.surface == f"<{name}>"
        assert str(thin).startswith(words)
        assert str(thin).endswith(f" of {1 << 40}")


def test_what_is_thin_is_told_in_words() -> None:
    assert str(Shortfall("", "stopped", 1, 2)) == "takeovers from the stopped: 1 of 2"
    assert str(Shortfall("append", "", 1, 2)) == "append accepted: 1 of 2"
    assert (
        str(Shortfall("append", "overtaken", 1, 2))
        == "append overtaken in the middle of a call: 1 of 2"
    )
    assert str(Shortfall("append", "stopped", 1, 2)) == "append refused to the stopped: 1 of 2"


def test_a_calm_is_no_pass_and_says_what_is_missing() -> None:
    here = matrix()
    calm = report(Progress(), here)
    assert not calm.passed
    assert calm.words().startswith("NOT PROVEN")
    assert "below the coverage goals: takeovers" in calm.text()
    assert json.loads(calm.json_text())["passed"] is False


def test_a_violation_is_no_pass_however_much_was_tried() -> None:
    here = matrix()
    broken = Violation(
        kind=ViolationKind.LOST_WRITE, run_id="r", words="it is gone", timeline=("so it went",)
    )
    bad = report(enough(here), here, violations=(broken,))
    assert not bad.passed
    assert bad.words() == "FAILED: 1 violation: lost-write"
    assert "so it went" in bad.text()
    assert json.loads(bad.json_text())["violations"][0]["timeline"] == ["so it went"]


def test_what_a_store_cannot_do_is_left_out_and_said() -> None:
    class Plain:
        def __init__(self) -> None:
            inner = ReferenceStore()
            self.append, self.load = inner.append, inner.load
            self.put_meta, self.list_runs, self.delete = (
                inner.put_meta,
                inner.list_runs,
                inner.delete,
            )
            self.acquire, self.renew, self.release = inner.acquire, inner.renew, inner.release

    here = coverage_of(Stores(Plain(), ReferenceStore().transcripts()))
    assert "put_meta" not in here.surfaces
    assert "seized" not in here.deaths
    assert here.grants == ("acquire",)
    assert len(here.notes) == 2


def test_a_lease_of_another_run_is_no_argument_of_a_renewal() -> None:
    cells = matrix().cells
    assert ("append", "foreign") in cells
    assert ("renew", "foreign") not in cells


# --- counting -------------------------------------------------------------------------------


class Told:
    """Reports of several processes, read as the coordinator reads them."""

    def __init__(self, folder: Path) -> None:
        self._recorders = {number: Recorder(folder, number, 1) for number in (1, 2, 3)}
        self._log = EventLog(folder)
        self.progress = Progress()

    def begin(self, process: int, op: Operation, lease: Lease | None, death: str = "") -> object:
        recorder = self._recorders[process]
        attempt = recorder.next_id()
        owner = f"w{process}" if lease is None else ""
        recorder.invoked(attempt, op, "r", lease=lease, target=owner, death=death)
        return lambda outcome, reason, granted: recorder.returned(
            attempt, outcome, reason=reason, granted=granted
        )

    def end(
        self, begun: object, outcome: Outcome, reason: str = "", granted: int | None = None
    ) -> None:
        assert callable(begun)
        begun(outcome, reason, granted)
        self.read()

    def read(self) -> None:
        for event in self._log.new_events():
            self.progress.take(event)

    def grant(self, process: int, epoch: int) -> Lease:
        self.end(self.begin(process, "acquire", None), "landed", granted=epoch)
        return Lease(run_id="r", owner=f"w{process}", epoch=epoch)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_a_takeover_is_from_what_the_tenure_died_of(told: Told) -> None:
    old = told.grant(1, 1)
    told.grant(2, 2)
    assert +told.progress.takeovers == {"": 1}
    told.end(told.begin(1, "append", old, "stopped"), "refused", "superseded")
    assert +told.progress.takeovers == {"stopped": 1}
    told.end(told.begin(1, "append", old, "killed"), "refused", "superseded")
    assert +told.progress.takeovers == {"stopped": 1}
    assert told.progress.refused["append", "stopped"] == 1


def test_nobody_takes_over_what_was_given_back(told: Told) -> None:
    lease = told.grant(1, 1)
    told.end(told.begin(1, "release", lease), "landed")
    told.grant(2, 2)
    assert told.progress.takeovers.total() == 0


def test_a_release_that_is_read_after_the_next_grant_is_one_all_the_same(told: Told) -> None:
    lease = told.grant(2, 1)
    released = told.begin(2, "release", lease)
    told.grant(1, 2)
    assert told.progress.takeovers.total() == 1
    told.end(released, "landed")
    assert told.progress.takeovers.total() == 0


def test_a_forged_or_foreign_lease_says_nothing_about_a_tenure(told: Told) -> None:
    old = told.grant(1, 1)
    told.grant(2, 2)
    told.end(told.begin(3, "append", old, "forged"), "refused", "superseded")
    told.end(told.begin(3, "append", replace(old, owner="x"), "stopped"), "refused", "unknown")
    assert +told.progress.takeovers == {"": 1}


def test_a_call_is_overtaken_when_the_run_is_granted_in_the_middle_of_it(told: Told) -> None:
    lease = told.grant(1, 1)
    told.end(told.begin(1, "append", lease), "landed")
    assert told.progress.overtaken.total() == 0
    late = told.begin(1, "append", lease)
    told.read()
    told.grant(2, 2)
    told.end(late, "refused", "superseded")
    assert told.progress.overtaken == {"append": 1}
    told.end(told.begin(1, "append", lease), "refused", "superseded")
    assert told.progress.overtaken == {"append": 1}


def test_a_call_that_found_the_store_busy_was_not_overtaken(told: Told) -> None:
    lease = told.grant(1, 1)
    late = told.begin(1, "append", lease)
    told.read()
    told.grant(2, 2)
    told.end(late, "nothing", "busy")
    assert told.progress.overtaken.total() == 0
    assert told.progress.nothing == {"busy": 1}


def test_what_a_killed_process_had_begun_stays_unknown(told: Told) -> None:
    lease = told.grant(1, 1)
    told.begin(1, "release", lease)
    told.read()
    assert told.progress.held_by(1) == {"r"}
    assert told.progress.busy_with(1) == {"r"}
    told.progress.lost(1)
    told.grant(2, 2)
    assert told.progress.unknown == 1
    assert told.progress.held_by(1) == set()
    assert told.progress.takeovers.total() == 0
