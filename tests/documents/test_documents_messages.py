"""Messages name roles and say plainly what happened, as the pages do: the worst habits stay out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core",)
SOURCES = [path for name in PACKAGES for path in sorted(ROOT.glob(f"packages/{name}/src/**/*.py"))]

HABITS = {
    "name the role": r"\b(?:some|no|any)body\b|\bwho(?:m)?ever\b",
    "continue, resume": r"\bgo(?:es)? on with\b|\bwent on with\b",
    "is not a": r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|other\b|such\b)\w",
    "its own, separate": r"\ban? \w+ of (?:its|their|your|his) own\b",
    "the outcome": r"\bwhat (?:it|they|became|has) (?:came|come) (?:to|of)\b",
}


def messages(source: Path) -> list[tuple[int, str]]:
    """Return the strings of a module with their lines, its docstrings left out."""
    tree = ast.parse(source.read_text("utf-8"))
    documented = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documented
    ]


def test_a_message_has_none_of_the_worst_habits() -> None:
    found = [
        f"{source.relative_to(ROOT)}:{line}: {match.group()!r}: {better}"
        for source in SOURCES
        for line, text in messages(source)
        for better, habit in HABITS.items()
        for match in re.finditer(habit, text, re.IGNORECASE)
    ]
    assert found == []
