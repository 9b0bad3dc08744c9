"""The tutorial, followed command by command, with the kill where the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "tutorial.md").read_text("utf-8")
RULVAR = Path(sys.executable).with_name("rulvar")


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def commands() -> list[list[str]]:
    shown = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for each in shown for line in each.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def rulvar(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    assert command[0] == "rulvar"
    return subprocess.run(
        [str(RULVAR), *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def kill_when_packing(command: list[str], folder: Path) -> str:
    """Start the worker of the page, and kill it once it says that it packs."""
    assert command == ["rulvar", "worker", "&"]
    seen = ""
    with subprocess.Popen(
        [str(RULVAR), "worker"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            seen += line
            if line.startswith("packing"):
                os.kill(worker.pid, signal.SIGKILL)
    return seen


@pytest.mark.slow
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    assert "time.sleep(10)" in block("python")
    (tmp_path / "shop.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(block("toml"), encoding="utf-8")
    run, listed, shown, resolve, worker, kill, until_idle, shown_again, resume = commands()

    assert rulvar(run, tmp_path).returncode == 6
    assert "suspended" in rulvar(listed, tmp_path).stdout
    assert "approval" in rulvar(shown, tmp_path).stdout
    assert rulvar(resolve, tmp_path).returncode == 0

    first = kill_when_packing(worker, tmp_path)
    assert kill == ["kill", "-9", "$!"]
    assert re.findall(r"^(?:paying|packing) \w+", first, re.MULTILINE) == [
        "paying 700",
        "packing tea",
    ]

    # Nobody watches this one: it need not take its time.
    text = block("python").replace("time.sleep(10)", "time.sleep(0)")
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    second = rulvar(until_idle, tmp_path).stdout
    assert re.findall(r"^(?:paying|packing) \w+", second, re.MULTILINE) == [
        "packing tea",
        "packing cups",
    ]
    assert "Deaths" in rulvar(shown_again, tmp_path).stdout
    over = rulvar(resume, tmp_path)
    assert over.returncode == 0
    assert json.loads(over.stdout)["receipt"] == "receipt over 700"
