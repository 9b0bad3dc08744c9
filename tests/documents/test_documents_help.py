"""The help of every script and module of this repository that people type has an example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = (
    "-m rulvar.conformance",
    "-m rulvar.conformance.protocol",
    "benchmarks/bench_append.py",
    "benchmarks/bench_file.py",
    "examples/agent/agent.py",
    "examples/quickstart/quickstart.py",
    "packages/conformance/tests/gallery/gallery_run.py",
    "packages/conformance/tests/gallery/gallery_soak.py",
    "packages/store-sqlite/tests/power/power_loss.py",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_ends_with_an_example_whose_options_exist(command: str) -> None:
    done = subprocess.run(
        [sys.executable, *command.split(), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    options, found, examples = done.stdout.partition("\nexample")
    assert found, done.stdout
    assert set(re.findall(r"--[a-z-]+", examples)) <= set(re.findall(r"--[a-z-]+", options))
    for script in re.findall(r"python (\S+\.py)", examples):
        assert script == command
