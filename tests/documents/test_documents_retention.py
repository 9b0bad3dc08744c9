"""What the page on retention shows works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate" / "retention.md").read_text("utf-8")


def test_the_script_of_the_page_runs_over_an_empty_store(tmp_path: Path) -> None:
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "retain.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "retain.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 runs would go\n0 runs went, 0 were kept\n"
