"""A crash after any prefix of a journal changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.engine import Engine, workflow
from rulvar.core.journal import read_journal
from rulvar.core.records import RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rulvar.core.engine import Context, Workflow
    from rulvar.core.records import JournalRecord


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
            return await ctx.await_external("never", timeout=0, default=[place])

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
    async with Engine(stores, [body], clock=clock, suspend_after=60) as engine:
        outcome = await (engine.run(body, run_id="r") if begin else engine.resume("r"))
    assert outcome.status == "ok", outcome
    return outcome.value


@pytest.mark.slow
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
        return await ctx.await_external("k", timeout=5, default="before")

    @workflow(name="w")
    async def after(ctx: Context) -> object:
        return await ctx.await_external("k", timeout=9000, default="after")

    async def main(body: Workflow, *, begin: bool) -> object:
        stores = Stores(store, store.transcripts())
        async with Engine(stores, [body], clock=clock, suspend_after=0) as engine:
            outcome = await (engine.run(body, run_id="r") if begin else engine.resume("r"))
        return outcome.value if outcome.status == "ok" else outcome.status

    assert asyncio.run(main(before, begin=True)) == "suspended"
    clock.advance(5_000)
    assert asyncio.run(main(after, begin=False)) == "before"
    assert store.list_runs()[0].status == "ok"
