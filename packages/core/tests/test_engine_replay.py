"""The replay kernel decides from the journal alone; a crash after any prefix changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.replay import Answered, Dangling, Fresh, Replay, Waiting
from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal import JournalEntry, read_journal
from rulvar.core.records import RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rulvar.core.engine import Context, Workflow
    from rulvar.core.records import JournalRecord


def opened(seq: int, kind: str, key: str, ordinal: int = 0, scope: str = "") -> JournalEntry:
    return JournalEntry(seq=seq, kind=kind, status="running", scope=scope, key=key, ordinal=ordinal)


def answered(seq: int, ref: int, value: object, status: str = "ok") -> JournalEntry:
    return JournalEntry(seq=seq, kind="step", status=status, ref=ref, value=value)


# --- the kernel ---------------------------------------------------------------------------------


def test_a_call_is_fresh_dangling_or_answered_by_what_the_journal_has() -> None:
    replay = Replay.of([opened(1, "step", "a"), opened(2, "step", "b"), answered(3, 1, "A")])
    first = replay.next("step", "", "a")
    second = replay.next("step", "", "b")
    third = replay.next("step", "", "c")
    assert isinstance(first, Answered)
    assert first.answer.value == "A"
    assert isinstance(second, Dangling)
    assert second.opening.seq == 2
    assert isinstance(third, Fresh)


@pytest.mark.parametrize("kind", ["external", "timer"])
def test_a_suspension_without_an_answer_is_waited_for(kind: str) -> None:
    replay = Replay.of([opened(1, kind, "k")])
    assert isinstance(replay.next(kind, "", "k"), Waiting)
    assert [entry.seq for entry in replay.waiting()] == [1]


def test_ordinals_count_one_key_in_one_scope() -> None:
    replay = Replay()
    made = [
        replay.next("step", scope, key)
        for scope, key in [("", "a"), ("", "a"), ("", "b"), ("/p#0[0]", "a")]
    ]
    assert [decision.call.ordinal for decision in made] == [0, 1, 0, 0]


def test_a_call_of_another_kind_is_no_replay() -> None:
    replay = Replay.of([opened(1, "step", "a")])
    with pytest.raises(NonDeterminismError) as caught:
        replay.next("external", "", "a")
    assert (caught.value.scope, caught.value.key, caught.value.ordinal) == ("", "a", 0)


def test_the_first_answer_wins() -> None:
    replay = Replay.of([opened(1, "external", "k")])
    assert replay.landed(answered(2, 1, "first"))
    assert not replay.landed(answered(3, 1, "second"))
    decision = replay.next("external", "", "k")
    assert isinstance(decision, Answered)
    assert decision.answer.value == "first"


def test_an_answer_to_nothing_is_no_answer() -> None:
    assert not Replay.of([opened(1, "step", "a")]).landed(answered(2, 77, "?"))


def test_what_was_drawn_is_its_own_answer() -> None:
    replay = Replay.of([JournalEntry(seq=1, kind="rand", status="ok", key="$random", value=0.5)])
    decision = replay.next("rand", "", "$random")
    assert isinstance(decision, Answered)
    assert decision.answer.value == 0.5


def test_a_failed_call_of_an_earlier_segment_is_made_again_when_asked() -> None:
    journal = [opened(1, "step", "a"), answered(2, 1, None, status="error")]
    assert isinstance(Replay.of(journal).next("step", "", "a"), Answered)
    replay = Replay.of(journal, retry_failed=True)
    assert isinstance(replay.next("step", "", "a"), Fresh)


def test_a_call_that_fails_in_this_segment_is_not_made_again() -> None:
    replay = Replay.of([opened(1, "step", "a")], retry_failed=True)
    replay.landed(opened(2, "step", "b"))
    replay.landed(answered(3, 2, None, status="error"))
    assert isinstance(replay.next("step", "", "b"), Answered)


def test_the_later_opening_of_a_retried_call_counts() -> None:
    journal = [
        opened(1, "step", "a"),
        answered(2, 1, None, status="error"),
        opened(3, "step", "a"),
        answered(4, 3, "A"),
    ]
    decision = Replay.of(journal, retry_failed=True).next("step", "", "a")
    assert isinstance(decision, Answered)
    assert decision.answer.value == "A"


def test_kinds_from_another_version_are_passed_over() -> None:
    replay = Replay.of(
        [
            JournalEntry(seq=1, kind="hologram", status="odd", key="a"),
            JournalEntry(seq=2, kind="hologram", status="odd", ref=1, value=3),
            opened(3, "step", "a"),
        ]
    )
    decision = replay.next("step", "", "a")
    assert isinstance(decision, Dangling)
    assert decision.opening.seq == 3


# --- a crash after any prefix -------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    kind: str
    branches: tuple[tuple[Op, ...], ...] = ()
    limit: int | None = None


leaves = st.sampled_from(["step", "thread", "rand", "now", "sleep", "external"]).map(Op)
sequences = st.recursive(
    st.lists(leaves, max_size=4).map(tuple),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.builds(
                Op,
                st.just("parallel"),
                st.lists(inner, max_size=3).map(tuple),
                st.sampled_from([None, 1, 2]),
            ),
        ),
        max_size=4,
    ).map(tuple),
    max_leaves=8,
)


class Interpreter:
    """Performs a random sequence of calls, and counts what it really does."""

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self.ops = ops
        self.executed: Counter[str] = Counter()
        self.drawn: dict[str, float] = {}

    def workflow(self) -> Workflow:
        @workflow(name="random")
        async def body(ctx: Context) -> object:
            return await self.perform(ctx, self.ops, "")

        return body

    async def perform(self, ctx: Context, ops: tuple[Op, ...], where: str) -> list[object]:
        results: list[object] = []
        for index, op in enumerate(ops):
            results.append(await self.one(ctx, op, f"{where}.{index}"))
        return results

    async def one(self, ctx: Context, op: Op, place: str) -> object:  # noqa: PLR0911 - one return a kind
        def work(at: str) -> str:
            self.executed[at] += 1
            return at

        async def async_work(at: str) -> str:
            return work(at)

        if op.kind == "step":
            return await ctx.step("work", async_work, place)
        if op.kind == "thread":
            return await ctx.step("work", work, place)
        if op.kind == "rand":
            self.drawn[place] = await ctx.random()
            return "drawn"
        if op.kind == "now":
            return (await ctx.now()).isoformat()
        if op.kind == "sleep":
            await ctx.sleep(0)
            return "slept"
        if op.kind == "external":
            return await ctx.await_external("never", timeout_ms=0, default=[place])

        def branch(inner: tuple[Op, ...], at: str) -> Callable[[Context], Awaitable[object]]:
            return lambda context: self.perform(context, inner, at)

        made = [branch(inner, f"{place}/{i}") for i, inner in enumerate(op.branches)]
        return await ctx.parallel("all", made, limit=op.limit)


def places_in(records: Sequence[JournalRecord]) -> tuple[set[str], set[str]]:
    """Return the steps that a journal answers, and those that it leaves dangling."""
    entries = read_journal("r", records)
    begun = {e.seq for e in entries if e.kind == "step" and e.ref is None}
    done = {e.ref: e.value for e in entries if e.kind == "step" and e.ref is not None}
    dangling = {str(seq) for seq in begun - done.keys()}
    return {str(value) for value in done.values()}, dangling


async def go(store: ReferenceStore, clock: ManualClock, body: Workflow, *, begin: bool) -> object:
    stores = Stores(store, store.transcripts())
    async with Engine(stores, [body], clock=clock, linger_ms=60_000) as engine:
        outcome = await (engine.run(body, run_id="r") if begin else engine.resume("r"))
    assert outcome.status == "ok", outcome
    return outcome.value


@settings(max_examples=40, deadline=None)
@given(sequences, st.data())
def test_a_run_crashed_after_any_prefix_of_its_journal_ends_the_same(
    ops: tuple[Op, ...], data: st.DataObject
) -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    first = Interpreter(ops)
    result = asyncio.run(go(store, clock, first.workflow(), begin=True))
    records = store.load("r")
    assert set(first.executed.values()) <= {1}

    cut = data.draw(st.integers(1, len(records)), label="records that survive")
    later = ReferenceStore(clock=clock)
    row = store.get_meta("r")
    assert row is not None
    later.put_meta(RunMeta(run_id="r", status="running", updated_at=row.updated_at))
    for record in records[:cut]:
        later.append("r", record)
    second = Interpreter(ops)
    again = asyncio.run(go(later, clock, second.workflow(), begin=False))

    completed, dangling = places_in(records[:cut])
    assert again == result
    assert not completed & second.executed.keys(), "a completed step ran again"
    assert set(second.executed.values()) <= {1}
    assert len(second.executed) == len(first.executed) - len(completed)
    assert len(dangling) <= len(second.executed)
    if cut < len(records):  # a settled run executes nothing, and draws nothing
        kept = {e.value for e in read_journal("r", records[:cut]) if e.key == "$random"}
        assert kept <= set(second.drawn.values())
    assert later.list_leases(None, 10) == []


def test_the_default_of_a_deadline_is_the_journalled_one() -> None:
    """What a later version of the body says does not change what was promised."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)

    @workflow(name="w")
    async def before(ctx: Context) -> object:
        return await ctx.await_external("k", timeout_ms=5_000, default="before")

    @workflow(name="w")
    async def after(ctx: Context) -> object:
        return await ctx.await_external("k", timeout_ms=9_000_000, default="after")

    async def main(body: Workflow, *, begin: bool) -> object:
        stores = Stores(store, store.transcripts())
        async with Engine(stores, [body], clock=clock, linger_ms=0) as engine:
            outcome = await (engine.run(body, run_id="r") if begin else engine.resume("r"))
        return outcome.value if outcome.status == "ok" else outcome.status

    assert asyncio.run(main(before, begin=True)) == "suspended"
    clock.advance(5_000)
    assert asyncio.run(main(after, begin=False)) == "before"
    assert store.list_runs()[0].status == "ok"
