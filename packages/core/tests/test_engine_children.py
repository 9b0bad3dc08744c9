"""A child is a run of its own: begun by its parent, resumed and cancelled with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    StepFailedError,
    StoreFullError,
    SupersededError,
)
from rulvar.core.journal import read_journal
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Event, RunOutcome, Workflow
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
        return Engine(stores or self.watched, known, clock=self.clock, linger_ms=0)

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
            worker = Worker(engine, poll_interval_ms=5)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
        assert report.broken == {}
        return report.outcomes


async def suspended(family: Family) -> str:
    """Run the parent until its second child waits; return that child's run id."""
    async with family.engine() as engine:
        outcome = await engine.run(family.parent, run_id="r")
    assert outcome.status == "suspended"
    return family.child("asked")


# --- beginning --------------------------------------------------------------------------------


def test_the_dispatch_is_journalled_under_the_parents_lease_before_the_child_exists() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))
    calls = family.watched.calls
    dispatch = next(c for c in calls if c.method == "append" and b'"key":"asked"' in c.payload)
    assert dispatch.run_id == "r"
    assert dispatch.lease is not None
    first = next(c for c in calls if c.run_id == child_id)
    assert (first.method, first.number > dispatch.number) == ("acquire", True)
    changes = [c for c in calls if c.run_id == child_id and c.changes]
    leases = {c.lease for c in changes[1:]}
    assert len(leases) == 1, "every mutation of the child carries the child's own lease"
    assert leases != {dispatch.lease}
    row = family.store.get_meta(child_id)
    assert row is not None
    assert (row.parent_run_id, row.workflow_name, row.status) == ("r", "asks", "suspended")
    assert family.store.list_leases(None, 9) == []


def test_a_parent_whose_id_leaves_no_room_for_its_childrens_is_refused_before_any_io() -> None:
    family = Family()
    told: list[str] = []

    @workflow
    async def long(ctx: Context) -> str:
        before = len(family.watched.calls)
        try:
            await ctx.child("c", family.counts, "x")
        except ConfigError as error:
            told.append(str(error))
        assert len(family.watched.calls) == before
        return "refused"

    async def main() -> None:
        async with family.engine(long) as engine:
            assert (await engine.run(long, run_id="x" * 184)).value == "refused"
            fits = await engine.run(family.parent, run_id="x" * 183)
            assert fits.status == "suspended"

    asyncio.run(main())
    assert len(told) == 1
    assert "shorter run_id" in told[0]


# --- a crash at every call --------------------------------------------------------------------


async def through(family: Family, stores: StorePair) -> RunOutcome:
    """Start the parent, answer its child, and resume until it is over."""
    engine = family.engine(stores=stores)
    try:
        outcome = await engine.run(family.parent, run_id="r")
        while outcome.status not in TERMINAL_STATUSES:
            child_id = family.child("asked")
            if family.status(child_id) == "suspended":
                await engine.resolve(child_id, "ok", "yes")
            outcome = await engine.resume("r")
    finally:
        await engine.aclose()
    return outcome


def crash_at(at: int, when: Literal["before", "after"]) -> bool:
    family = Family()
    image = Image(at, when)
    with contextlib.suppress(ProcessDiedError):
        asyncio.run(through(family, WatchedStores(family.stores, around=image)))
    before = Counter(family.ran)
    runs = list(family.store.snapshot().journals)
    done = {
        str(entry.value).lower()
        for run_id in runs
        for entry in family.entries(run_id)
        if entry.kind == "step" and entry.ref is not None
    }
    family.clock.advance(family.store.lease_ttl_ms)
    outcome = asyncio.run(through(family, family.stores))
    assert outcome.value == list(Family.EXPECTED)
    for name, times in family.ran.items():
        assert times == before[name] if name in done else times <= 2, f"{name}: {times} times"
    assert set(family.ran) == {"first", "child", "before", "after", "last"}
    snapshot = family.store.snapshot()
    assert snapshot.leases == {}
    assert {row.status for row in snapshot.rows.values()} == {"ok"}
    assert set(snapshot.journals) == {"r", family.child("named"), family.child("asked")}
    for run_id in snapshot.journals:
        epochs = [entry.epoch or 0 for entry in family.entries(run_id)]
        assert epochs == sorted(epochs)
    return image.dead


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_parent_that_dies_at_any_store_call_is_resumed_with_its_children(
    when: Literal["before", "after"],
) -> None:
    at = 1
    while crash_at(at, when):
        at += 1
    assert at > 60, "a parent and two children make more calls than that"


# --- superseded -------------------------------------------------------------------------------


def test_a_superseded_parent_lets_its_children_go_at_once() -> None:
    family = Family()
    ended: list[str] = []

    async def main() -> None:
        in_child, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            in_child.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return "never"

        async def quick() -> str:
            return "done"

        work = [slow]

        @workflow
        async def careful(ctx: Context) -> str:
            return await ctx.step("work", work[0])

        @workflow
        async def two(ctx: Context) -> object:
            async def one(branch: Context) -> object:
                return await branch.child("c", careful)

            async def other(branch: Context) -> str:
                await go_on.wait()
                return await branch.step("write", family.count, "write")

            return await ctx.parallel("both", [one, other])

        async with family.engine(two) as engine:
            handle = engine.start(two, run_id="r")
            await in_child.wait()
            child_id = family.child("c")
            held = family.store.get_lease(child_id)
            assert held is not None
            assert held.live
            lease = family.store.seize("r", "successor")
            frozen = family.store.snapshot()
            go_on.set()
            with pytest.raises(SupersededError):
                await handle.result()
            assert ended == ["cancelled"]
            assert family.store.get_lease(child_id) is None, "its lease is given back at once"
        # Nothing was written after the takeover, in neither journal.
        assert family.store.snapshot().journals == frozen.journals
        assert family.store.snapshot().rows == frozen.rows
        assert family.ran["write"] == 0
        family.store.release(lease)
        work[0] = quick
        async with family.engine(two) as successor:
            outcome = await successor.resume("r")
        assert outcome.value == ["done", "WRITE"]
        child = family.store.get_meta(child_id)
        assert child is not None
        assert (child.status, child.segments) == ("ok", 2)

    asyncio.run(main())


def test_a_successor_waits_for_a_child_that_its_predecessor_holds_still() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))
    held = family.store.acquire(child_id, "predecessor")
    refused = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal refused
        if call.method == "acquire" and call.run_id == child_id:
            try:
                return perform()
            except LeaseHeldError:
                refused += 1
                if refused == 2:
                    family.store.release(held)
                raise
        return perform()

    async def main() -> RunOutcome:
        family.watched.around = around
        async with family.engine() as engine:
            return await engine.resume("r")

    assert asyncio.run(main()).status == "suspended"
    assert refused == 2
    assert family.ran["before"] == 1


def test_trouble_with_the_childs_store_ends_the_parents_segment_and_is_no_outcome() -> None:
    family = Family()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append" and call.run_id != "r" and b'"key":"count"' in call.payload:
            message = "no room"
            raise StoreFullError(message)
        return perform()

    async def main() -> None:
        async with family.engine() as engine:
            family.watched.around = around
            with pytest.raises(StoreFullError):
                await engine.run(family.parent, run_id="r")
            assert family.status("r") == "running"
            family.watched.around = lambda _call, perform: perform()
            assert (await engine.resume("r")).status == "suspended"

    asyncio.run(main())
    assert family.store.list_leases(None, 9) == []


# --- suspension -------------------------------------------------------------------------------


def test_a_parent_suspends_with_its_child_until_the_child_wants_to_be_looked_at() -> None:
    family = Family()

    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep(30_000)
        return await ctx.step("woke", family.count, "woke")

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.child("sleeper", sleeps)

    async def main() -> None:
        async with family.engine(waits) as engine:
            outcome = await engine.run(waits, run_id="r")
        row = family.store.get_meta(family.child("sleeper"))
        assert row is not None
        assert (outcome.status, outcome.wake_at) == ("suspended", row.wake_at)
        assert outcome.wake_at is not None
        assert await family.until_idle(waits) == {}, "not before it is due"
        family.clock.advance(30_000)
        # A worker that knows the parent alone is enough: the parent brings its child.
        assert await family.until_idle(waits) == {"ok": 1}
        assert (await family.engine(waits).resume("r")).value == "WOKE"

    asyncio.run(main())


def test_an_answer_to_a_child_wakes_its_suspended_parent_through_a_worker() -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))

    async def main() -> None:
        assert await family.until_idle() == {}
        async with family.engine() as engine:
            await engine.resolve(child_id, "ok", "yes")
        assert await family.until_idle() == {"ok": 1}
        async with family.engine() as engine:
            outcome = await engine.resume("r")
        assert (outcome.value, outcome.executed) == (list(Family.EXPECTED), 0)

    asyncio.run(main())
    assert set(family.ran.values()) == {1}


def test_an_answer_to_a_child_wakes_its_parent_that_another_branch_keeps_alive() -> None:
    family = Family()

    async def main() -> None:
        go_on = asyncio.Event()

        @workflow
        async def both(ctx: Context) -> object:
            async def one(branch: Context) -> object:
                answer = await branch.child("asked", family.asks)
                go_on.set()
                return answer

            async def other(branch: Context) -> str:
                await go_on.wait()
                return await branch.step("other", family.count, "other")

            return await ctx.parallel("both", [one, other])

        asks = asyncio.Event()
        loop = asyncio.get_running_loop()

        def observer(event: Event) -> None:
            if (event.kind, event.name) == ("run.settled", "suspended"):
                loop.call_soon_threadsafe(asks.set)

        known = [both]
        async with Engine(family.stores, known, clock=family.clock, observer=observer) as engine:
            handle = engine.start(both, run_id="r")
            await asks.wait()
            child_id = family.child("asked")
            assert family.status("r") == "running"
            await engine.resolve(child_id, "ok", "yes")
            outcome = await handle.result()
        assert outcome.value == [["BEFORE", "yes", "AFTER"], "OTHER"]
        assert outcome.segment == 1

    asyncio.run(main())


@pytest.mark.parametrize("ends_by", ["cancel", "resume", "delete"])
def test_a_child_that_ended_apart_from_its_suspended_parent_wakes_it(ends_by: str) -> None:
    family = Family()
    child_id = asyncio.run(suspended(family))

    async def main() -> None:
        assert await family.until_idle() == {}, "the worker has seen the suspended parent"
        async with family.engine(family.asks, family.counts) as engine:
            if ends_by == "cancel":
                await engine.cancel(child_id)
            elif ends_by == "delete":
                await engine.delete_run(child_id)
            else:
                await engine.resolve(child_id, "ok", "yes")
                assert (await engine.resume(child_id)).status == "ok"
        status = {"cancel": "error", "resume": "ok", "delete": "suspended"}[ends_by]
        assert await family.until_idle() == {status: 1}

    asyncio.run(main())


# --- outcomes ---------------------------------------------------------------------------------


def test_a_failed_child_fails_the_call_and_is_replayed_as_failed() -> None:
    family = Family()
    healthy = False

    def work() -> str:
        family.ran["work"] += 1
        if not healthy:
            message = "not yet"
            raise ValueError(message)
        return "healed"

    @workflow
    async def fragile(ctx: Context) -> str:
        return await ctx.step("work", work)

    @workflow
    async def caring(ctx: Context) -> object:
        try:
            return await ctx.child("c", fragile)
        except StepFailedError as error:
            await ctx.step("noted", family.count, str(error.error_type))
            raise

    async def main() -> None:
        async with family.engine(caring) as engine:
            first = await engine.run(caring, run_id="r")
            again = await engine.resume("r")
            assert (first.status, again.status, again.executed) == ("error", "error", 0)
            assert first.error == again.error
            assert first.error is not None
            assert "not yet" in first.error.message
            assert family.ran == {"work": 1, "ValueError": 1}
            nonlocal healthy
            healthy = True
            retried = await engine.resume("r", retry_failed=True)
            assert (retried.status, retried.value) == ("ok", "healed")
        openings = [e.seq for e in family.entries("r") if e.kind == "child" and e.ref is None]
        assert [family.status(f"r.{seq}") for seq in openings] == ["error", "ok"]
        assert len(openings) == 2, "the retried call begins a child of its own"

    asyncio.run(main())


def test_a_child_that_was_given_up_under_a_timeout_is_let_go() -> None:
    family = Family()

    async def main() -> None:
        entered = asyncio.Event()

        async def forever() -> None:
            entered.set()
            await asyncio.sleep(3600)

        @workflow
        async def endless(ctx: Context) -> None:
            await ctx.step("forever", forever)

        @workflow
        async def impatient(ctx: Context) -> str:
            task = asyncio.ensure_future(ctx.child("c", endless))
            await entered.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return "gave up"

        async with family.engine(impatient) as engine:
            outcome = await asyncio.wait_for(engine.run(impatient, run_id="r"), 20)
        assert (outcome.status, outcome.value) == ("ok", "gave up")
        child_id = family.child("c")
        assert family.status(child_id) == "running"
        assert family.store.get_lease(child_id) is None

    asyncio.run(main())


def test_a_stop_lets_the_step_of_a_child_end_and_begins_no_other() -> None:
    family = Family()

    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            family.ran["slow"] += 1
            entered.set()
            await go_on.wait()
            return "slow"

        @workflow
        async def steps(ctx: Context) -> object:
            return [await ctx.step("one", slow), await ctx.step("two", family.count, "two")]

        @workflow
        async def above(ctx: Context) -> object:
            return await ctx.child("c", steps)

        async with family.engine(above) as engine:
            handle = engine.start(above, run_id="r")
            await entered.wait()
            handle.drain()
            await asyncio.sleep(0)
            go_on.set()
            outcome = await asyncio.wait_for(handle.result(), 20)
            assert outcome.status == "running"
            assert family.ran == {"slow": 1}
            assert family.store.list_leases(None, 9) == []
            assert (await engine.resume("r")).value == ["slow", "TWO"]
        assert family.ran == {"slow": 1, "two": 1}

    asyncio.run(main())
