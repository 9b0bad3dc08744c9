"""The page about deploys is one program: each of its blocks runs, in order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "deploying.md"


def test_every_block_of_the_page_about_deploys_runs(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 10
    program = tmp_path / "deploys.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert text.count("assert ") > 15, "the blocks say what comes of them"
