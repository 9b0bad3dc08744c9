"""In an application of its own, too, code that ends the host's loop has died of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rulvar.core import Engine, workflow
from rulvar.core.memory import MemoryStores

if TYPE_CHECKING:
    from rulvar.core import Context

pytestmark = pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")


@workflow
async def stops(_ctx: Context) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(600)


@workflow
async def cancels(_ctx: Context) -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(600)


@workflow
async def waits(ctx: Context) -> None:
    await ctx.step("wait", wait)


async def wait() -> None:
    under_way[0].set()
    await asyncio.sleep(600)


under_way: list[asyncio.Event] = []


@pytest.mark.parametrize("culprit", [stops, cancels], ids=["stops", "cancels"])
def test_it_is_a_death_of_that_run_and_of_no_other(culprit: object) -> None:
    with MemoryStores() as stores:

        async def host() -> None:
            under_way[:] = [asyncio.Event()]
            async with Engine(stores) as engine:
                engine.start(waits, run_id="n")
                await under_way[0].wait()
                await engine.start(culprit, run_id="c").result()  # type: ignore[arg-type]

        with pytest.raises((RuntimeError, asyncio.CancelledError)):
            asyncio.run(host())
        rows = {row.run_id: row for row in stores.journal.list_runs()}
        assert {name: (row.status, row.stopped) for name, row in rows.items()} == {
            "c": ("running", None),
            "n": ("running", 1),
        }
        assert len(stores.journal.load("n")) == 2, "its step was begun, and not given up"


def test_a_host_that_ends_its_own_loop_lets_its_runs_go_in_order() -> None:
    with MemoryStores() as stores:

        async def host() -> None:
            engine = Engine(stores)
            await engine.start(waits, run_id="n").began()

        asyncio.run(host())
        [row] = stores.journal.list_runs()
        assert (row.status, row.stopped) == ("running", 1)
