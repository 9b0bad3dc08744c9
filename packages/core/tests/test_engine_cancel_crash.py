"""A cancellation dies on its way from the child to its parent: whoever resumes it ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.audit import audit_runs
from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import LeaseHeldError, StepFailedError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall

When = Literal["before", "after"]


class ProcessDiedError(BaseException):
    """The process image is gone: nothing that it still tries has any effect."""


class Line:
    """A parent that survives the failure of its child, and the child, which waits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.ran: Counter[str] = Counter()

        @workflow(name="child")
        async def child(ctx: Context) -> object:
            return await ctx.await_external("never")

        @workflow(name="parent")
        async def parent(ctx: Context) -> object:
            try:
                return await ctx.child("child", child)
            except StepFailedError:
                return await ctx.step("goes on", self._count)

        self.parent, self.child = parent, child

    def _count(self) -> str:
        self.ran["goes on"] += 1
        return "went on"

    def engine(self, stores: StorePair | None = None) -> Engine:
        workflows = [self.parent, self.child]
        return Engine(stores or self.stores, workflows, clock=self.clock, suspend_after=0)

    async def begin(self) -> None:
        async with self.engine() as engine:
            assert (await engine.run(self.parent, run_id="r")).status == "suspended"

    def status(self, run_id: str) -> str:
        row = self.store.get_meta(run_id)
        assert row is not None
        return row.status


class Killer:
    """Lets a process die at its n-th store call."""

    def __init__(self, at: int, when: When) -> None:
        self.at = at
        self.when = when
        self.dead = False

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self.dead or (call.number == self.at and self.when == "before"):
            self.dead = True
            raise ProcessDiedError
        result = perform()
        if call.number == self.at:
            self.dead = True
            raise ProcessDiedError
        return result


async def cancel_and_die(line: Line, killer: Killer) -> None:
    engine = line.engine(WatchedStores(line.stores, around=killer))
    try:
        await engine.cancel("r")
    except ProcessDiedError:
        assert killer.dead
    line.clock.advance(line.store.lease_ttl_ms)


def all_or_nothing(line: Line, outcome: RunOutcome, *, at: int, when: When) -> None:
    """Judge what became of the run: nothing has happened, or all of it."""
    where = f"{when} call {at}"
    assert line.ran == {}, f"{where}: a run that is being cancelled went on"
    child = line.status("r.1")
    if outcome.status == "suspended":
        assert (line.status("r"), child) == ("suspended", "suspended"), where
    else:
        assert (outcome.status, line.status("r"), child) == ("cancelled",) * 3, where
    assert {audit.verdict for audit in audit_runs(line.stores)} == {"consistent"}, where
    assert line.store.list_leases(None, 9) == [], where


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_resume_after_a_death_finds_it_cancelled_or_untouched(when: When) -> None:
    seen = set()

    async def one(at: int) -> bool:
        line, killer = Line(), Killer(at, when)
        await line.begin()
        await cancel_and_die(line, killer)
        async with line.engine() as engine:
            outcome = await engine.resume("r")
        all_or_nothing(line, outcome, at=at, when=when)
        seen.add(outcome.status)
        return killer.dead

    at = 1
    while asyncio.run(one(at)):
        at += 1
    assert at > 10
    assert seen == {"suspended", "cancelled"}


def test_a_live_cancellation_that_dies_is_finished_or_was_never_begun() -> None:
    seen = set()

    async def one(at: int) -> bool:
        line, killer = Line(), Killer(at, "after")
        in_step = asyncio.Event()
        patient = True

        async def work() -> str:
            in_step.set()
            await asyncio.sleep(3600 if patient else 0)
            return "worked"

        @workflow(name="child")
        async def child(ctx: Context) -> object:
            return await ctx.step("work", work)

        @workflow(name="parent")
        async def parent(ctx: Context) -> object:
            try:
                return await ctx.child("child", child)
            except StepFailedError:
                return "went on"

        line.parent, line.child = parent, child
        watched = WatchedStores(line.stores)
        handle = line.engine(watched).start(parent, run_id="r")
        await in_step.wait()
        killer.at += len(watched.calls)
        watched.around = killer
        with contextlib.suppress(ProcessDiedError):
            await handle.cancel()
        line.clock.advance(line.store.lease_ttl_ms)
        patient = False
        async with line.engine() as engine:
            outcome = await engine.resume("r")
        statuses = (outcome.status, line.status("r"), line.status("r.1"))
        assert statuses == (outcome.status,) * 3, f"after call {at}"
        assert outcome.value in {"worked", None}, f"after call {at}"
        seen.add(outcome.status)
        return killer.dead

    at = 1
    while asyncio.run(one(at)):
        at += 1
    assert at > 5
    assert seen == {"ok", "cancelled"}


def test_a_worker_finishes_what_a_dead_cancellation_began() -> None:
    async def main() -> None:
        line = Line()
        await line.begin()

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            if call.method == "append" and call.run_id == "r" and b"run_settle" in call.payload:
                raise ProcessDiedError
            return perform()

        with pytest.raises(ProcessDiedError):
            await line.engine(WatchedStores(line.stores, around=around)).cancel("r")
        line.clock.advance(line.store.lease_ttl_ms)
        assert (line.status("r"), line.status("r.1")) == ("suspended", "cancelled")
        async with line.engine() as engine:
            report = await Worker(engine).run(until_idle=True)
        assert report.outcomes == {"cancelled": 1}
        assert (line.status("r"), line.ran) == ("cancelled", {})

    asyncio.run(main())


def test_a_child_that_somebody_holds_leaves_its_parent_as_it_was() -> None:
    async def main() -> None:
        line = Line()
        await line.begin()
        lease = line.store.acquire("r.1", "somebody")
        before = line.store.load("r")
        async with line.engine() as engine:
            with pytest.raises(LeaseHeldError):
                await engine.cancel("r")
        assert line.store.load("r") == before
        line.store.release(lease)
        async with line.engine() as engine:
            assert (await engine.resume("r")).status == "suspended"

    asyncio.run(main())
