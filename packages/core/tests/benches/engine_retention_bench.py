"""Runs of several kinds over one reference store, to be kept or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.engine import Engine, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from rulvar.core.engine import Context, RetentionPolicy, RetentionReport

DAY_S = 24 * 3600
DAY_MS = DAY_S * 1000


@workflow
async def fine(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


@workflow
async def other(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


@workflow
async def fails(ctx: Context) -> object:
    return await ctx.step("none", lambda: 1 // 0)


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.await_external("ok")


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.stores)

    def engine(self) -> Engine:
        known = [fine, other, fails, waits]
        return Engine(self.watched, known, clock=self.clock, suspend_after=0)

    async def prepare(self) -> None:
        """Leave one run of each kind, a day between one and the next."""
        async with self.engine() as engine:
            for run_id, body in (("a", fine), ("b", fails), ("c", waits), ("d", fine), ("e", fine)):
                await engine.run(body, run_id=run_id)
                self.clock.advance(DAY_MS)
            await engine.run(other, run_id="f")
            self.clock.advance(DAY_MS)
        self.watched.calls.clear()

    async def retain(self, policy: RetentionPolicy, *, dry_run: bool = False) -> RetentionReport:
        async with self.engine() as engine:
            return await engine.apply_retention(policy, dry_run=dry_run)

    def left(self) -> list[str]:
        return list(self.store.list_run_ids(None, 99))
