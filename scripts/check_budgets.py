"""Hold the budgets of the source: how long a file and a function may be, and no machine's paths.

Line counts are a smell detector, not a goal: split by role, never by size.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING

from workspace import ROOT, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES_OF_A_FILE = 500
LINES_OF_A_FUNCTION = 70
LINES_OF_THE_SPI = 300
SPI = "packages/core/src/rulvar/core/protocols.py"

TEXTS = (
    "*.md",
    "*.toml",
    ".ci/*",
    "benchmarks/**/*.py",
    "docs/**/*.md",
    "examples/**/*.py",
    "packages/*/*.md",
    "packages/*/*.toml",
    "packages/*/src/**/*.py",
    "packages/*/tests/**/*.py",
    "scripts/*.py",
    "tests/**/*.py",
)

HOME = re.compile(r"(?<![\w.:/])/(?:home|root|Users)/\w+")
"""A path that exists on somebody's machine only."""


def check_lengths(path: Path) -> Iterator[str]:
    """Yield what is longer than its budget in one file; of a test file, that alone counts."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    budget = LINES_OF_THE_SPI if name == SPI else LINES_OF_A_FILE
    if lines > budget:
        yield f"{name}: {lines} lines, budget {budget}: split it by role"
    if "tests" in path.relative_to(ROOT).parts:
        return
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LINES_OF_A_FUNCTION:
                where = f"{name}:{node.lineno}: {node.name}"
                yield f"{where}: {length} lines, budget {LINES_OF_A_FUNCTION}"


def check_paths(path: Path) -> Iterator[str]:
    """Yield the lines of one text that name a folder of some machine."""
    name = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if HOME.search(line):
            yield f"{name}:{number}: names a path of one machine"


def main() -> int:
    """Look at every source file and every text, and report."""
    sources = sorted(ROOT.glob("packages/*/src/**/*.py"))
    texts = sorted({path for pattern in TEXTS for path in ROOT.glob(pattern) if path.is_file()})
    tests = sorted([*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests/**/*.py")])
    problems = [problem for path in [*sources, *tests] for problem in check_lengths(path)]
    problems += [problem for path in texts for problem in check_paths(path)]
    if not sources:
        problems.append("packages/*/src holds no source")
    return report(problems, f"budgets of {len(sources)} sources and {len(texts)} texts")


if __name__ == "__main__":
    sys.exit(main())
