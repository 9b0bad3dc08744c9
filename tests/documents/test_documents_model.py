"""The page about the model shows what its command prints, to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rulvar.conformance.protocol.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "assurance" / "model.md").read_text("utf-8")
SCRIPTS = (ROOT / "hatch.toml").read_text("utf-8")


def _shown(command: str) -> str:
    """Return what the page shows below a command."""
    [found] = re.findall(rf"```console\n\$ {re.escape(command)}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_interleaving_of_the_fence_that_is_not_atomic_is_the_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--guard", "append:unit"]) == 0
    printed = capsys.readouterr().out
    assert printed == _shown("python -m rulvar.conformance.protocol --guard append:unit")


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_the_survey_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'model = "python -m rulvar.conformance.protocol sqlite:///runs.db {args}"' in SCRIPTS
    assert main(["sqlite:///runs.db"]) == 0
    *printed, _ = capsys.readouterr().out.splitlines()  # the last line is how long it took
    assert "\n".join(printed) + "\n" == _shown("hatch run model")
