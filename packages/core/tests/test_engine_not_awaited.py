"""A word for a key that a run does not wait for is refused with the keys that it waits for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import InvalidResolutionError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.engine import Context


async def ask_each(ctx: Context, keys: list[str]) -> None:
    async def ask(branch: Context, key: str) -> None:
        await branch.await_external(key)

    await ctx.parallel("asking", [partial(ask, key=key) for key in keys])


async def refusal(engine: Engine, run_id: str) -> str:
    with pytest.raises(InvalidResolutionError) as caught:
        await engine.resolve(run_id, "aproval", 1)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["approval"], "'approval'"),
        (["payment", "approval"], "'payment', 'approval': did you mean 'approval'?"),
        (["a", "b", "c", "d", "e", "f", "g"], "'a', 'b', 'c', 'd', 'e' and 2 more"),
        ([], "nothing that could be resolved"),
    ],
)
def test_a_key_that_is_not_awaited_is_answered_with_those_that_are(
    keys: list[str], told: str
) -> None:
    store = ReferenceStore()
    pair = Stores(store, store.transcripts())

    async def wait(branch: Context) -> None:
        await ask_each(branch, keys)

    async def sleep(branch: Context) -> None:
        await branch.sleep(3600)

    @workflow
    async def asks_and_sleeps(ctx: Context) -> None:
        await ctx.parallel("both", [wait, sleep])

    async def main() -> None:
        async with Engine(pair, [asks_and_sleeps]) as engine:
            await engine.run(asks_and_sleeps, run_id="r")
            assert (
                await refusal(engine, "r") == f"run 'r' does not wait for 'aproval', but for {told}"
            )

    asyncio.run(main())


def test_a_live_run_says_too_what_it_waits_for() -> None:
    store = ReferenceStore()
    pair = Stores(store, store.transcripts())
    over = asyncio.Event()

    @workflow
    async def works(ctx: Context) -> None:
        async def ask(branch: Context) -> None:
            await branch.await_external("approval")
            over.set()

        async def work(branch: Context) -> None:
            await branch.step("work", over.wait)

        await ctx.parallel("both", [ask, work])

    async def main() -> None:
        async with Engine(pair, [works]) as engine:
            live = engine.start(works, run_id="r")
            async for event in live.events():
                if event.kind == "step.started":
                    break
            assert (await refusal(engine, "r")).endswith("but for 'approval'")
            await live.resolve("approval", 1)
            assert (await live.result()).status == "ok"

    asyncio.run(main())
