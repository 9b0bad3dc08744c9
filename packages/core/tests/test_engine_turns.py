"""A turn loop keeps its state after every turn, under the lease, and goes on from there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import pytest
from engine_loop_bench import (
    CHECKPOINT,
    LOOP,
    TURNS,
    WHOLE,
    Bench,
    Image,
    ProcessDiedError,
    nth_checkpoint,
    sealed,
)

from rulvar.core.engine import Compaction, Continue, Done, Engine, workflow
from rulvar.core.engine.calls.turns import Checkpoint
from rulvar.core.errors import (
    ConfigError,
    StepFailedError,
)
from rulvar.core.journal import read_journal
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome


# --- checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_every_turn_that_goes_on_is_kept_under_the_lease(kind: str) -> None:
    bench = Bench()

    async def turn(state: object, number: int) -> object:
        await asyncio.sleep(0)
        return bench.count(state, number)

    if kind == "async":
        bench.turn = turn
    watched = WatchedStores(bench.pair)
    outcome = asyncio.run(bench.run(watched))
    assert outcome.value == WHOLE
    assert (outcome.status, outcome.executed) == ("ok", 5)
    puts = [c for c in watched.calls if c.method == "put" and c.arguments[0] == CHECKPOINT]
    kept = [json.loads(call.payload) for call in puts]
    assert [one["turns"] for one in kept] == [1, 2, 3, 4]
    assert [one["state"] for one in kept] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    row = bench.store.get_meta("r")
    assert row is not None
    assert {one["genesis"] for one in kept} == {row.genesis}
    assert {one["dispatch"] for one in kept} == {LOOP}
    assert all(call.lease is not None and call.lease.epoch == 1 for call in puts)


def test_a_replay_runs_no_turn_and_reads_no_checkpoint() -> None:
    bench = Bench()
    asyncio.run(bench.run())
    answered = bench.store.load("r")[:3]
    bench.store.delete("r")
    for record in answered:
        bench.store.append("r", record)
    watched = WatchedStores(bench.pair)
    outcome = asyncio.run(bench.resume(watched))
    assert outcome.value == WHOLE
    assert (outcome.executed, sum(bench.ran.values())) == (0, 5)
    assert [call for call in watched.calls if call.method == "get"] == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 19))
def test_a_crash_at_any_store_call_costs_one_turn_at_most(
    when: Literal["before", "after"], at: int
) -> None:
    bench = Bench()
    reached = False
    image = Image(bench.pair, lambda call: call.number == at, when)
    try:
        first = asyncio.run(bench.run(image.stores))
    except BaseException:  # noqa: BLE001 - whatever a dead store raises
        reached = image.dead
        assert reached
    else:
        # The last calls give the lease back: the outcome stands, or was never at stake.
        assert first.value == WHOLE
        assert at > 11
    before = Counter(bench.ran)
    blob = bench.blob()
    kept: int = json.loads(blob)["turns"] if blob is not None else 0
    began = any(entry.kind == "decision" for entry in read_journal("r", bench.store.load("r")))
    bench.clock.advance(bench.store.lease_ttl_ms)
    again = asyncio.run(bench.resume() if began else bench.run())
    assert again.value == WHOLE
    for number in range(TURNS):
        assert bench.ran[number] <= 2
        if number < kept:
            assert bench.ran[number] == before[number] == 1, "a kept turn never runs again"
    assert sum(bench.ran.values()) <= TURNS + 1


def test_every_store_call_was_a_place_to_crash_at() -> None:
    watched = WatchedStores(Bench().pair)
    asyncio.run(Bench().run(watched))
    assert len(watched.calls) < 19, "widen the range of the crash test"
    methods = [call.method for call in watched.calls]
    assert methods.count("put") == 5, "the source and four checkpoints"


IMPOSSIBLE: dict[str, Callable[[dict[str, object]], object]] = {
    "no JSON": lambda _: b"{",
    "no UTF-8": lambda _: b"\xff",
    "no object": lambda _: b"[]",
    "an empty blob": lambda _: b"",
    "a count that could be": lambda kept: json.dumps(kept | {"turns": 2}).encode(),
    "a state that could be": lambda kept: json.dumps(kept | {"state": [0, 1, 3]}).encode(),
    "another format": lambda kept: kept | {"format": 2},
    "another genesis": lambda kept: kept | {"genesis": "0" * 32},
    "another dispatch": lambda kept: kept | {"dispatch": 7},
    "no turn at all": lambda kept: kept | {"turns": 0},
    "negative turns": lambda kept: kept | {"turns": -1},
    "a boolean for a count": lambda kept: kept | {"turns": True},
    "a float for a count": lambda kept: kept | {"turns": 2.0},
    "more turns than are allowed": lambda kept: kept | {"turns": 1_001},
    "no limit": lambda kept: {k: v for k, v in kept.items() if k != "limit"},
    "a limit that is no number": lambda kept: kept | {"limit": "many"},
    "no state": lambda kept: {k: v for k, v in kept.items() if k != "state"},
    "no summaries": lambda kept: {k: v for k, v in kept.items() if k != "summaries"},
    "summaries that are no refs": lambda kept: kept | {"summaries": [1]},
    "more summaries than turns": lambda kept: kept | {"summaries": ["a", "b", "c", "d"]},
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_checkpoint_that_cannot_be_is_refused_whole(what: str) -> None:
    bench = Bench()
    bench.die_at(nth_checkpoint(3), "after")
    blob = bench.blob()
    assert blob is not None
    spoilt = IMPOSSIBLE[what](json.loads(blob))
    bench.put_checkpoint(sealed(spoilt) if isinstance(spoilt, dict) else cast("bytes", spoilt))
    outcome = asyncio.run(bench.resume())
    assert outcome.value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [2, 2, 2, 1, 1], "it started over"
    refused = [event for event in bench.events if event.kind == "checkpoint.refused"]
    assert [(event.name, bool(event.detail)) for event in refused] == [(CHECKPOINT, True)]


def test_a_checkpoint_is_refused_whatever_bit_of_it_is_another() -> None:
    bench = Bench()
    bench.die_at(nth_checkpoint(3), "after")
    blob = bench.blob()
    assert blob is not None
    read = partial(Checkpoint.decode, genesis=json.loads(blob)["genesis"], dispatch=LOOP)
    assert read(blob).turns == 3
    flipped = (
        blob[:at] + bytes([blob[at] ^ 1 << bit]) + blob[at + 1 :]
        for at in range(len(blob))
        for bit in range(8)
    )
    lost = (blob[:at] + blob[at + 1 :] for at in range(len(blob)))
    torn = (blob[:at] for at in range(len(blob)))
    for damaged in (*flipped, *lost, *torn, blob + b" ", blob + blob):
        with pytest.raises(ValueError):  # noqa: PT011 - each says something else
            read(damaged)


def test_a_checkpoint_that_is_whole_is_gone_on_from() -> None:
    """The same journey as above with nothing spoilt: the refusals are the spoiling's doing."""
    bench = Bench()
    bench.die_at(nth_checkpoint(3), "after")
    blob = bench.blob()
    assert blob is not None
    assert sealed(json.loads(blob)) == blob
    assert asyncio.run(bench.resume()).value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [1, 1, 1, 1, 1]


def test_a_turn_that_fails_half_way_has_not_changed_the_state() -> None:
    bench = Bench()

    def turn(state: object, number: int) -> object:
        answer = bench.count(state, number)
        if number == 2 and bench.ran[2] == 1:
            message = "no more"
            raise ValueError(message)
        return answer

    bench.turn = turn
    failed = asyncio.run(bench.run())
    assert failed.error is not None
    assert (failed.status, failed.error.error_type) == ("error", "ValueError")
    again = asyncio.run(bench.resume(retry=True))
    assert again.value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [1, 1, 2, 1, 1], "it went on, not over"
    dispatches = [e.seq for e in read_journal("r", bench.store.load("r")) if e.kind == "turns"]
    assert len(dispatches) == 4, "two dispatches and their answers"


def test_a_retry_keeps_its_own_checkpoints() -> None:
    """After the retry's crash the loop goes on from what the retry had reached."""
    bench = Bench()

    def turn(state: object, number: int) -> object:
        answer = bench.count(state, number)
        if number == 1 and bench.ran[1] == 1:
            raise ValueError
        return answer

    bench.turn = turn
    assert asyncio.run(bench.run()).status == "error"
    # Behind what is there: the retry, then the opening of the call that is made again.
    second = next(e.seq for e in reversed(read_journal("r", bench.store.load("r")))) + 2
    image = Image(
        bench.pair,
        lambda c: (
            c.method == "put"
            and c.arguments[0] == f"r/ckpt/{second}"
            and json.loads(c.payload)["turns"] == 4
        ),
    )
    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever a dead store raises
        asyncio.run(bench.resume(image.stores, retry=True))
    assert image.dead
    assert asyncio.run(bench.resume()).value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [1, 2, 1, 2, 1]


def test_a_retry_that_dies_in_its_first_turn_has_lost_nothing() -> None:
    bench = Bench()
    dying = False

    def turn(state: object, number: int) -> object:
        answer = bench.count(state, number)
        if number == 2 and bench.ran[2] == 1:
            raise ValueError
        if number == 2 and dying:
            raise ProcessDiedError
        return answer

    bench.turn = turn
    assert asyncio.run(bench.run()).status == "error"
    dying = True
    # Nothing of what it still does lands, so that it may fail as it likes.
    image = Image(bench.pair, lambda _: bench.ran[2] == 2)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever a dead store raises
        asyncio.run(bench.resume(image.stores, retry=True))
    assert image.dead
    dying = False
    assert asyncio.run(bench.resume()).value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [1, 1, 3, 1, 1]


# --- limits ---------------------------------------------------------------------------------


def test_max_turns_ends_with_what_there_is() -> None:
    bench = Bench()
    bench.options = {"max_turns": 3}
    outcome = asyncio.run(bench.run())
    assert outcome.status == "ok"
    partial = {
        "ended": "max_turns",
        "result": None,
        "state": [0, 1, 2],
        "turns": 3,
        "summaries": [],
    }
    assert outcome.value == partial


def test_max_turns_counts_the_turns_of_every_segment() -> None:
    bench = Bench()
    bench.options = {"max_turns": 4}
    bench.die_at(nth_checkpoint(2), "after")
    outcome = asyncio.run(bench.resume())
    assert isinstance(outcome.value, dict)
    assert (outcome.value["ended"], outcome.value["turns"]) == ("max_turns", 4)
    assert sum(bench.ran.values()) == 4


def test_a_limit_that_was_lowered_since_ends_with_what_there_is() -> None:
    bench = Bench()
    bench.die_at(nth_checkpoint(4), "after")
    bench.options = {"max_turns": 3}
    outcome = asyncio.run(bench.resume())
    assert isinstance(outcome.value, dict)
    assert (outcome.value["ended"], outcome.value["turns"]) == ("max_turns", 4)
    assert outcome.value["state"] == [0, 1, 2, 3]
    assert [bench.ran[n] for n in range(TURNS)] == [1, 1, 1, 1, 0]


def test_a_deadline_ends_with_what_there_is_also_in_a_later_segment() -> None:
    bench = Bench()
    ttl_ms = bench.store.lease_ttl_ms
    bench.options = {"deadline": ttl_ms / 1000 + 1}
    bench.die_at(nth_checkpoint(2), "after")

    def late(state: object, number: int) -> object:
        bench.clock.advance(1_000)
        return bench.count(state, number)

    bench.turn = late
    outcome = asyncio.run(bench.resume())  # a ttl later: one turn's time is left
    assert isinstance(outcome.value, dict)
    assert (outcome.value["ended"], outcome.value["state"]) == ("deadline", [0, 1, 2])
    assert asyncio.run(bench.resume()).value == outcome.value


@pytest.mark.parametrize("options", [{"max_turns": 0}, {"max_turns": 1.5}, {"deadline": -0.001}])
def test_a_limit_that_cannot_be_is_refused_before_anything_is_journalled(
    options: dict[str, object],
) -> None:
    bench = Bench()
    bench.options = options
    outcome = asyncio.run(bench.run())
    assert outcome.error is not None
    assert outcome.error.error_type.endswith("ConfigError")
    assert [e.kind for e in read_journal("r", bench.store.load("r"))] == ["decision", "decision"]


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Continue({"a": [object()]}), r"\$\.state\.a\[0\]"),
        (Done({"a": float("nan")}), r"\$\.result\.a"),
        ({"state": 1}, r"must return Continue\(state\) or Done\(result\)"),
        (None, r"must return Continue\(state\) or Done\(result\)"),
    ],
)
def test_what_a_turn_may_not_return_fails_it_and_names_the_place(answer: object, said: str) -> None:
    bench = Bench()
    bench.turn = lambda _state, _number: answer
    outcome = asyncio.run(bench.run())
    with pytest.raises(StepFailedError, match=said):
        outcome.unwrap()


def test_a_summary_that_cannot_be_kept_names_the_place() -> None:
    bench = Bench()
    bench.options = {
        "compact": Compaction(when=lambda _s, _t: True, make=lambda _s, _t: {"x": {1}})
    }
    with pytest.raises(StepFailedError, match=r"\$\.summary\.x"):
        asyncio.run(bench.run()).unwrap()


def test_an_initial_state_that_cannot_be_kept_is_refused_before_it_begins() -> None:
    bench = Bench()
    bench.initial = {"x": b""}
    outcome = asyncio.run(bench.run())
    assert outcome.error is not None
    assert "$.initial.x" in outcome.error.message
    assert bench.ran == {}
    assert [e.kind for e in read_journal("r", bench.store.load("r"))] == ["decision", "decision"]


def test_a_state_comes_as_the_journal_would_give_it() -> None:
    bench = Bench()
    bench.initial = (1, 2)
    seen: list[object] = []

    def turn(state: object, number: int) -> object:
        seen.append(state)
        return Continue({"t": (number,)}) if number == 0 else Done((3,))

    bench.turn = turn
    outcome = asyncio.run(bench.run())
    assert seen == [[1, 2], {"t": [0]}]
    assert isinstance(outcome.value, dict)
    assert outcome.value["result"] == [3]


def test_a_bad_name_is_refused() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        with pytest.raises(ConfigError):
            await ctx.turns("", bench.count, [])
        return "refused"

    async def main() -> RunOutcome:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return await engine.run(body)

    assert asyncio.run(main()).value == "refused"


def test_loops_side_by_side_keep_their_own_state() -> None:
    bench = Bench()

    def branch(start: int) -> Callable[[Context], Awaitable[object]]:
        async def one(ctx: Context) -> object:
            turns = await ctx.turns("loop", bench.count, [start])
            return turns.result

        return one

    @workflow
    async def body(ctx: Context) -> object:
        return await ctx.parallel("two", [branch(10), branch(20)])

    async def main() -> RunOutcome:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return await engine.run(body, run_id="r")

    outcome = asyncio.run(main())
    assert outcome.value == [{"sum": [10, 0, 1, 2, 3, 4]}, {"sum": [20, 0, 1, 2, 3, 4]}]
    refs = bench.pair.transcripts.list_refs("r")
    assert len([ref for ref in refs if ref.startswith("r/ckpt/")]) == 2


def test_the_events_of_a_loop_number_its_turns() -> None:
    bench = Bench()
    asyncio.run(bench.run())
    told = [(e.kind, e.count, e.detail) for e in bench.events if e.kind.startswith("turn.")]
    expected: list[tuple[str, int, str]] = []
    for number in range(TURNS):
        how = "done" if number == TURNS - 1 else "continue"
        expected += [("turn.started", number, ""), ("turn.finished", number, how)]
    assert told == expected
    assert {e.seq for e in bench.events if e.kind.startswith("turn.")} == {LOOP}
