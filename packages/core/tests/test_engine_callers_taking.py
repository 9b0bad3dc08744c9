"""A run that was lost takes no other: it is asked before it takes one, and once it has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, SegmentEnded, workflow
from rulvar.core.engine.repair import RowRewriter
from rulvar.core.errors import SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rulvar.core.engine import Context, RunHandle
    from rulvar.core.records import JournalRecord, Lease, RunMeta

    Call = Callable[["Engine", "Stores", "RunHandle"], Awaitable[object]]


@workflow
async def short(_ctx: Context) -> int:
    return 1


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.await_external("k", timeout=600)  # it stays live


class Watched(ReferenceStore):
    """Counts what is acquired; loses the run "r" just before or as another one is taken."""

    def __init__(self) -> None:
        super().__init__(lease_ttl_ms=600_000)
        self.acquired: list[str] = []
        self.loses_at: str | None = None
        self.armed = False

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        self.acquired.append(run_id)
        if self.armed and run_id == self.loses_at:
            self.seize("r", "successor")
        return super().acquire(run_id, owner)


async def lost(store: Watched, call: Call) -> BaseException:
    """Make a call from inside the run "r", which is lost; return what it raised."""
    stores = Stores(store, store.transcripts())
    raised: list[BaseException] = []

    async with Engine(stores, suspend_after=1000) as engine:
        await engine.run(short, run_id="done")
        live = engine.start(waits, run_id="live")
        await live.began()

        @workflow
        async def zombie(_ctx: Context) -> None:
            if store.loses_at is None:
                store.seize("r", "successor")
            store.acquired.clear()
            store.armed = True
            try:
                await call(engine, stores, live)
            except BaseException as error:
                raised.append(error)
                raise

        with pytest.raises(SupersededError):
            await engine.run(zombie, run_id="r")
        assert not live.done, "it was left alone"
    [error] = raised
    return error


async def start(engine: Engine, _stores: Stores, _live: RunHandle) -> None:
    await engine.start(short, run_id="new").result()


async def rewrite(_engine: Engine, stores: Stores, _live: RunHandle) -> None:
    def renamed(row: RunMeta | None, _records: Sequence[JournalRecord]) -> RunMeta | None:
        return None if row is None else replace(row, name="mine")

    with RowRewriter(stores) as rows:
        rows.rewrite("done", renamed)


async def cancel(_engine: Engine, _stores: Stores, live: RunHandle) -> None:
    await live.cancel()


@pytest.mark.parametrize("call", [start, rewrite, cancel], ids=lambda call: call.__name__)
def test_a_lost_run_takes_nothing(
    call: Call,
) -> None:
    store = Watched()
    error = asyncio.run(lost(store, call))
    assert isinstance(error, SegmentEnded | asyncio.CancelledError)
    assert store.acquired == []


@pytest.mark.parametrize(("call", "other"), [(start, "new"), (rewrite, "done")])
def test_a_run_that_is_lost_while_it_takes_another_gives_that_back(call: Call, other: str) -> None:
    store = Watched()
    store.loses_at = other
    error = asyncio.run(lost(store, call))
    assert isinstance(error, SegmentEnded | asyncio.CancelledError)
    assert store.acquired == [other]
    lease = store.get_lease(other)
    assert lease is None or not lease.live
    row = store.get_meta(other)
    assert (row is None) if other == "new" else (row is not None and row.name is None)
