"""An engine that is called from a run that was lost touches no other run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, RetentionPolicy, SegmentEnded, workflow
from rulvar.core.errors import SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context


@workflow
async def other(ctx: Context) -> object:
    return await ctx.await_external("k", timeout=600)  # lingers: it stays live


@workflow
async def failing(_ctx: Context) -> None:
    raise ValueError


@workflow
async def short(_ctx: Context) -> int:
    return 1


async def started(engine: Engine) -> None:
    await engine.start(short, run_id="new").result()


CALLS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "run": lambda engine: engine.run(short, run_id="new"),
    "start": started,
    "resume": lambda engine: engine.resume("waiting"),
    "cancel": lambda engine: engine.cancel("waiting"),
    "cancel live": lambda engine: engine.cancel("live"),
    "resolve": lambda engine: engine.resolve("waiting", "k", 1),
    "resolve live": lambda engine: engine.resolve("live", "k", 1),
    "delete": lambda engine: engine.delete_run("done"),
    "prune": lambda engine: engine.prune_run("done"),
    "retry": lambda engine: engine.retry("failed"),
    "retain": lambda engine: engine.apply_retention(RetentionPolicy(older_than=0)),
}


@pytest.mark.parametrize("from_a_thread", [False, True], ids=["body", "step thread"])
@pytest.mark.parametrize("borrowed", [False, True], ids=["own lease", "callers lease"])
@pytest.mark.parametrize("name", CALLS)
def test_a_lost_run_touches_no_other(name: str, borrowed: bool, from_a_thread: bool) -> None:
    """Superseded, and the engine has not noticed: only the store knows."""
    store = ReferenceStore(lease_ttl_ms=600_000)
    stores = Stores(store, store.transcripts())
    told: list[type[BaseException] | None] = []
    before: list[object] = []
    engine: Engine

    def lose() -> None:
        store.seize("r", "successor")
        before.append(state(store))

    @workflow
    async def zombie(ctx: Context) -> None:
        async def call() -> None:
            lose()
            try:
                await CALLS[name](engine)
            except BaseException as error:
                told.append(type(error))
                raise
            told.append(None)

        if from_a_thread:
            await ctx.step("s", lambda: asyncio.run(call()))
        else:
            await call()

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [failing, other, short, zombie], suspend_after=1000) as engine:
            await engine.run(short, run_id="done")
            await engine.run(failing, run_id="failed")
            waiting = engine.start(other, run_id="waiting")
            await waiting.began()
            waiting.detach()
            await waiting.wait()
            live = engine.start(other, run_id="live")
            await live.began()
            while len(store.load("live")) < 2:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
            lease = store.acquire("r", "caller") if borrowed else None
            with pytest.raises(SupersededError):
                await engine.run(zombie, run_id="r", lease=lease)
            while not told:  # noqa: ASYNC110 - told from a thread
                await asyncio.sleep(0.001)
            assert state(store) == before[0]

    if from_a_thread and name in {"start", "run", "resume", "retry"}:
        with contextlib.suppress(SegmentEnded):
            asyncio.run(main())
    else:
        asyncio.run(main())
    # The end of the segment cancels its body: whichever of the two comes to it first.
    [refusal] = told
    assert refusal in {SegmentEnded, asyncio.CancelledError}


def state(store: ReferenceStore) -> list[object]:
    found: list[object] = []
    for run in ("new", "waiting", "done", "failed", "live"):
        lease = store.get_lease(run)
        held = None if lease is None else (lease.owner, lease.epoch, lease.live)
        found.append((store.load(run), store.get_meta(run), held))
    return found
