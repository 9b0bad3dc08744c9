"""The fast tier starts no process: a test that does, and has no mark, is red."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import os
import subprocess
import sys

import pytest


def start():
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def test_none():
    pass


def test_unmarked():
    start()


def test_unmarked_fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_slow():
    start()


@pytest.mark.storm
def test_storm():
    start()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
def test_a_test_without_a_mark_that_starts_a_process_fails(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS, "utf-8")
    marks = "[pytest]\nmarkers =\n  slow\n  storm\n"
    (tmp_path / "pytest.ini").write_text(marks, "utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_some.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    verdicts = {
        line.split()[1].rpartition("::")[2]: line.split()[0]
        for line in done.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED"))
    }
    assert verdicts == {
        "test_none": "PASSED",
        "test_unmarked": "FAILED",
        "test_unmarked_fork": "FAILED",
        "test_slow": "PASSED",
        "test_storm": "PASSED",
    }
    assert "mark it with @pytest.mark.slow" in done.stdout
