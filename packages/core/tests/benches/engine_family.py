"""A parent and its children over one store, and a process of theirs that dies at a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Literal

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Workflow
    from rulvar.core.journal import JournalEntry
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall


class ProcessDiedError(BaseException):
    """The process image is gone: nothing that it still tries has any effect."""


class Image:
    """A process that dies at its n-th store call, before or after it has landed."""

    def __init__(self, at: int, when: Literal["before", "after"]) -> None:
        self.dead = False
        self._at = at
        self._when = when

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self.dead or (call.number == self._at and self._when == "before"):
            self.dead = True
            raise ProcessDiedError
        result = perform()
        if call.number == self._at:
            self.dead = True
            raise ProcessDiedError
        return result


class Family:
    """A parent with two children, the second of which waits for an answer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.stores)
        self.ran: Counter[str] = Counter()

        @workflow
        async def counts(ctx: Context, name: str) -> str:
            return await ctx.step("count", self.count, name)

        @workflow
        async def asks(ctx: Context) -> object:
            before = await ctx.step("before", self.count, "before")
            answer = await ctx.await_external("ok")
            return [before, answer, await ctx.step("after", self.count, "after")]

        @workflow
        async def parent(ctx: Context) -> object:
            first = await ctx.step("first", self.count, "first")
            named = await ctx.child("named", counts, "child")
            asked = await ctx.child("asked", asks)
            return [first, named, asked, await ctx.step("last", self.count, "last")]

        self.counts, self.asks, self.parent = counts, asks, parent

    EXPECTED = ("FIRST", "CHILD", ["BEFORE", "yes", "AFTER"], "LAST")

    def count(self, name: str) -> str:
        self.ran[name] += 1
        return name.upper()

    def engine(self, *workflows: Workflow, stores: StorePair | None = None) -> Engine:
        known = workflows or (self.parent,)
        return Engine(stores or self.watched, known, clock=self.clock, suspend_after=0)

    def entries(self, run_id: str) -> list[JournalEntry]:
        return read_journal(run_id, self.store.load(run_id))

    def status(self, run_id: str) -> str | None:
        row = self.store.get_meta(run_id)
        return None if row is None else row.status

    def child(self, name: str, parent: str = "r") -> str:
        """Return the run id of the child that was called by this name."""
        [seq] = [
            e.seq for e in self.entries(parent) if (e.kind, e.key, e.ref) == ("child", name, None)
        ]
        return f"{parent}.{seq}"

    async def until_idle(self, *workflows: Workflow) -> dict[str, int]:
        async with self.engine(*workflows) as engine:
            worker = Worker(engine, poll_interval=0.005)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
        assert report.broken == {}
        return report.outcomes


async def suspended(family: Family) -> str:
    """Run the parent until its second child waits; return that child's run id."""
    async with family.engine() as engine:
        outcome = await engine.run(family.parent, run_id="r")
    assert outcome.status == "suspended"
    return family.child("asked")
