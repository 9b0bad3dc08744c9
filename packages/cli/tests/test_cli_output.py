"""Output: JSON alone on standard output, text that cannot move the cursor, rows in one line."""

from __future__ import annotations

import io
import json
import sys
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.cli.output import Output, ago, error_document, plain, size, span
from rulvar.cli.view.tables import columns, lines_of, stacked
from rulvar.core.errors import LeaseHeldError
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Callable


def test_control_characters_are_made_visible() -> None:
    assert plain("a\x1b[31mb\r\n\x9b\udcffü") == "a\\x1b[31mb\\r\\n\\x9b\\udcffü"


def test_an_error_carries_its_facts() -> None:
    offered = Lease(run_id="r", owner="late", epoch=3)
    error = LeaseHeldError(
        run_id="r", reason="superseded", offered=offered, holder="next", epoch=4, expires_at=99
    )
    assert error_document(error) == {
        "error": {
            "code": "lease-held",
            "message": str(error),
            "retryable": False,
            "run_id": "r",
            "reason": "superseded",
            "offered": {"run_id": "r", "owner": "late", "epoch": 3},
            "holder": "next",
            "epoch": 4,
            "expires_at": 99,
        }
    }


def test_json_survives_an_output_that_is_not_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Output(json=True).document({"name": "søk"})
    Output().print("søk")
    stream.seek(0)
    document, text = stream.read().rsplit("\n", 2)[:2]
    assert json.loads(document) == {"name": "søk"}
    assert text == "s\\xf8k"


def test_a_row_stays_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    Output().print(columns(("RUN", "SEGMENTS>"), [(long, 1), ("b[red]", None)]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["RUN", "SEGMENTS"], [long, "1"], ["b[red]"]]
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in "".join(lines)


def test_colour_obeys_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown() -> str:
        stream = Terminal()
        monkeypatch.setattr(sys, "stdout", stream)
        Output().print(columns(("STATUS",), [("ok",)], styles={"ok": "green"}))
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown()


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "x\ny",
        {"a": {"b": [1, {"c": None}]}, "ü": [], "t": "x\ny", "f": 1.5},
        {"calls": [{"n": n, "t": "a\u202eb\n"} for n in range(1_001)], "more": {"x": [1]}},
    ],
    ids=["nothing", "list", "text", "small", "long"],
)
def test_a_document_is_json_of_the_value(
    capsys: pytest.CaptureFixture[str], value: dict[str, object]
) -> None:
    Output(json=True).document(value)
    said = capsys.readouterr().out
    assert json.loads(said) == value
    if "calls" not in value:
        assert said == json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    else:
        assert said.count("\n") == 1_001 + 9


def test_a_table_folds_to_the_terminal() -> None:
    table = columns(
        ("RUN", "N>", "WHY"),
        [("a" * 30, 7, "one two three four five six seven"), ("日本語日本語", 12, "")],
    )
    assert list(lines_of(table, width=40, coloured=False)) == [
        "RUN                 N  WHY",
        "aaaaaaaaaaaaaaaaa   7  one two three",
        "aaaaaaaaaaaaa          four five six",
        "                       seven",
        "日本語日本語       12",
    ]
    wide = list(lines_of(table, width=None, coloured=False))
    assert len(wide) == 3
    assert wide[1] == f"{'a' * 30}   7  one two three four five six seven"
    assert wide[2] == "日本語日本語" + " " * 20 + "12"
    both = stacked(["above\nthat", table])
    assert list(lines_of(both, width=None, coloured=False)) == ["above", "that", *wide]
    assert list(lines_of(columns(("A",), []), width=1, coloured=False)) == ["A"]


def test_a_table_of_twenty_thousand_rows_is_there_at_once() -> None:
    rows = [(n, "step", f"step-{n}", "ok", "03:04:05.000", "10 ms", 1) for n in range(20_000)]
    titles = ("SEQ>", "KIND", "CALL", "STATUS", "BEGAN", "TOOK>", "EPOCH")
    began = time.process_time()
    lines = list(lines_of(columns(titles, rows), width=60, coloured=True))
    assert len(lines) == 20_001
    # It took twelve seconds; the bound is for a machine that is busy.
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    ("make", "value", "text"),
    [
        (size, 0, "0 B"),
        (size, 1023, "1023 B"),
        (size, 1536, "1.5 KiB"),
        (size, 3 * 1024**4, "3.0 TiB"),
        (span, 0, "0 ms"),
        (span, 999, "999 ms"),
        (span, 3400, "3.4 s"),
        (span, 302_000, "5 min 2 s"),
        (span, 3 * 3_600_000, "3 h 0 min"),
        (span, 50 * 3_600_000, "2 d 2 h"),
        (span, -1500, "-1.5 s"),
    ],
)
def test_sizes_and_spans_for_people(make: Callable[[int], str], value: int, text: str) -> None:
    assert make(value) == text


def test_times_for_people() -> None:
    assert ago(1000, 4000) == "3.0 s ago"
    assert ago(4000, 1000) == "in 3.0 s"
