"""Every broken store of the gallery fails the clause that it breaks, and is named by it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rulvar.conformance import catalogue, certify

sys.path.insert(0, str(Path(__file__).parent / "gallery"))

import gallery_run
from gallery_defects import DEFECTS, SOUND, subject


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_a_broken_store_fails_the_clause_it_breaks(name: str) -> None:
    assert gallery_run.caught(DEFECTS[name], seed=1) == "failed", DEFECTS[name].words


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_store_without_a_defect_passes_every_clause_that_is_named(name: str) -> None:
    named = sorted({each.breaks for each in DEFECTS.values()})
    certificate = certify(subject(SOUND[name]), only=named)
    assert certificate.ok, [result.story for result in certificate.problems]


def test_every_defect_names_a_clause_that_there_is() -> None:
    known = {clause.id for clause in catalogue()}
    assert {each.breaks for each in DEFECTS.values()} <= known
