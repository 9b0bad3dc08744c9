"""The benchmark gives a verdict where it measures, and none where it only takes a look."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_append.py"


@pytest.mark.parametrize(
    ("option", "status", "told"),
    [("--passes=1", 1, "  target 2.5: MISSED\n"), ("--quick", 0, "  target 2.5\n")],
)
def test_a_look_prints_the_target_and_no_verdict(
    option: str,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    main: Callable[[], int] = script["main"]

    def level(*_args: object) -> object:
        return script["Pass"](1_000.0, [1.0])

    # What the script's functions see.
    seen: dict[str, object] = main.__globals__
    monkeypatch.setitem(seen, "raw", level)
    monkeypatch.setitem(seen, "contenders", lambda: [("64 threads", level)])
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, option, "--durability", "full"])
    assert main() == status
    assert told in capsys.readouterr().out
