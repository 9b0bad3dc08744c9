"""A row that was not written after its journal is mended by the next worker that sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from replay_bench import ReplayBench

from rulvar.core.engine import Engine, Worker, workflow

if TYPE_CHECKING:
    from rulvar.core.engine import Context


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.await_external("go")


def test_a_cancelled_run_whose_row_says_suspended() -> None:
    """As a kill between the settle and the row leaves it; nothing of the body is executed."""
    bench = ReplayBench()

    async def main() -> None:
        async with Engine(bench.stores(), [waits], clock=bench.clock) as engine:
            assert (await engine.run(waits, run_id="r")).status == "suspended"
            row = bench.store.get_meta("r")
            assert row is not None
            await engine.cancel("r")
            bench.store.put_meta(row)
            journalled = bench.store.load("r")
            report = await Worker(engine).run(until_idle=True)
            assert report.outcomes == {"cancelled": 1}
            mended = bench.store.get_meta("r")
            assert mended is not None
            assert mended.status == "cancelled"
            assert bench.store.load("r") == journalled

    asyncio.run(main())
