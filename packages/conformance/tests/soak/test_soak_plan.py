"""What is chosen from the seed, and what a plan refuses to be."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.conformance.soak import CI, LONG, CoverageGoals, Plan
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    import random


def some(choices: random.Random) -> list[float]:
    return [choices.random() for _ in range(20)]


def test_the_same_seed_makes_the_same_choices() -> None:
    for process, life in ((0, 1), (1, 1), (1, 2), (6, 9)):
        first, again = Plan(seed=7), Plan(seed=7, processes=9)
        assert some(first.choices(process, life)) == some(again.choices(process, life))


def test_another_seed_process_or_life_makes_others() -> None:
    sources = [(7, 1, 1), (8, 1, 1), (7, 2, 1), (7, 1, 2)]
    made = [some(Plan(seed=seed).choices(process, life)) for seed, process, life in sources]
    assert all(one != other for one, other in combinations(made, 2))


def test_a_plan_travels_as_json() -> None:
    plan = Plan(seed=3, goals=CoverageGoals(takeovers=11))
    assert plan.to_json()["seed"] == 3
    assert plan.to_json()["goals"]["takeovers"] == 11


def test_coverage_goals_are_changed_number_by_number() -> None:
    plan = CI.with_goals(accepted=5, refused=None)
    assert plan.goals == replace(CI.goals, accepted=5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 1},
        {"processes": 101},
        {"lease_ttl_ms": 20},
        {"seed": -1},
        {"records_of_a_run": 1},
        {"largest_blob": 10},
        {"deadline_s": 0},
        {"deadline_s": -1},
        {"deadline_s": float("nan")},
        {"deadline_s": float("inf")},
    ],
)
def test_what_is_no_storm_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        Plan(**wrong)


def test_the_long_form_is_what_a_release_is_held_to() -> None:
    assert LONG.processes == 6
    assert LONG.goals.takeovers >= 300
    assert LONG.goals.accepted >= 20_000
    assert LONG.goals.refused >= 20_000


@pytest.mark.parametrize("name", asdict(CI.goals))
def test_nothing_at_all_is_not_a_coverage_goal(name: str) -> None:
    for number in (0, -1):
        with pytest.raises(ConfigError, match=f"{name}={number}"):
            CoverageGoals(**{name: number})
    assert CoverageGoals(**{name: 1}) != CI.goals
