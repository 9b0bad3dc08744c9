"""Keep the worst habits of language out of docstrings and messages: name roles, say what happens.

``scripts/english_allowance.json`` says how many phrases each distribution still has to reword.
The number may only fall: ``--write`` lowers it to what there is now, and never raises it.
``--list`` prints every phrase that is left.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workspace import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWANCE = Path(__file__).with_name("english_allowance.json")
HABITS = {
    "name the role (holder, owner, caller, operator)": r"\b(?:some|no|any)body\b|\bwho(?:m)?ever\b",
    "continue, resume": r"\b(?:go(?:es)?|went|going) on with\b",
    "report, log, say": r"\b(?:is|are|was|were|be|being) told\b|\btells? of\b",
    "its own, separate": r"\ban? \w+ of (?:its|their|your|his|our) own\b",
    "the result, the outcome": r"\bwhat (?:it|they|became|has|the \w+) (?:came|come) (?:to|of)\b",
    "is not a": r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b)[a-z]+",
}


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each string of a module with its line: docstrings, and every part of a message."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


def habits_in(path: Path) -> list[str]:
    """Return what is to be reworded in a module, each with its line and the better words."""
    return [
        f"line {line}: {match.group()!r}: {better}"
        for line, text in texts_of(path)
        for better, habit in HABITS.items()
        for match in re.finditer(habit, text, re.IGNORECASE)
    ]


def main() -> int:
    """Compare what each distribution has with its allowance."""
    allowed: dict[str, int] = json.loads(ALLOWANCE.read_text("utf-8"))
    found: dict[str, list[str]] = {name: [] for name in allowed}
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        name = path.relative_to(ROOT / "packages").parts[0]
        place = path.relative_to(ROOT).as_posix()
        found.setdefault(name, []).extend(f"{place}, {each}" for each in habits_in(path))
    counts = {name: len(each) for name, each in found.items()}
    if "--write" in sys.argv:
        allowed = {name: min(count, allowed.get(name, 0)) for name, count in counts.items()}
        ALLOWANCE.write_text(json.dumps(allowed, indent=2, sort_keys=True) + "\n", "utf-8")
    over = [name for name, count in counts.items() if count > allowed.get(name, 0)]
    for name in found if "--list" in sys.argv else over:
        print("\n".join(found[name]))
    for name in over:
        print(f"{name}: {counts[name]} phrases to reword, {allowed.get(name, 0)} allowed")
    problems = f"{len(over)} packages have new ones" if over else "none is new"
    print(f"english: {sum(counts.values())} phrases left to reword, {problems}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
