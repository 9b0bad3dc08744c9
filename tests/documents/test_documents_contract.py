"""What cites the contract names a heading that docs/contract.md has.

A citation reads ``contract.md#one-unit``; the promises of stores are cited by number (A3), and
clauses name headings as their source.
"""

from __future__ import annotations

import re
from pathlib import Path

from rulvar.conformance import catalogue

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = re.findall(
    r"^#+ (.+)$", (ROOT / "docs" / "contract.md").read_text("utf-8"), re.MULTILINE
)
ANCHORS = {heading.lower().replace(" ", "-") for heading in HEADINGS}
HERE = Path(__file__).resolve()

CITATION = re.compile(r"contract\.md#([a-z][\w-]*)")
PROMISE = re.compile(r"(?:[(,]|\bpromises?|\band|\bto) ?([AMD][1-9])\b(?=[,).:;\s]|$)")
OUTSIDE = re.compile(r"\bdesign['s ]* sections?\b|[(\s]sections? \d+[).,:;]", re.IGNORECASE)


def sources() -> list[Path]:
    folders = ("packages", "examples", "tests", "scripts", "benchmarks")
    found = [path for each in folders for path in (ROOT / each).rglob("*.py")]
    return sorted(set(found) - {HERE})


def test_headings_are_unique() -> None:
    assert len(HEADINGS) == len(ANCHORS)


def test_every_citation_names_a_heading_of_the_contract() -> None:
    cited = {
        (str(path.relative_to(ROOT)), anchor)
        for path in sources()
        for anchor in CITATION.findall(path.read_text("utf-8"))
    }
    assert len(cited) > 30, "the citations are found at all"
    assert sorted(each for each in cited if each[1] not in ANCHORS) == []


def test_every_promise_that_is_cited_by_number_is_in_the_contract() -> None:
    cited = {
        (str(path.relative_to(ROOT)), number)
        for path in sources()
        if "src" in path.parts
        for number in PROMISE.findall(path.read_text("utf-8"))
    }
    assert {number for _, number in cited} >= {"A1", "A2", "A3", "A4", "A5", "M1", "M2", "D1"}
    assert sorted(each for each in cited if each[1] not in HEADINGS) == []


def test_nothing_cites_a_document_that_is_not_here() -> None:
    citing = [
        f"{path.relative_to(ROOT)}: {found.group()!r}"
        for path in sources()
        for found in OUTSIDE.finditer(path.read_text("utf-8"))
    ]
    assert citing == []


def test_every_clause_has_a_heading_of_the_contract_as_its_source() -> None:
    unknown = [
        f"{clause.id}: {heading}"
        for clause in catalogue()
        for heading in clause.source.split(", ")
        if heading not in HEADINGS
    ]
    assert unknown == []
