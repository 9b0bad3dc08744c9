"""Every file and folder that CONTRIBUTING sends a reader to is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PACKAGES = {
    "core": ROOT / "packages/core/src/rulvar/core",
    "cli": ROOT / "packages/cli/src/rulvar/cli",
    "conformance": ROOT / "packages/conformance/src/rulvar/conformance",
    "sqlite": ROOT / "packages/store-sqlite/src/rulvar/stores/sqlite",
    "file": ROOT / "packages/store-file/src/rulvar/stores/file",
}


def place_of(path: str) -> Path:
    first, _, rest = path.partition("/")
    return PACKAGES[first] / rest if first in PACKAGES else ROOT / path


def test_every_path_leads_somewhere() -> None:
    paths = re.findall(r"`([\w.-]+/[\w./-]*)`", PAGE)
    assert len(set(paths)) > 40, "the map is found at all"
    # `src/rulvar/` is said of every distribution.
    missing = {path for path in paths if not place_of(path).exists()} - {
        "src/rulvar/",
        "src/rulvar/stores/",
    }
    assert sorted(missing) == []


def test_the_walk_of_a_step_is_short() -> None:
    walk = PAGE.partition("## The walk of a step\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| `", walk, re.MULTILINE)) <= 12
