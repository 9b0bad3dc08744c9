"""Reports: what a storm wrote down is read back, and a damaged one is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.conformance.soak.history import DamagedReportError, Recorder, read_history
from rulvar.core import Lease

if TYPE_CHECKING:
    from pathlib import Path


def test_reports_are_read_back_and_a_last_line_that_was_cut_off_is_unknown(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1, 1)
    grant = recorder.next_id()
    recorder.invoked(grant, "acquire", "r", lease=None, target="w1")
    recorder.returned(grant, "landed", granted=1)
    lease = Lease(run_id="r", owner="w1", epoch=1)
    recorder.seen("r", lease=lease, journal=[], row=None, blobs={})
    append = recorder.next_id()
    recorder.invoked(append, "append", "r", lease=lease, content="c")
    recorder.returned(append, "landed")
    recorder.fault("stopped", 1, 3, 4)
    recorder.close()
    whole = read_history(tmp_path)
    assert [each.outcome for each in whole.attempts] == ["landed", "landed"]
    assert whole.seen[0].lease == lease
    assert whole.faults[0].kind == "stopped"

    path = tmp_path / "report-001-0001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:-9])
    cut = read_history(tmp_path)
    assert [each.outcome for each in cut.attempts] == ["landed", "unknown"]
    assert cut.unfinished == (path,)


@pytest.mark.parametrize(
    "line",
    [
        b'{"returned":"1.1.1","at":1,"outcome":"landed"}\n',
        b"not json\n",
        b'{"odd":1}\n',
        b'{"invoked":"x","at":1}\n',
    ],
)
def test_a_report_that_no_process_can_have_written_is_damage(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "report-001-0001.jsonl").write_bytes(line)
    with pytest.raises(DamagedReportError, match=r"report-001-0001\.jsonl, line 1"):
        read_history(tmp_path)
