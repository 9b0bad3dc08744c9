"""A long state becomes a summary that is kept, whoever crashed over it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Literal

import pytest
from engine_loop_bench import LOOP, TURNS, Bench, nth_checkpoint, sealed

from rulvar.core.engine import Compaction

if TYPE_CHECKING:
    from rulvar.core.testing import StoreCall


# --- compaction -----------------------------------------------------------------------------


def compacting(bench: Bench) -> None:
    def make(state: object, turns: int) -> object:
        bench.made[turns] += 1
        assert isinstance(state, list)
        return [f"{len(state)} in short"]

    def long(state: object, _turns: int) -> bool:
        return isinstance(state, list) and len(state) > 2

    bench.options = {"compact": Compaction(when=long, make=make)}


SHORT = {
    "ended": "done",
    "result": {"sum": ["3 in short", 3, 4]},
    "state": ["3 in short", 3],
    "turns": 5,
    "summaries": [f"r/summary/{LOOP}/3"],
}


def test_a_long_state_becomes_a_summary_that_is_kept() -> None:
    bench = Bench()
    compacting(bench)
    outcome = asyncio.run(bench.run())
    assert outcome.value == SHORT
    assert bench.made == {3: 1}
    blob = bench.blob(f"r/summary/{LOOP}/3")
    assert blob is not None
    assert json.loads(blob)["state"] == ["3 in short"]


@pytest.mark.parametrize(
    ("blob", "when", "ran", "made"),
    [
        ("turn", "before", 2, 1),
        ("turn", "after", 1, 1),
        ("summary", "before", 1, 2),
        ("summary", "after", 1, 1),
        ("both", "before", 1, 1),
        ("both", "after", 1, 1),
    ],
)
def test_a_crash_over_a_summary_repeats_what_was_in_flight_and_nothing_else(
    blob: str, when: Literal["before", "after"], ran: int, made: int
) -> None:
    """The turn is kept, then its summary, then the checkpoint that names it."""
    bench = Bench()
    compacting(bench)

    def fits(call: StoreCall) -> bool:
        if blob == "summary":
            return call.method == "put" and call.arguments[0] == f"r/summary/{LOOP}/3"
        names_it = b"r/summary/" in call.payload
        return nth_checkpoint(3)(call) and names_it == (blob == "both")

    bench.die_at(fits, when)
    outcome = asyncio.run(bench.resume())
    assert outcome.value == SHORT
    assert (bench.ran[2], bench.made[3]) == (ran, made)
    assert sum(bench.ran.values()) == 4 + ran


def test_a_summary_that_is_still_long_is_not_summarized_again_for_the_same_turn() -> None:
    bench = Bench()
    compacting(bench)
    compact = bench.options["compact"]
    assert isinstance(compact, Compaction)
    bench.options = {"compact": Compaction(when=lambda _s, turns: turns == 3, make=compact.make)}
    bench.die_at(nth_checkpoint(4), "after")
    assert asyncio.run(bench.resume()).value == SHORT
    bench = Bench()
    compacting(bench)
    bench.options = {"compact": Compaction(when=lambda _s, turns: turns == 3, make=compact.make)}
    bench.die_at(lambda call: nth_checkpoint(3)(call) and b"r/summary/" in call.payload, "after")
    assert asyncio.run(bench.resume()).value == SHORT


@pytest.mark.parametrize(
    "spoilt", [{"genesis": "x"}, {"dispatch": 9}, {"turns": 2}, {"madeOf": None}]
)
def test_a_summary_of_something_else_is_none(spoilt: dict[str, object]) -> None:
    bench = Bench()
    compacting(bench)
    bench.die_at(lambda call: nth_checkpoint(3)(call) and b"r/summary/" in call.payload)
    ref = f"r/summary/{LOOP}/3"
    blob = bench.blob(ref)
    assert blob is not None
    bench.pair.transcripts.put(ref, sealed(json.loads(blob) | spoilt))
    assert asyncio.run(bench.resume()).value == SHORT
    assert bench.made == {3: 2}


def test_an_attempt_that_starts_over_takes_no_summary_of_the_one_before() -> None:
    """Its turns may come to something else, and the old summary knows nothing of that."""
    bench = Bench()
    compacting(bench)
    bench.die_at(nth_checkpoint(4), "after")
    bench.put_checkpoint(b"torn")
    bench.initial = ["again"]  # as a model would answer otherwise the second time
    compact = bench.options["compact"]
    assert isinstance(compact, Compaction)
    bench.options = {"compact": Compaction(when=lambda _s, turns: turns == 3, make=compact.make)}
    outcome = asyncio.run(bench.resume())
    assert isinstance(outcome.value, dict)
    assert outcome.value["result"] == {"sum": ["4 in short", 3, 4]}
    assert [bench.ran[n] for n in range(TURNS)] == [2, 2, 2, 2, 1]
    assert bench.made == {3: 2}
