"""What is cut short leaves nothing: no folder, no process, and no work that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.conformance import StoreAtUrl
from rulvar.conformance.crash import kill_points
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm

if TYPE_CHECKING:
    from typing import BinaryIO

    from rulvar.conformance.crash.crash_case import Death

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals, and forks")

_HOLDS_A_PLACE = """
import os, sys, time
from rulvar.conformance import StoreAtUrl
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm

place = StoreAtUrl("sqlite:///s.db").fresh(lease_ttl_ms=60_000, manual_clock=False)
place.open()
if os.fork() == 0:
    sys.exit()  # runs what is to be run at the end, as any script that forks may
os.wait()
with cleans_up_at_sigterm():
    print(place._folder, place._folder.exists(), flush=True)
    time.sleep(1_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -2)])
def test_the_folder_of_a_place_goes_with_the_process_that_made_it(number: int, status: int) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_PLACE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with maker:
        folder, there = cast("BinaryIO", maker.stdout).readline().decode().split()
        maker.send_signal(number)
    assert there == "True"
    assert not Path(folder).exists()
    assert maker.returncode == status


def test_sigterm_has_its_old_handler_back_and_one_that_is_set_is_left_alone() -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError(number, frame)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(SystemExit) as left, cleans_up_at_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, own)
    try:
        with cleans_up_at_sigterm():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.slow
def test_kill_points_that_are_interrupted_end_every_workload_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[Death] = []

    def interrupted(death: Death) -> None:
        seen.append(death)
        if death.workload == "steps":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kill_points(
            StoreAtUrl("sqlite:///s.db"),
            workloads=["steps", "retry", "error"],
            jobs=2,
            progress=interrupted,
        )
    assert [death.workload for death in seen].count("steps") == 1
    assert len(seen) < 20  # the other one has more than 60 to come
    assert list(tmp_path.iterdir()) == []
