"""Every `rulvar` command that a page shows exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from rulvar.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("examples/*/README.md"),
    }
    - {ROOT / "CHANGELOG.md"}
)


def shown(page: Path) -> list[str]:
    """Return what stands in code behind a prompt, on a line by itself, or between backticks."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    lines = [line.removeprefix("hatch run ") for line in lines]
    return sorted({line for line in lines if line.startswith("rulvar ")})


def unknown_of(line: str) -> str | None:
    """Return what of a command line does not exist, if anything."""
    words = shlex.split(re.sub(r"\s*[|<&>].*", "", line), comments=True)
    command: click.Command = main
    rest = words[1:]
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"{line!r}: no command {name!r}"
        command = found
    known = {option for each in command.params for option in each.opts} | {"--help", "-h"}
    options = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    missing = [option for option in options if option not in known]
    return f"{line!r}: no option {missing[0]!r}" if missing else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    assert [each for line in shown(page) if (each := unknown_of(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert unknown_of("rulvar runs vanish") is not None
    assert unknown_of("rulvar runs ls --no-such-option") is not None
    assert unknown_of("rulvar runs ls --status running | head") is None
