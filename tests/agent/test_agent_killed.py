"""The agent is killed at every model call in turn: only the call in flight is paid again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROCESS = Path(__file__).with_name("killed_agent.py")
CALLS = 8
"""find_files, a count for each of five files, the sum, the answer."""


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(PROCESS), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(5):
        (folder / f"m{number}.py").write_text("x\n" * (number + 1))
    return folder


def test_undisturbed_it_pays_for_each_call_once(tmp_path: Path, folder: Path) -> None:
    calls = tmp_path / "calls"
    done = start(folder, tmp_path / "agent.db", calls, -1, "never")
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 files, 15 lines\n", "")
    assert len(calls.read_text().splitlines()) == CALLS


@pytest.mark.storm
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dies_at", range(CALLS))
def test_killed_at_a_call_it_goes_on_from_the_turn_in_flight(
    tmp_path: Path, folder: Path, dies_at: int, when: str
) -> None:
    calls, database = tmp_path / "calls", tmp_path / "agent.db"
    died = start(folder, database, calls, dies_at, when)
    assert died.returncode == -9
    done = start(folder, database, calls, -1, "never")
    assert (done.returncode, done.stdout) == (0, "5 files, 15 lines\n"), done.stderr
    paid = calls.read_text().splitlines()
    twice = [call for call, times in Counter(paid).items() if times > 1]
    assert len(paid) == CALLS + (when == "after")
    assert twice == ([paid[dies_at]] if when == "after" else [])
    assert max(Counter(paid).values()) <= 2


def test_killed_at_every_call_in_turn_each_is_paid_twice(tmp_path: Path, folder: Path) -> None:
    """One run, and a process for each of its calls: it repeats the one in flight, then dies."""
    calls, database = tmp_path / "calls", tmp_path / "agent.db"
    for turn in range(CALLS):
        died = start(folder, database, calls, 2 * turn, "after")
        assert died.returncode == -9
    done = start(folder, database, calls, -1, "never")
    assert (done.returncode, done.stdout) == (0, "5 files, 15 lines\n"), done.stderr
    paid = calls.read_text().splitlines()
    assert paid[::2] == paid[1::2], "each is followed by its own repetition"
    assert len(set(paid)) == CALLS
