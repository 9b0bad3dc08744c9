"""The page about the soak says what the code does."""

from __future__ import annotations

from pathlib import Path

from rulvar.conformance.soak import CI, LONG
from rulvar.conformance.soak.plan import DEATHS
from rulvar.conformance.soak.results import ViolationKind

PAGE = (Path(__file__).parents[2] / "docs" / "assurance" / "soak.md").read_text("utf-8")


def test_the_page_has_the_numbers_of_both_forms() -> None:
    for name, plan in (("plain", CI), ("`--long`", LONG)):
        goals = plan.goals
        totals = (
            f"{goals.accepted:,} accepted, {goals.refused:,} refused, {goals.takeovers} takeovers"
        )
        cells = (
            name,
            plan.processes,
            totals,
            goals.per_surface,
            goals.per_cell,
            goals.per_death,
            goals.overtaken,
            f"{plan.deadline_s:,.0f} s",
        )
        assert f"| {' | '.join(map(str, cells))} |" in PAGE


def test_the_page_names_every_death_and_every_violation() -> None:
    assert [each for each in (*DEATHS, *ViolationKind) if f"`{each}`" not in PAGE] == []
