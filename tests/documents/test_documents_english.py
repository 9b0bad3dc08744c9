"""The pages name roles, and say plainly what happens: the worst habits stay out of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("benchmarks/*.md"),
    }
    # Made from the commands' help and from the clauses; the record of changes stays as it is.
    - set(ROOT.glob("docs/reference/cl*.md"))
    - {ROOT / "CHANGELOG.md"}
)

HABITS = {
    "name the role": r"\b(?:some|no|any)body\b|\bwho(?:m)?ever\b",
    "continue, resume": r"\bgo(?:es)? on with\b|\bwent on with\b",
    "report, log, say": r"\b(?:is|are|was|were|being) told\b",
    "its own, separate": r"\ban? \w+ of (?:its|their|your|his) own\b",
    "the result, the outcome": r"\bwhat (?:it|they|became|has) (?:came|come) (?:to|of)\b",
    "start": r"\bwas begun\b|\bwere begun\b",
}


def prose(page: Path) -> str:
    """Return a page's text without code, and without what it quotes."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`|\"[^\"\n]*\"", "", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_worst_habits(page: Path) -> None:
    found = [
        f"{match.group()!r}: {better}"
        for better, habit in HABITS.items()
        for match in re.finditer(habit, prose(page), re.IGNORECASE)
    ]
    assert found == []
