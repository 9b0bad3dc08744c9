"""Who owns a run, played by real processes over one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.core import LeaseHeldError
from takeover_stage import Stage, freeze_outside_a_commit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

NAMES = ("shop", "cook", "eat", "wash")


def test_a_killed_worker_is_followed_and_no_completed_step_runs_again(tmp_path: Path) -> None:
    with Stage(tmp_path, lease_ttl_ms=1_500) as stage:
        args = stage.errands(*NAMES)
        worker = stage.player("worker-1", "run", run_id="day", args=args, pause_in="eat")
        successor = stage.player("worker-2", "sweep", run_id="day")
        worker.go()
        worker.hear("paused")
        held = stage.lease("day")
        worker.kill()

        successor.go()
        ended = successor.hear("ended")
        successor.finish()

        assert (ended["status"], ended["value"]) == ("ok", ["SHOP", "COOK", "EAT", "WASH"])
        assert (ended["replayed"], ended["executed"], ended["segment"]) == (2, 2, 2)
        assert ended["epoch"] > held.epoch
        # The one that was under way is run again, from its beginning; no other is.
        assert stage.traces() == [
            *("begin shop", "done shop", "begin cook", "done cook"),
            "begin eat",
            *("begin eat", "done eat", "begin wash", "done wash"),
        ]
        epochs = [entry.epoch or 0 for entry in stage.entries("day")]
        assert epochs == sorted(epochs)


@pytest.mark.storm
def test_the_second_life_of_a_name_waits_for_the_lease_of_the_first(tmp_path: Path) -> None:
    with Stage(tmp_path, lease_ttl_ms=2_000) as stage:
        args = stage.errands(*NAMES)
        first = stage.player("same-name", "run", run_id="day", args=args, pause_in="cook")
        second = stage.player("same-name", "insist", run_id="day", args=args)
        first.go()
        first.hear("paused")
        # Frozen and not killed: of a process that is provably gone nobody waits for the lease.
        freeze_outside_a_commit(stage, first)
        held = stage.lease("day")

        # Refused while the lease lives, to the letter of the same owner string too.
        with pytest.raises(LeaseHeldError) as refused:
            stage.store.acquire("day", held.owner)
        assert (refused.value.reason, refused.value.epoch) == ("held", held.epoch)
        second.go()
        told = second.hear("refused")
        assert (told["reason"], told["holder"], told["epoch"]) == ("held", held.owner, held.epoch)
        assert stage.lease("day") == held, "a refused acquire changed the lease"

        assert second.hear("refusals")["count"] >= 1
        ended = second.hear("ended")
        second.finish()
        assert ended["status"] == "ok"
        assert ended["epoch"] > held.epoch
        assert stage.traces().count("begin shop") == 1


@pytest.mark.storm
def test_of_many_first_starts_of_one_run_id_exactly_one_owns_it(tmp_path: Path) -> None:
    with Stage(tmp_path, lease_ttl_ms=20_000) as stage:
        args = stage.errands("only")
        players = [
            stage.player(f"worker-{n}", "run", run_id="day", args=args, pause_in="only")
            for n in range(6)
        ]
        for player in players:
            player.go()
        stage.until(
            lambda: sum(not player.silent() for player in players) == len(players),
            "every worker has an answer",
        )
        # One is in the middle of its step; every other was told who has the run.
        told = [player.hear_any() for player in players]
        paused = [n for n, report in enumerate(told) if report["kind"] == "paused"]
        assert len(paused) == 1, told
        held = stage.lease("day")
        assert (held.owner.split(":")[0], held.epoch) == (f"worker-{paused[0]}", 1)
        refusals = [report for report in told if report["kind"] == "ended"]
        assert [(r["error"], r["reason"], r["holder"], r["epoch"]) for r in refusals] == [
            ("LeaseHeldError", "held", held.owner, 1)
        ] * (len(players) - 1)

        players[paused[0]].go()
        ended = players[paused[0]].hear("ended")
        assert (ended["status"], ended["segment"]) == ("ok", 1)
        for player in players:
            player.finish()
        assert stage.traces() == ["begin only", "done only"]
        starts = [e for e in stage.entries("day") if e.kind == "decision" and e.seq == 0]
        assert len(starts) == 1


@pytest.mark.storm
@pytest.mark.parametrize("on_the_loop", [True, False], ids=["on the loop", "in a thread"])
def test_a_step_that_blocks_for_five_ttls_keeps_its_run(tmp_path: Path, on_the_loop: bool) -> None:
    ttl_ms = 1_200
    with Stage(tmp_path, lease_ttl_ms=ttl_ms) as stage:
        args = {"log": str(stage.log), "seconds": 5 * ttl_ms / 1000, "on_the_loop": on_the_loop}
        worker = stage.player("worker-1", "run", run_id="nap", args=args, workflow="sleeper")
        rival = stage.player("worker-2", "insist", run_id="nap", args=args, workflow="sleeper")
        worker.go()
        stage.until(lambda: stage.traces() == ["begin"], "the step has begun")
        held = stage.lease("nap")
        rival.go()
        assert rival.hear("refused")["holder"] == held.owner

        ended = worker.hear("ended")
        worker.finish()
        assert (ended["error"], ended.get("status")) == (None, "ok")
        assert (ended["epoch"], ended["executed"]) == (held.epoch, 1)
        # The rival has tried all along, and came to the outcome without running anything.
        assert rival.hear("refusals")["count"] >= 10
        late = rival.hear("ended")
        rival.finish()
        assert (late["status"], late["executed"]) == ("ok", 0)
        assert stage.traces() == ["begin", "done"]
        assert {entry.epoch for entry in stage.entries("nap")} == {held.epoch}


def test_a_worker_that_slept_past_its_lease_with_nobody_around_goes_on(tmp_path: Path) -> None:
    with Stage(tmp_path, lease_ttl_ms=600) as stage:
        args = stage.errands(*NAMES)
        worker = stage.player("worker-1", "run", run_id="day", args=args, pause_in="cook")
        worker.go()
        worker.hear("paused")
        held = stage.lease("day")
        freeze_outside_a_commit(stage, worker)
        stage.until_lease_is_over("day")

        worker.go()
        worker.thaw()
        ended = worker.hear("ended")
        worker.finish()
        assert (ended["error"], ended.get("status"), ended.get("segment")) == (None, "ok", 1)
        assert ended["epoch"] > held.epoch
        # The step was in the middle of its work, not at its end: it goes on where it stood.
        assert stage.traces() == [f"{what} {name}" for name in NAMES for what in ("begin", "done")]


def test_a_worker_that_slept_through_a_takeover_stops(tmp_path: Path) -> None:
    with Stage(tmp_path, lease_ttl_ms=600) as stage:
        args = stage.errands(*NAMES)
        worker = stage.player("worker-1", "run", run_id="day", args=args, pause_in="cook")
        successor = stage.player("worker-2", "sweep", run_id="day")
        worker.go()
        worker.hear("paused")
        freeze_outside_a_commit(stage, worker)
        held = stage.lease("day")
        successor.go()
        ended = successor.hear("ended")
        successor.finish()
        assert ended["status"] == "ok"
        before = stage.store.load("day"), stage.store.get_meta("day")

        worker.go()
        worker.thaw()
        told = worker.hear("ended")
        worker.finish()
        assert (told["error"], told["reason"]) == ("SupersededError", "superseded")
        assert told["epoch"] == held.epoch
        assert (stage.store.load("day"), stage.store.get_meta("day")) == before
        # What it did outside of the store is done twice: that is what "at least once" means.
        assert [trace for trace in stage.traces() if "wash" in trace] == ["begin wash", "done wash"]


@pytest.mark.parametrize(
    "runs", [15, pytest.param(100, marks=pytest.mark.storm)], ids=["short", "storm"]
)
def test_four_processes_with_many_runs_each_settle_them_all(tmp_path: Path, runs: int) -> None:
    with Stage(tmp_path, lease_ttl_ms=1_000) as stage:
        players = [
            stage.player(f"worker-{n}", "storm", run_id=f"storm-{n}", args=runs) for n in range(4)
        ]
        for player in players:
            player.go()
        ended = [player.hear("stormed")["ended"] for player in players]
        for player in players:
            player.finish()
        assert ended == [{"ok": runs}] * 4
        rows = stage.store.list_runs()
        assert [row.status for row in rows] == ["ok"] * (4 * runs)
        for row in rows:
            # No step ran twice: a beginning, three steps and what holds two of them, a settle.
            assert len(stage.entries(row.run_id)) == 2 + (3 + 1) * 2
            assert row.segments == 1
