"""JSON from the command line: as text, from a file, from standard input."""

from __future__ import annotations

import io
import shlex
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


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("ann", """type '"ann"'"""),
        ("it's", """type '"it'"'"'s"'"""),
        ("", """type '""'"""),
        ("True", "in JSON it is true"),
        ("{n: 2}", """quote it for the shell, as in '{"folder": "src"}', or use @FILE"""),
        ("\udcff", """quote it for the shell, as in '{"folder": "src"}', or use @FILE"""),
    ],
)
def test_the_remedy_is_the_value_as_the_shell_gets_it(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_value(text, what="JSON")
    assert str(caught.value).endswith(remedy)
    if remedy.startswith("type "):
        assert read_value(shlex.split(remedy)[1], what="JSON") == text


def test_what_no_shell_has_seen_gets_no_word_about_quoting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "args.json"
    path.write_text("ann", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"ann")))
    for given in ("-", f"@{path}"):
        with pytest.raises(ConfigError, match=r"a string stands in double quotes$") as caught:
            read_value(given, what="--args")
        assert "for the shell" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        read_value(f"@{tmp_path / 'nowhere.json'}", what="--args")
