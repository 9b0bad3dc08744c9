"""A child whose parent has not ended goes on in that parent's segment alone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.admin.run_admin import reopen_run, would_reopen
from rulvar.core.errors import ConfigError, RulvarError
from rulvar.core.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context


@workflow
async def asks(ctx: Context) -> object:
    return await ctx.await_external("ok")


@workflow
async def fails(_ctx: Context) -> object:
    message = "not well"
    raise ValueError(message)


@workflow
async def middle(ctx: Context) -> object:
    return await ctx.child("c", asks)


@workflow
async def eldest(ctx: Context) -> object:
    return await ctx.child("m", middle)


@workflow
async def survives(ctx: Context) -> object:
    with contextlib.suppress(RulvarError):
        await ctx.child("c", fails)
    return await ctx.await_external("ok")


class Bench(ReplayBench):
    def engine(self) -> Engine:
        return Engine(self.stores(), [asks, fails, middle, eldest, survives], clock=self.clock)

    def rows(self) -> list[str]:
        return [row.run_id for row in self.store.list_runs()]

    def state(self) -> list[object]:
        rows = self.store.list_runs()
        return [(row, self.store.load(row.run_id)) for row in rows]


CALLS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "resume": lambda engine, run_id: engine.resume(run_id),
    "retry": lambda engine, run_id: engine.retry(run_id),
    "run": lambda engine, run_id: engine.run(asks, run_id=run_id),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_grandchild_is_refused_and_the_eldest_is_named(name: str) -> None:
    bench = Bench()

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(eldest, run_id="r")).status == "suspended"
            before = bench.state()
            [_, middle_id, child_id] = sorted(bench.rows(), key=len)
            with pytest.raises(ConfigError, match="resume 'r', its eldest ancestor"):
                await CALLS[name](engine, child_id)
            with pytest.raises(ConfigError, match="resume 'r', its eldest ancestor"):
                await engine.resume(middle_id)
            assert bench.state() == before
            await engine.resolve(child_id, "ok", 7)
            assert (await engine.resume("r")).value == 7

    asyncio.run(main())


def test_a_failed_child_is_retried_by_nobody_but_its_parent_until_that_one_has_ended() -> None:
    bench = Bench()

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(survives, run_id="r")).status == "suspended"
            [child_id] = [each for each in bench.rows() if each != "r"]
            before = bench.state()
            for refused in (
                lambda: engine.retry(child_id),
                lambda: reopen_run(engine.runtime, child_id),
                lambda: would_reopen(engine.runtime, child_id),
            ):
                with pytest.raises(ConfigError, match="'r', its eldest ancestor"):
                    await refused()
            assert bench.state() == before
            assert (await engine.resume(child_id)).status == "error", "it is over: only told"
            await engine.cancel("r")
            assert await would_reopen(engine.runtime, child_id) == (True, "error")
            assert await reopen_run(engine.runtime, child_id) is None

    asyncio.run(main())


def test_an_orphan_goes_on_by_itself() -> None:
    """Its parent is gone, or another run has its id by now."""
    bench = Bench()

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(middle, run_id="r")).status == "suspended"
            [child_id] = [each for each in bench.rows() if each != "r"]
            await engine.delete_run("r")
            assert (await engine.resume(child_id)).status == "suspended"
            assert (await engine.run(asks, run_id="r")).status == "suspended"
            assert (await engine.resume(child_id)).status == "suspended"

    asyncio.run(main())


def test_of_a_parent_with_a_damaged_journal_the_row_tells() -> None:
    bench = Bench()

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(middle, run_id="r")).status == "suspended"
            [child_id] = [each for each in bench.rows() if each != "r"]
            seq = len(bench.store.load("r"))
            bench.store.append("r", JournalRecord(seq=seq, payload=b'{"seq":%d,"kind":7}' % seq))
            with pytest.raises(ConfigError, match="'r', its eldest ancestor"):
                await engine.resume(child_id)

    asyncio.run(main())
