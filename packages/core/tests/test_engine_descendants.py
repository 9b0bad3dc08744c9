"""What ends a family of runs: cancelled from the top, orphaned, or of another generation."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import ConfigError, LeaseHeldError, StepFailedError, StoreFullError
from rulvar.core.journal import JournalEntry, encode_entry, read_journal
from rulvar.core.records import JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Event, RunOutcome, WorkerReport, Workflow
    from rulvar.core.testing import StoreCall


class Three:
    """A run, its child and its grandchild, which waits for an answer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.stores)
        self.ran: Counter[str] = Counter()

        @workflow
        async def youngest(ctx: Context) -> object:
            await ctx.step("work", self.work)
            return await ctx.await_external("ok")

        @workflow
        async def middle(ctx: Context) -> object:
            return ["middle", await ctx.child("youngest", youngest)]

        @workflow
        async def eldest(ctx: Context) -> object:
            return ["eldest", await ctx.child("middle", middle)]

        self.youngest, self.middle, self.eldest = youngest, middle, eldest

    RUNS = ("r", "r.1", "r.1.1")

    def work(self) -> None:
        self.ran["work"] += 1

    def fail(self) -> None:
        message = "it gives up"
        raise ValueError(message)

    def engine(
        self, *workflows: Workflow, observer: Callable[[Event], None] | None = None
    ) -> Engine:
        known = workflows or (self.eldest,)
        return Engine(self.watched, known, clock=self.clock, suspend_after=0, observer=observer)

    def statuses(self) -> dict[str, str]:
        return {meta.run_id: meta.status for meta in self.store.list_runs()}

    async def suspend(self) -> RunOutcome:
        async with self.engine() as engine:
            outcome = await engine.run(self.eldest, run_id="r")
        assert self.statuses() == dict.fromkeys(self.RUNS, "suspended")
        return outcome

    async def until_idle(self, *workflows: Workflow) -> WorkerReport:
        async with self.engine(*workflows) as engine:
            worker = Worker(engine, poll_interval=0.005)
            return await asyncio.wait_for(worker.run(until_idle=True), 20)

    def settles(self) -> list[str]:
        """Return the runs whose settle as cancelled was appended, in that order."""
        return [
            str(call.run_id)
            for call in self.watched.calls
            if call.method == "append" and b'"runStatus":"cancelled"' in call.payload
        ]

    def assert_all_cancelled(self) -> None:
        assert self.statuses() == dict.fromkeys(self.RUNS, "cancelled")
        assert self.store.list_leases(None, 9) == []
        for run_id in self.RUNS:
            entries = read_journal(run_id, self.store.load(run_id))
            settles = [e for e in entries if b'"run_settle"' in self.payload(run_id, e.seq)]
            assert sum(b"cancelled" in self.payload(run_id, e.seq) for e in settles) == 1

    def payload(self, run_id: str, seq: int) -> bytes:
        [payload] = [r.payload for r in self.store.load(run_id) if r.seq == seq]
        return payload


def test_a_grandchild_wakes_the_whole_line_through_a_worker_that_knows_the_eldest() -> None:
    three = Three()

    async def main() -> None:
        await three.suspend()
        async with three.engine() as engine:
            await engine.resolve("r.1.1", "ok", 7)
        report = await three.until_idle()
        assert (report.outcomes, report.broken) == ({"ok": 1}, {})
        outcome = await three.engine().resume("r")
        assert outcome.value == ["eldest", ["middle", 7]]

    asyncio.run(main())
    assert three.ran == {"work": 1}
    assert set(three.statuses().values()) == {"ok"}


# --- cancellation -----------------------------------------------------------------------------


def test_cancelling_a_suspended_run_cancels_the_youngest_first() -> None:
    three = Three()

    async def main() -> None:
        await three.suspend()
        async with three.engine() as engine:
            outcome = await engine.cancel("r")
        assert outcome is not None
        assert outcome.status == "cancelled"

    asyncio.run(main())
    assert three.settles() == ["r.1.1", "r.1", "r"]
    three.assert_all_cancelled()


def test_cancelling_a_live_run_cancels_the_youngest_first() -> None:
    three = Three()

    async def main() -> None:
        in_step = asyncio.Event()

        async def forever() -> None:
            in_step.set()
            await asyncio.sleep(3600)

        @workflow
        async def busy(ctx: Context) -> None:
            await ctx.step("forever", forever)

        @workflow
        async def between(ctx: Context) -> object:
            return await ctx.child("busy", busy)

        @workflow
        async def above(ctx: Context) -> object:
            return await ctx.child("between", between)

        async with three.engine(above) as engine:
            handle = engine.start(above, run_id="r")
            await in_step.wait()
            assert (await handle.cancel()).status == "cancelled"

    asyncio.run(main())
    assert three.settles() == ["r.1.1", "r.1", "r"]
    three.assert_all_cancelled()


class FailAt:
    """Makes the n-th store call fail, before or after it has landed, and every later one."""

    def __init__(self, at: int, *, landed: bool) -> None:
        self.at = at
        self.landed = landed
        self.calls = 0

    def __call__(self, _call: StoreCall, perform: Callable[[], object]) -> object:
        self.calls += 1
        if self.calls == self.at and self.landed:
            perform()
        if self.calls >= self.at:
            message = "the disk is gone"
            raise StoreFullError(message)
        return perform()


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_a_cancellation_interrupted_at_any_store_call_is_finished_by_a_second(
    landed: bool,
) -> None:
    async def interrupted_at(at: int) -> bool:
        three = Three()
        await three.suspend()
        three.watched.around = fault = FailAt(at, landed=landed)
        async with three.engine() as engine:
            with contextlib.suppress(StoreFullError):
                await engine.cancel("r")
        three.watched.around = lambda _call, perform: perform()
        three.clock.advance(three.store.lease_ttl_ms)
        async with three.engine() as engine:
            outcome = await engine.cancel("r")
        assert outcome is not None
        assert outcome.status == "cancelled"
        # A row that lags behind its journal is a resume's to repair, of parent and child.
        async with three.engine(three.eldest, three.middle, three.youngest) as engine:
            for run_id in Three.RUNS:
                assert (await engine.resume(run_id)).status == "cancelled"
        three.assert_all_cancelled()
        assert three.ran == {"work": 1}
        return fault.calls >= at

    at = 1
    while asyncio.run(interrupted_at(at)):
        at += 1
    assert at > 15


@pytest.mark.slow
def test_a_live_cancellation_interrupted_at_any_store_call_is_finished_by_a_second() -> None:
    async def interrupted_at(at: int) -> bool:
        three = Three()
        in_step = asyncio.Event()

        async def forever() -> None:
            in_step.set()
            await asyncio.sleep(3600)

        @workflow
        async def busy(ctx: Context) -> None:
            await ctx.step("forever", forever)

        @workflow
        async def between(ctx: Context) -> object:
            return await ctx.child("busy", busy)

        @workflow
        async def above(ctx: Context) -> object:
            return await ctx.child("between", between)

        fault = FailAt(at, landed=False)
        async with three.engine(above) as engine:
            handle = engine.start(above, run_id="r")
            await in_step.wait()
            three.watched.around = fault
            failed = False
            try:
                await handle.cancel()
            except Exception:  # noqa: BLE001 - which error is for other tests to say
                failed = True
        three.watched.around = lambda _call, perform: perform()
        three.clock.advance(three.store.lease_ttl_ms)
        async with three.engine(above) as engine:
            outcome = await engine.cancel("r")
            assert outcome is not None
            assert outcome.status == "cancelled"
        async with three.engine(above, between, busy) as engine:
            for run_id in Three.RUNS:
                assert (await engine.resume(run_id)).status == "cancelled"
        three.assert_all_cancelled()
        return failed or fault.calls >= at

    at = 1
    while asyncio.run(interrupted_at(at)):
        at += 1
    assert at > 8


def test_a_cancellation_clears_away_a_child_that_was_dispatched_and_never_began() -> None:
    for crash_before in ("acquire", "put", "put_meta", "append"):
        three = Three()

        def around(
            call: StoreCall, perform: Callable[[], object], crash_before: str = crash_before
        ) -> object:
            if call.run_id == "r.1" and call.method == crash_before:
                message = "no room"
                raise StoreFullError(message)
            return perform()

        async def main(three: Three = three, around: Callable[..., object] = around) -> None:
            async with three.engine() as engine:
                three.watched.around = around
                with pytest.raises(StoreFullError):
                    await engine.run(three.eldest, run_id="r")
                three.watched.around = lambda _call, perform: perform()
                outcome = await engine.cancel("r")
                assert outcome is not None
                assert outcome.status == "cancelled"
            assert three.store.list_run_ids(None, 9) == ["r"]

        asyncio.run(main())


def test_a_cancellation_is_refused_while_another_process_works_on_the_child() -> None:
    three = Three()

    async def main() -> None:
        await three.suspend()
        held = three.store.acquire("r.1", "somebody")
        async with three.engine() as engine:
            with pytest.raises(LeaseHeldError) as refused:
                await engine.cancel("r")
            assert (refused.value.run_id, refused.value.holder) == ("r.1", "somebody")
            assert three.statuses() == dict.fromkeys(Three.RUNS, "suspended")
            three.store.release(held)
            await engine.cancel("r")

    asyncio.run(main())
    three.assert_all_cancelled()


def test_a_cancelled_child_fails_the_call_in_its_parent() -> None:
    three = Three()
    told: list[str | None] = []

    @workflow
    async def above(ctx: Context) -> str:
        try:
            await ctx.child("youngest", three.youngest)
        except StepFailedError as error:
            told.append(error.error_type)
        return "went on"

    async def main() -> None:
        async with three.engine(above) as engine:
            assert (await engine.run(above, run_id="r")).status == "suspended"
            await engine.cancel("r.1")
            assert (await engine.resume("r")).value == "went on"
            again = await engine.resume("r")
            assert (again.value, again.executed) == ("went on", 0)

    asyncio.run(main())
    assert told == ["RunCancelledError"]


# --- orphans ----------------------------------------------------------------------------------


def exhaust(store: ReferenceStore, run_id: str) -> None:
    """Settle a run as one that died too often: over, with its child unfinished."""
    value = {"decisionType": "run_settle", "runStatus": "exhausted", "segment": 1}
    seq = store.load(run_id)[-1].seq + 1
    entry = JournalEntry(seq=seq, kind="decision", status="ok", value=value)
    store.append(run_id, JournalRecord(seq=seq, payload=encode_entry(entry)))
    row = store.get_meta(run_id)
    assert row is not None
    store.put_meta(replace(row, status="exhausted"))


@pytest.mark.parametrize("parent", ["suspended", "over", "gone"])
def test_a_worker_adopts_a_child_only_when_its_parent_is_over_or_gone(parent: str) -> None:
    three = Three()

    @workflow
    async def gives_up(ctx: Context) -> str:
        return str(await ctx.child("youngest", three.youngest))

    async def main() -> None:
        async with three.engine(gives_up) as engine:
            assert (await engine.run(gives_up, run_id="r")).status == "suspended"
            child_id = next(run for run in three.statuses() if run != "r")
            if parent == "over":
                exhaust(three.store, "r")
            elif parent == "gone":
                await engine.delete_run("r")
            await engine.resolve(child_id, "ok", 1)
        report = await three.until_idle(three.youngest)
        if parent == "suspended":
            assert report.outcomes == {}, "it is its parent's to resume, whom nobody here knows"
        else:
            assert report.outcomes == {"ok": 1}
            assert three.statuses()[child_id] == "ok"
        assert report.broken == {}

    asyncio.run(main())


def test_a_parent_that_is_set_aside_is_not_tried_again_for_its_child() -> None:
    three = Three()

    @workflow(name="eldest")
    async def changed(ctx: Context) -> object:
        return await ctx.step("middle", three.work)

    async def main() -> None:
        await three.suspend()
        async with three.engine() as engine:
            await engine.resolve("r.1.1", "ok", 7)
        known = [changed, three.middle, three.youngest]
        three.watched.calls.clear()
        async with Engine(
            three.watched, known, clock=three.clock, on_source_change="refuse"
        ) as engine:
            worker = Worker(engine, poll_interval=0.005)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
        assert list(report.broken) == ["r"]
        assert report.outcomes == {}
        assert [c.run_id for c in three.watched.calls if c.method == "acquire"] == ["r"]

    asyncio.run(main())


# --- generations ------------------------------------------------------------------------------


def test_a_recreated_parent_never_takes_an_older_ones_child_for_its_own() -> None:
    three = Three()

    async def main() -> None:
        await three.suspend()
        async with three.engine() as engine:
            await engine.delete_run("r")
            assert set(three.statuses()) == {"r.1", "r.1.1"}
            with pytest.raises(ConfigError, match="delete it, then resume its parent"):
                await engine.run(three.eldest, run_id="r")
            assert three.statuses()["r"] == "running"
            await engine.delete_run("r.1")
            with pytest.raises(ConfigError, match=r"'r\.1\.1' exists"):
                await engine.resume("r")
            await engine.delete_run("r.1.1")
            outcome = await engine.resume("r")
            assert outcome.status == "suspended"
        assert three.ran == {"work": 2}

    asyncio.run(main())


def test_neither_a_call_nor_a_cancellation_touches_a_run_that_is_no_child() -> None:
    three = Three()

    async def main() -> None:
        async with three.engine(three.eldest, three.middle) as engine:
            stranger = await engine.run(three.middle, run_id="r.1")
            assert stranger.status == "suspended"
            before = three.store.load("r.1")
            with pytest.raises(ConfigError, match="not a child of this run 'r'"):
                await engine.run(three.eldest, run_id="r")
            await engine.cancel("r")
        assert three.statuses() == {"r": "cancelled", "r.1": "suspended", "r.1.1": "suspended"}
        assert three.store.load("r.1") == before

    asyncio.run(main())
