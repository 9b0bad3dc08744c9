"""Progress on standard error: what a person, a log and a program on the other end see."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import Result, catalogue
from rulvar.conformance.__main__ import main
from rulvar.conformance.certification import progress
from rulvar.conformance.certification.progress import Progress
from rulvar.core.plugins import StoreProviders
from rulvar.core.testing import reference_stores

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.conformance import Clause
    from rulvar.conformance.certification.certificate import Outcome
    from rulvar.core import Stores

FIRST, SECOND = catalogue()[:2]


class _Stream(io.StringIO):
    """Keeps what is written, and tells when something is."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.written = threading.Event()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str, /) -> int:
        size = super().write(text)
        self.written.set()
        return size


def _result(clause: Clause, outcome: Outcome, reason: str = "") -> Result:
    return Result(
        clause_id=clause.id,
        strength="MUST",
        level="journal",
        sentence="A sentence.",
        outcome=outcome,
        seed=1,
        reason=reason,
    )


def test_a_log_gets_whole_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_S", 0.01)
    stream = _Stream(terminal=False)
    with Progress(313, stream=stream) as shown:
        shown.begins(FIRST)
        shown.ended(_result(FIRST, "passed"))
        shown.begins(SECOND)
        stream.written.clear()
        assert stream.written.wait(30)
    text = stream.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.endswith("\n")
    assert f"1/313 clauses  0:00  {SECOND.id} (" in text


def test_a_terminal_gets_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_ANEW_S", 0.01)
    stream = _Stream(terminal=True)
    with Progress(2, stream=stream) as shown:
        shown.begins(FIRST)
        stream.written.clear()
        assert stream.written.wait(30)
    assert "\n" not in stream.getvalue()
    assert FIRST.id in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_failure_is_told_at_once_on_a_line_that_stays(terminal: bool) -> None:
    stream = _Stream(terminal=terminal)
    shown = Progress(2, stream=stream)
    shown.begins(FIRST)
    shown.begins(SECOND)
    shown.ended(_result(FIRST, "failed", "expected one\nor two; got 3" + "." * 500))
    assert stream.getvalue().removeprefix("\r\x1b[K").startswith(f"FAILED {FIRST.id}: expected one")
    assert stream.getvalue().count("\n") == 1
    assert len(stream.getvalue()) < 200
    assert "1/2 clauses  0:00  1 failed" in shown.line()


def test_the_one_that_takes_longest_is_named_and_the_others_counted() -> None:
    shown = Progress(2, stream=_Stream(terminal=False))
    shown.begins(FIRST)
    shown.begins(SECOND)
    assert f"{FIRST.id} (0.0 s) and 1 more" in shown.line()


@pytest.mark.slow
def test_json_is_all_that_standard_output_gets_and_progress_is_left_out_when_asked(
    tmp_path: Path,
) -> None:
    def call(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-W", "ignore", "-m", "rulvar.conformance", "memory://"),
                *("--level", "leasable", "--only", "L-exclusive", "--json", *options),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    loud, quiet = call(), call("--quiet")
    assert loud.returncode == quiet.returncode == 1
    for done in (loud, quiet):
        assert json.loads(done.stdout)["counts"]["failed"] == 1
    assert loud.stderr.startswith("FAILED L-exclusive: ")
    assert quiet.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "door",
    [
        ("-m", "rulvar.conformance"),
        ("-c", "from rulvar.conformance.certification.cli import certify; certify()"),
    ],
)
def test_a_clause_that_does_not_end_is_told_with_where_it_stands(
    door: tuple[str, str], tmp_path: Path
) -> None:
    # The model turns standard output elsewhere while it runs: the report is there all the same.
    options = ("sqlite:///runs.db", "--only", "X-model", "--deadline", "0.2")
    done = subprocess.run(
        [sys.executable, *door, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the check did not end within 0.2 s: a call hangs, or" in done.stdout
    assert "it stands at:" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "NOT PASSED: nothing of what was asked for; not kept, and no MUST: X-model"


def test_what_a_store_prints_is_no_part_of_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chatty(_: StoreProviders, url: str) -> Stores:
        print(f"opening {url}")  # noqa: T201 - that is the point
        return reference_stores()

    monkeypatch.setattr(StoreProviders, "open", chatty)
    assert main(["chatty://", "--only", "A5-guard", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["counts"]["passed"] == 1
    assert "opening chatty://" in told.err
