"""What messages spell: commands that can be pasted, and numbers with their nouns."""

from __future__ import annotations

import json
import shlex
import sys
import unicodedata

import pytest

from rulvar.core.formatting import command_line, counted, plain, plain_json, plain_lines


@pytest.mark.parametrize(
    "run_id", ["a b", "it's", "$(id)", "a;b", "*", "~", "ä", "a&b|c>d", "--yes"]
)
def test_a_shell_reads_back_the_arguments_of_a_command(run_id: str) -> None:
    told = command_line("resume", run_id, options="--retry")
    words = shlex.split(told)
    dashes = ["--retry", "--", run_id]
    plain = [run_id, "--retry"]
    assert words == ["rulvar", "resume", *(dashes if run_id.startswith("-") else plain)]


def test_a_plain_id_stands_as_it_is() -> None:
    assert command_line("runs show", "order-17") == "rulvar runs show order-17"


def test_one_has_no_plural() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""The categories of characters that move, turn, hide, or begin a line."""


@pytest.mark.slow
def test_whatever_is_not_seen_is_shown_as_an_escape() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    hidden = [each for each in every if unicodedata.category(each) in HIDDEN]
    kept = [each for each in hidden if plain(each) == each]
    assert kept == []
    assert plain("\x1b[31m\u202eexe.\u200b\u2028\U000e0041") == (
        r"\x1b[31m\u202eexe.\u200b\u2028\U000e0041"
    )
    # Every letter that is seen stays, of whatever script.
    shown = "Füße 日本語 русский עברית العربية हिन्दी 🙂 \\x1b"
    assert plain(shown) == shown
    assert plain_lines("a\tb\nc\rd") == "a\tb\nc\\rd"
    assert plain("a\tb\nc") == r"a\tb\nc"


@pytest.mark.slow
def test_json_with_escapes_is_json_that_means_the_same() -> None:
    every = "-".join(
        each for each in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(each) in HIDDEN
    )
    document = {every: [every, "日本語"]}
    text = plain_json(json.dumps(document, ensure_ascii=False, indent=2))
    assert json.loads(text) == document
    assert {each for each in text if unicodedata.category(each) in HIDDEN} == {"\n"}
    assert "日本語" in text
