"""The wrong clock of one process: the system clock believes it, and no other process does."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import time
from rulvar.conformance.harness.machine_clock import offset_ms, set_offset, true_now_ms
from rulvar.core.spi import SystemClock

clock = SystemClock()
before = time.monotonic()
for offset in (3_600_000, -3_600_000, 0):
    set_offset(offset)
    assert offset_ms() == offset
    assert abs(clock.now_ms() - true_now_ms() - offset) < 1_000
    assert abs(time.time() * 1000 - true_now_ms() - offset) < 1_000
assert time.monotonic() - before < 60
print("followed")
"""


def test_the_system_clock_of_one_process_follows_its_offset() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "followed\n", "")
