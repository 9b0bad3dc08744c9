"""The documents say how many broken stores there are, as the gallery's own list counts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_the_documents_have_the_number_of_the_list() -> None:
    script = ROOT / "packages" / "conformance" / "tests" / "gallery" / "gallery_run.py"
    done = subprocess.run(
        [sys.executable, str(script), "--list"], check=True, capture_output=True, text=True
    )
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"(\d+) broken stores \(reference (\d+), sqlite (\d+)\)", last)
    assert found is not None, last
    total, reference, sqlite = found.groups()
    page = (ROOT / "docs" / "assurance" / "gallery.md").read_text("utf-8")
    assert (
        f"There are {total} of them, {reference} over the reference store and {sqlite} over" in page
    )
    assert f"[{total} stores that are broken" in (ROOT / "README.md").read_text("utf-8")
    assert f"gallery of {total} broken stores" in (ROOT / "CHANGELOG.md").read_text("utf-8")
