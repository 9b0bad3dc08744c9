"""What messages spell: commands that can be pasted, and numbers with their nouns."""

from __future__ import annotations

import shlex

import pytest

from rulvar.core.wording import command_line, counted


@pytest.mark.parametrize(
    "run_id", ["a b", "it's", "$(id)", "a;b", "*", "~", "ä", "a&b|c>d", "--yes"]
)
def test_a_shell_reads_back_the_arguments_of_a_command(run_id: str) -> None:
    told = command_line("resume", run_id, options="--retry-failed")
    words = shlex.split(told)
    dashes = ["--retry-failed", "--", run_id]
    plain = [run_id, "--retry-failed"]
    assert words == ["rulvar", "resume", *(dashes if run_id.startswith("-") else plain)]


def test_a_plain_id_stands_as_it_is() -> None:
    assert command_line("runs show", "order-17") == "rulvar runs show order-17"


def test_one_has_no_plural() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
