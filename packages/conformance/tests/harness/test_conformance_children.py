"""The kit's other processes: none is left behind, however the one that started it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from typing import BinaryIO

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="stops and kills processes")

_PARENT = """
import os, signal, sys, time
from rulvar.conformance.harness.children import Child

# Whoever runs these tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
child = Child()
child.ask("close")
pid = child._process.pid
if "stopped" in sys.argv:
    child.stop()
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
print(pid, flush=True)
time.sleep(1_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["idle", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_with_its_parent_also_when_it_is_stopped(how: str, number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with parent:
        child = int(cast("BinaryIO", parent.stdout).readline())
        group = os.getpgid(child)
        parent.send_signal(number)
        # Both write there: the end comes when neither of them is left.
        said = cast("BinaryIO", parent.stderr).read().decode()
    assert group == child
    assert parent.returncode != 0
    assert "rulvar/conformance" not in said
