"""Kill points over the stores that we have, the refusals, and the doors."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from rulvar.conformance import Sharing, StoreAtUrl, StoreFromFactory
from rulvar.conformance.crash import WORKLOADS, kill_points, runner
from rulvar.conformance.crash.cli import kill_points_command as command
from rulvar.conformance.crash.crash_case import Death
from rulvar.conformance.harness.child import IN_CHILD
from rulvar.core import ConfigError, open_stores
from rulvar.core.plugins import load_command

if TYPE_CHECKING:
    from rulvar.conformance import Home
    from rulvar.conformance.crash import KillPoint
    from rulvar.core import Stores

pytestmark = pytest.mark.slow

posix = pytest.mark.skipif(sys.platform == "win32", reason="nothing is killed on Windows")

_FILE = Path(__file__).with_name("kill_points_defects.py")
_SPEC = importlib.util.spec_from_file_location("kill_points_openers", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
openers = importlib.util.module_from_spec(_SPEC)
sys.modules["kill_points_openers"] = openers
_SPEC.loader.exec_module(openers)

SQLITE = StoreAtUrl("sqlite:///runs.db")
CHANGES = {
    *("journal.acquire", "journal.seize", "journal.renew", "journal.renew_all", "journal.release"),
    *("journal.append", "journal.put_meta", "journal.delete", "journal.delete_whole_run"),
    *("transcripts.put", "transcripts.delete"),
}


# --- the bounded form ---------------------------------------------------------------------------


@posix
@pytest.mark.storm
def test_every_workload_recovers_on_sqlite_from_a_death_at_every_kind_of_call() -> None:
    report = kill_points(SQLITE, sample=3, jobs=2)
    assert report.ok, report.text()
    assert {row.workload: row.deaths for row in report.workloads} == {
        workload.name: 3 for workload in WORKLOADS
    }
    assert {row.unharmed for row in report.workloads} == {1}
    assert {f"{call} {side}" for call in CHANGES for side in ("before", "after")} <= set(report.hit)
    assert report.clock == "ahead"


@posix
@pytest.mark.storm
def test_every_workload_that_applies_recovers_on_the_file_store() -> None:
    report = kill_points(StoreAtUrl("file:///runs"), sample=2, jobs=2)
    assert report.ok, report.text()
    odd = {row.workload: row.outcome for row in report.workloads if row.outcome != "recovered"}
    needs_leases = ("renewal", "renewal-of-two", "dead-owner")
    assert odd == dict.fromkeys(needs_leases, "does not apply")
    assert (report.clock, report.deaths) == ("none", 2 * (len(WORKLOADS) - len(needs_leases)))
    assert report.every_workload


@posix
@pytest.mark.storm
def test_every_point_of_one_workload_and_then_it_finishes_unharmed() -> None:
    report = kill_points(SQLITE, workloads=["error"])
    [row] = report.workloads
    assert report.ok, report.text()
    assert row.deaths == row.recovered == row.calls + row.changes
    assert (row.unharmed, row.skipped) == (2, row.calls - row.changes)
    assert report.every_point


@posix
def test_one_that_makes_fewer_calls_than_the_first_is_not_taken_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def played(*given: Any, **_: object) -> Death:
        kill: KillPoint | None = given[3]
        asked.append(0 if kill is None else kill.at)
        return Death(
            workload="error",
            kill=kill,
            died=asked[-1] in {1, 3, 4},
            call="journal.load",
            changes=False,
            calls=(("journal.load", False),) * 4,
            findings=(),
            processes=1,
        )

    monkeypatch.setattr(runner, "die", played)
    report = kill_points(SQLITE, workloads=["error"])
    assert asked == [0, 1, 2, 3, 4, 5]
    assert (report.deaths, report.workloads[0].unharmed) == (3, 3)


@posix
@pytest.mark.storm
def test_a_store_with_a_clock_of_its_own_is_waited_for() -> None:
    subject = StoreFromFactory("true time", openers.open_true_time)
    report = kill_points(subject, workloads=["error"], at=9, side="after")
    assert report.ok, report.text()
    assert report.clock == "waited"
    assert report.duration_s > 2


@posix
def test_a_place_that_others_use_is_left_as_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{(tmp_path / 'runs.db').as_posix()}"
    report = kill_points(StoreAtUrl(url), workloads=["turns", "worker"], sample=1)
    assert [row.outcome for row in report.workloads] == ["recovered", "not run"]
    assert "exclude 'worker' by name" in report.workloads[1].reason
    assert not report.ok
    with open_stores(url) as stores:
        assert list(stores.journal.list_runs()) == []
        assert stores.journal.list_run_ids(None, 9) == []  # type: ignore[attr-defined]


# --- what cannot be -----------------------------------------------------------------------------


def test_what_cannot_be_asked_for_is_refused_before_any_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(match: str, **options: object) -> None:
        subject = options.pop("subject", SQLITE)
        with pytest.raises(ConfigError, match=match):
            kill_points(subject, **options)  # type: ignore[arg-type]

    refused("no workload 'stpes'", workloads=["stpes"])
    refused("exclude fewer", workloads=["steps"], exclude=["steps"])
    refused("at is 1 or more", at=0)
    refused("sample is 1 or more", sample=0)
    refused("jobs is 1 or more", jobs=0)
    refused("deadline_s is 1 or more", deadline_s=0)
    refused("needs at", side="after")
    refused("give one of them", at=1, sample=1)
    refused("reach 'object'", subject=StoreAtUrl("memory://"))
    within = StoreFromFactory("within", openers.open_sound, sharing=Sharing.PROCESS)
    refused("reach 'process'", subject=within)
    with pytest.raises(ConfigError) as error:
        kill_points(StoreAtUrl("sqlite:////no/such/folder/runs.db"))
    assert "create it first" in str(error.value)
    assert "Traceback" not in str(error.value)
    with monkeypatch.context() as patch:
        patch.setenv(IN_CHILD, "1")
        refused('under if __name__ == "__main__"')
    with monkeypatch.context() as patch:
        patch.delattr(os, "fork", raising=False)
        refused("need fork and SIGKILL")


@posix
def test_a_store_that_no_other_process_can_open_is_refused() -> None:
    def nested(home: Home) -> Stores:
        return openers.open_sound(home)  # type: ignore[no-any-return]

    with pytest.raises(ConfigError, match="cannot be opened by another process"):
        kill_points(StoreFromFactory("typed in", nested))


@posix
def test_without_git_the_worktree_is_not_run_and_that_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = kill_points(SQLITE, workloads=["worktree", "error"], sample=1)
    assert [row.outcome for row in report.workloads] == ["not run", "recovered"]
    assert "git is not installed" in report.workloads[0].reason
    assert not report.ok
    report = kill_points(SQLITE, workloads=["worktree", "error"], exclude=["worktree"], sample=1)
    assert [row.outcome for row in report.workloads] == ["recovered", "excluded"]
    assert report.ok


# --- the command ----------------------------------------------------------------------------------


def test_the_command_line_has_the_command() -> None:
    assert load_command("kill-points") is command


@posix
def test_the_command_prints_the_table_and_answers_0() -> None:
    asked = ["sqlite:///runs.db", "--workload", "delete", "--at", "2", "--side", "after"]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0, done.output
    head, row, _, sums, verdict = done.stdout.splitlines()
    assert head.split() == ["workload", "calls", "deaths", "recovered", "seconds"]
    assert row.split()[:4] == ["delete", "3", "1", "1"]
    assert "some kill points, not of every workload; 1 death, 1 recovered, 1 run" in sums
    assert verdict == "ok"


@posix
def test_the_command_answers_1_when_nobody_died_and_its_json_says_so() -> None:
    asked = ["sqlite:///runs.db", "--workload", "delete", "--at", "99", "--json"]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["ok"], report["everyPoint"], report["deaths"]) == (False, False, 0)
    assert report["everyWorkload"] is False
    [row] = report["workloads"]
    assert (row["outcome"], row["reason"]) == ("failed", "0 deaths, 3 runs unharmed")


def test_the_command_lists_the_workloads_and_wants_a_url() -> None:
    listed = CliRunner().invoke(command, ["--list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [workload.name for workload in WORKLOADS]
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 2
    assert "URL is missing" in done.stderr
