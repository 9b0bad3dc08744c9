"""A damaged journal blocks its run: workers pass it over until it is mended and resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import StoreCorruptError
from rulvar.core.records import JournalRecord

if TYPE_CHECKING:
    from rulvar.core.engine import Context, Workflow


@workflow(name="w")
async def waits(ctx: Context) -> object:
    return await ctx.await_external("go")


def test_workers_hit_a_damaged_journal_once_and_a_resume_clears_it() -> None:
    bench = ReplayBench()
    assert bench.life(waits.body).status == "suspended"
    sound = bench.store.load("r")
    seq = len(sound)
    bench.store.append("r", JournalRecord(seq=seq, payload=b'{"seq":%d,"kind":7}' % seq))

    async def work() -> tuple[dict[str, str], dict[str, str]]:
        async with Engine(bench.stores(), [waits], clock=bench.clock) as engine:
            report = await Worker(engine).run(until_idle=True)
            return dict(report.blocked), dict(report.broken)

    blocked, broken = asyncio.run(work())
    assert list(blocked) == ["r"]
    assert not broken
    row = bench.store.get_meta("r")
    assert row is not None
    assert row.status == "suspended"
    assert row.blocked is not None
    assert asyncio.run(work()) == ({}, {}), "another process of the same code leaves it alone"

    async def resume() -> str:
        async with Engine(bench.stores(), [waits], clock=bench.clock) as engine:
            return (await engine.resume("r")).status

    with pytest.raises(StoreCorruptError):
        asyncio.run(resume())
    bench.store.delete("r")
    for record in sound:
        bench.store.append("r", record)
    bench.store.put_meta(row)
    assert asyncio.run(resume()) == "suspended"
    after = bench.store.get_meta("r")
    assert after is not None
    assert after.blocked is None


@workflow
async def parent(ctx: Context) -> object:
    return await ctx.child("c", waits)


def test_a_damaged_child_blocks_its_parent() -> None:
    """The parent cannot go on without it, and its own body is not asked."""
    bench = ReplayBench()

    async def family() -> tuple[str, list[str]]:
        async with Engine(bench.stores(), [parent, waits], clock=bench.clock) as engine:
            if bench.store.get_meta("r") is None:
                return (await engine.run(parent, run_id="r")).status, []
            report = await Worker(engine).run(until_idle=True)
            return "", [*report.blocked, *report.broken]

    assert asyncio.run(family()) == ("suspended", [])
    [child_id] = [row.run_id for row in bench.store.list_runs() if row.run_id != "r"]
    row, seq = bench.store.get_meta(child_id), len(bench.store.load(child_id))
    assert row is not None
    damage = JournalRecord(seq=seq, payload=b'{"seq":%d,"kind":7}' % seq)
    bench.store.append(child_id, damage)
    bench.store.put_meta(replace(row, wake_at=row.updated_at))
    assert asyncio.run(family()) == ("", ["r"])
    assert asyncio.run(family()) == ("", []), "another process of the same code leaves it alone"
    found = bench.store.get_meta("r")
    assert found is not None
    assert found.status == "suspended"
    assert found.blocked is not None
    assert repr(child_id) in found.blocked.reason


@workflow(name="parent")
async def parent_of_new(ctx: Context) -> object:
    return await ctx.child("c", newer)


@workflow(name="w", version="2")
async def newer(ctx: Context) -> object:
    return await ctx.await_external("go")


@workflow(name="parent")
async def parent_of_other(ctx: Context) -> object:
    return await ctx.child("c", other)


@workflow(name="w")
async def other(ctx: Context) -> object:
    return await ctx.step("pay", lambda: "paid")


@pytest.mark.parametrize(
    ("deployed", "child", "why"),
    [(parent_of_new, newer, "is of version"), (parent_of_other, other, "'pay'")],
    ids=["another version", "another way"],
)
def test_a_child_that_the_code_cannot_continue_blocks_its_parent_and_is_named(
    deployed: Workflow, child: Workflow, why: str
) -> None:
    """Workers of that code leave the parent alone; a rollback continues with both."""
    bench = ReplayBench()

    async def begin() -> str:
        async with Engine(bench.stores(), [parent, waits], clock=bench.clock) as engine:
            return (await engine.run(parent, run_id="r")).status

    async def work(*code: Workflow) -> tuple[list[str], list[str], dict[str, int]]:
        async with Engine(bench.stores(), code, clock=bench.clock) as engine:
            report = await Worker(engine).run(until_idle=True)
            return list(report.blocked), list(report.broken), report.outcomes

    assert asyncio.run(begin()) == "suspended"
    [child_id] = [row.run_id for row in bench.store.list_runs() if row.run_id != "r"]
    row = bench.store.get_meta(child_id)
    assert row is not None
    bench.store.put_meta(replace(row, wake_at=row.updated_at))
    assert asyncio.run(work(deployed, child)) == (["r"], [], {})
    assert asyncio.run(work(deployed, child)) == ([], [], {}), "this code leaves it alone"
    found = bench.store.get_meta("r")
    assert found is not None
    assert found.status == "suspended"
    assert found.blocked is not None
    assert f"child 'c' (run {child_id!r})" in found.blocked.reason
    assert why in found.blocked.reason
    assert asyncio.run(work(parent, waits)) == ([], [], {"suspended": 1})
