"""Every link between the documents leads to a page, and to a heading of it; the index has all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    {
        *ROOT.glob("*.md"),
        *DOCS.glob("**/*.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("benchmarks/*.md"),
    }
)


def prose(page: Path) -> str:
    """Return a page's text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[tuple[str, str]]:
    """Return the page's links to files and headings: the path as written, and the anchor."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose(page))
    return [(path, anchor) for path, anchor in found if "://" not in path]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    return {anchor_of(head) for head in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def anchor_of(head: str) -> str:
    """Return a heading's anchor: lower case, no punctuation, hyphens for blanks."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and (not anchor or anchor in anchors(target))
        if not there:
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_the_index_lists_every_page() -> None:
    listed = {(DOCS / path).resolve() for path, _ in links(DOCS / "README.md")}
    pages = set(DOCS.glob("**/*.md")) - {DOCS / "README.md"}
    assert sorted(pages - listed) == []
