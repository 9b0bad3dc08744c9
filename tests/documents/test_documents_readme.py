"""What the README shows is a file that is type-checked, and works as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "first_workflow.py"
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown == [EXAMPLE.read_text("utf-8")]


@pytest.mark.slow
def test_the_example_runs_each_step_once(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"1234")
    (tmp_path / "two.txt").write_bytes(b"123456")

    def start() -> str:
        command = [sys.executable, "-W", "error", str(EXAMPLE)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    first = re.fullmatch(r"(\d+) bytes; (\d+) steps ran in this process\n", start())
    assert first is not None
    total, steps = map(int, first.groups())
    # The database is open by then, so the folder holds its files too.
    assert total >= 10
    assert steps >= 3
    assert start() == f"{total} bytes; 0 steps ran in this process\n"


@pytest.mark.slow
def test_the_commands_below_the_example_work(tmp_path: Path) -> None:
    """The file is called as the README says, and its module is what the worker is given."""
    (tmp_path / "measure.py").write_bytes(EXAMPLE.read_bytes())
    shown = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    [block] = [each for each in shown if "measure.py" in each]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [command[0] for command in commands] == ["python", "python", "rulvar", "rulvar"]
    scripts = Path(sys.executable).parent
    for command in commands:
        if command[1] == "worker":  # the README ends it by Ctrl-C
            command.append("--until-idle")
        done = subprocess.run(
            [str(scripts / command[0]), *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
