"""JSON from the command line: as text, from a file, from standard input."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rulvar.cli.values import read_value
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_text_a_file_and_standard_input_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"folder": "søk", "depth": 3}'
    path = tmp_path / "args.json"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    expected = {"folder": "søk", "depth": 3}
    assert read_value(text, what="--args") == expected
    assert read_value(f"@{path}", what="--args") == expected
    assert read_value("-", what="--args") == expected


@pytest.mark.parametrize("text", ["", "folder", "{'a': 1}", "NaN", '{"a": 1, "a": 2}', "\udcff"])
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--args .* is not one JSON value"):
        read_value(text, what="--args")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        read_value(f"@{tmp_path / 'nowhere.json'}", what="--args")
