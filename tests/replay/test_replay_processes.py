"""What a body did in one process holds in the next, whatever code that one has.

Each life is a process; the first one of most cases is killed. Effects are lines of a file.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores

if TYPE_CHECKING:
    from rulvar.core.records import RunMeta

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("replay_process.py")


class Run:
    """One database with the run ``r``."""

    def __init__(self, folder: Path, case: str) -> None:
        self.database = folder / "runs.db"
        self.case = case

    def life(self, deploy: str = "old", *options: str) -> dict[str, object]:
        """Execute a segment in a process; with ``--die`` it kills itself afterwards."""
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(self.database), self.case, deploy, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        expected = -signal.SIGKILL if "--die" in options else 0
        assert done.returncode == expected, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(told, dict)
        return told

    @property
    def paid(self) -> dict[str, int]:
        trace = self.database.parent / "paid"
        return dict(Counter(trace.read_text().split("\n")[:-1])) if trace.exists() else {}

    @property
    def row(self) -> RunMeta:
        with open_stores(f"sqlite:///{self.database}") as stores:
            [row] = [row for row in stores.journal.list_runs() if row.run_id == "r"]
        return row


@pytest.mark.parametrize("case", ["timed_out", "waited_for", "block"])
def test_a_call_that_was_given_up_in_one_process_is_given_up_in_the_next(
    case: str, tmp_path: Path
) -> None:
    run = Run(tmp_path, case)
    assert run.life("old", "--die")["status"] == "suspended"
    assert run.life()["status"] == "suspended"
    assert run.life("old", "--answer") == {"status": "ok", "value": "fallback"}
    assert run.paid == {"fallback": 1}


@pytest.mark.parametrize("case", ["renamed", "inserted", "bad_deploy", "refunds"])
def test_another_code_is_blocked_and_a_rollback_goes_on(case: str, tmp_path: Path) -> None:
    run = Run(tmp_path, case)
    assert run.life("old", "--die")["status"] == "suspended"
    paid = run.paid
    told = run.life("new")
    assert told["status"] == "blocked"
    row = run.row
    assert row.blocked is not None
    assert row.blocked.reason == told["why"]
    assert run.paid == paid, "nothing is paid by the code that took another way"
    assert run.life("old", "--answer")["status"] == "ok"
    assert run.paid == paid
    assert run.row.blocked is None


def test_a_deliberate_change_lets_the_run_go_on_its_old_way(tmp_path: Path) -> None:
    run = Run(tmp_path, "patched")
    assert run.life("old", "--die")["status"] == "suspended"
    assert run.life("new")["status"] == "suspended"
    assert run.life("new", "--answer")["status"] == "ok"
    assert run.paid == {"charge": 1}
    fresh = Run(tmp_path / "fresh", "patched")
    fresh.database.parent.mkdir()
    assert fresh.life("new", "--die")["status"] == "suspended"
    assert fresh.life("new", "--answer")["status"] == "ok"
    assert fresh.paid == {"charge": 1, "check": 1}


def test_a_failure_looks_the_same_in_every_life(tmp_path: Path) -> None:
    run = Run(tmp_path, "told_apart")
    assert run.life("old", "--die")["status"] == "suspended"
    assert run.life("old", "--answer")["status"] == "ok"
    assert run.paid == {"fails": 1, "type": 1}


def test_a_retry_pays_the_failed_step_and_its_compensation_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, "compensates")
    assert run.life("old", "--die")["status"] == "error"
    assert run.life("new")["status"] == "error", "over: resuming it executes nothing"
    assert run.life("new", "--retry") == {"status": "ok", "value": "ticket"}
    assert run.paid == {"seat": 1, "ticket": 2, "give back": 1}


def test_a_retry_of_a_parent_goes_on_with_its_child_under_the_childs_own_id(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, "parent")
    assert run.life("old", "--die")["status"] == "error"
    assert run.life("new", "--retry") == {"status": "ok", "value": "second"}
    assert run.paid == {"first": 1, "second": 2}
    with open_stores(f"sqlite:///{run.database}") as stores:
        assert len(stores.journal.list_runs()) == 2
