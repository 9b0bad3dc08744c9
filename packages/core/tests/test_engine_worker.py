"""A worker takes what nobody holds and is worth it, and gives everything back."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import ConfigError, StoreFullError
from rulvar.core.records import JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, WorkerReport, WorkerResult
    from rulvar.core.testing import StoreCall


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = WatchedStores(Stores(self.store, self.store.transcripts()))
        self.ran: Counter[str] = Counter()

        @workflow
        async def job(ctx: Context, name: str) -> str:
            await ctx.await_external("go")
            await ctx.step("work", self.work, name)
            return name

        self.job = job

    def work(self, name: str) -> None:
        self.ran[name] += 1

    def engine(self) -> Engine:
        return Engine(self.stores, [self.job], clock=self.clock, suspend_after=0)

    async def prepare(self, *names: str, resolved: bool = True) -> None:
        async with self.engine() as engine:
            for name in names:
                await engine.run(self.job, name, run_id=name)
                if resolved:
                    await engine.resolve(name, "go")
        self.stores.calls.clear()

    async def until_idle(self, *, concurrency: int = 4) -> WorkerReport:
        async with self.engine() as engine:
            worker = Worker(engine, concurrency=concurrency, poll_interval=0.005)
            return await asyncio.wait_for(worker.run(until_idle=True), 10)

    def acquired(self) -> list[object]:
        return [c.arguments[0] for c in self.stores.calls if c.method == "acquire"]


def test_a_worker_finishes_everything_in_order_within_its_bound() -> None:
    bench = Bench()
    most = 0

    def around(_call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal most
        most = max(most, len([i for i in bench.store.list_leases(None, 99) if i.live]))
        return perform()

    async def main() -> WorkerReport:
        await bench.prepare(*(f"r{i}" for i in range(9)))
        bench.stores.around = around
        return await bench.until_idle(concurrency=3)

    report = asyncio.run(main())
    assert report.outcomes == {"ok": 9}
    assert sorted(map(str, bench.acquired()[:3])) == ["r0", "r1", "r2"]
    assert most == 3
    assert set(bench.ran.values()) == {1}
    assert bench.store.list_leases(None, 1) == []


def test_what_is_not_worth_it_is_passed_over_without_acquiring() -> None:
    bench = Bench()

    async def main() -> WorkerReport:
        await bench.prepare("waiting", resolved=False)
        await bench.prepare("held", "stranger", "newer", "older", "ready")
        bench.store.acquire("held", "somebody")
        for name, change in (
            ("stranger", {"workflow_name": "not mine"}),
            ("newer", {"hash_version_high": 999}),
            ("older", {"hash_version_low": 3}),
        ):
            row = bench.store.get_meta(name)
            assert row is not None
            bench.store.put_meta(replace(row, **change))
        return await bench.until_idle()

    report = asyncio.run(main())
    assert report.outcomes == {"ok": 1}
    assert bench.acquired() == ["ready"]
    assert dict(bench.ran) == {"ready": 1}


def test_a_suspended_run_is_looked_at_when_it_is_due() -> None:
    bench = Bench()

    @workflow
    async def job(ctx: Context, name: str) -> str:
        await ctx.sleep(60)
        return name

    bench.job = job

    async def main() -> list[dict[str, int]]:
        async with bench.engine() as engine:
            await engine.run(job, "r", run_id="r")
        bench.stores.calls.clear()
        early = await bench.until_idle()
        assert bench.acquired() == []
        bench.clock.advance(60_000)
        return [early.outcomes, (await bench.until_idle()).outcomes]

    assert asyncio.run(main()) == [{}, {"ok": 1}]


def test_a_suspended_run_that_has_grown_is_looked_at() -> None:
    """The resolution landed, but not the row that would have said so."""
    bench = Bench()

    async def main() -> WorkerReport:
        await bench.prepare("r", resolved=False)
        row = bench.store.get_meta("r")
        assert row is not None
        async with bench.engine() as engine:
            await engine.resolve("r", "go")
        bench.store.put_meta(row)
        return await bench.until_idle()

    assert asyncio.run(main()).outcomes == {"ok": 1}


def test_a_broken_run_is_set_aside_until_its_row_changes() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.prepare("bad", "good")
        good = bench.store.load("bad")
        bench.store._tables._runs["bad"].records[1:] = [
            JournalRecord(seq=1, payload=b'{"seq":1,"hashVersion":7,"kind":"step"}')
        ]
        before = bench.store.load("bad")
        results: list[WorkerResult] = []
        async with bench.engine() as engine:
            worker = Worker(engine, poll_interval=0.005, on_result=results.append)
            report = await asyncio.wait_for(worker.run(until_idle=True), 10)
            assert report.outcomes == {"ok": 1}
            assert list(report.broken) == ["bad"]
            assert bench.acquired().count("bad") == 1, "once, not at every sweep"
            assert bench.store.load("bad") == before, "nothing was appended"
            assert {r.run_id: r.error is None for r in results} == {"bad": False, "good": True}
            bench.store._tables._runs["bad"].records[:] = good
            row = bench.store.get_meta("bad")
            assert row is not None
            bench.store.put_meta(replace(row, updated_at="2030-01-01T00:00:00.000Z"))
            await asyncio.wait_for(worker.run(until_idle=True), 10)
            assert bench.ran["bad"] == 1

    asyncio.run(main())


class Blocking(Bench):
    """Its step waits until it is told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.end = threading.Event()
        self.next_ran = False

        @workflow
        async def job(ctx: Context, name: str) -> str:
            await ctx.await_external("go")
            await ctx.step("slow", self.slow)
            await ctx.step("next", self.next)
            return name

        self.job = job

    def slow(self) -> str:
        self.began.set()
        self.end.wait(10)
        return "slow"

    def next(self) -> None:
        self.next_ran = True

    async def reached(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.began.wait, 10)


async def drains(worker: Worker) -> None:
    """Return when the run of the worker begins no further call."""
    [handle] = worker._running.values()
    while handle._segment is None or not handle._segment.scheduler.draining:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("grace", [10, 0.01])
def test_a_stop_drains_and_then_lets_go(grace: float) -> None:
    bench = Blocking()

    async def main() -> WorkerReport:
        await bench.prepare("r")
        async with bench.engine() as engine:
            worker = Worker(engine, poll_interval=0.005)
            working = asyncio.create_task(worker.run())
            await bench.reached()
            worker.stop(grace=grace)
            if grace > 1:
                await asyncio.wait_for(drains(worker), 30)
                bench.end.set()
            report = await asyncio.wait_for(working, 5)
            bench.end.set()
            assert bench.store.list_leases(None, 1) == []
            return report

    report = asyncio.run(main())
    assert report.outcomes == {"running": 1}
    assert not bench.next_ran, "the next step is not begun"
    answered = any(b'"slow"' in r.payload and b'"ref"' in r.payload for r in bench.store.load("r"))
    assert answered == (grace > 1), "the step under way is journalled within the grace"
    row = bench.store.get_meta("r")
    assert row is not None
    assert row.status == "running"


def test_a_cancelled_worker_lets_go_too() -> None:
    bench = Blocking()

    async def main() -> None:
        await bench.prepare("r")
        async with bench.engine() as engine:
            working = asyncio.create_task(Worker(engine, poll_interval=0.005).run())
            await bench.reached()
            working.cancel()
            bench.end.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert bench.store.list_leases(None, 1) == []

    asyncio.run(main())


def test_two_workers_never_run_a_step_twice_at_once() -> None:
    bench = Bench()
    live: Counter[str] = Counter()
    twice: list[str] = []

    @workflow
    async def job(ctx: Context, name: str) -> str:
        await ctx.await_external("go")

        def work() -> None:
            live[name] += 1
            if live[name] > 1:
                twice.append(name)
            bench.ran[name] += 1
            live[name] -= 1

        for step in ("a", "b"):
            await ctx.step(step, work)
        return name

    bench.job = job

    async def main() -> list[WorkerReport]:
        await bench.prepare(*(f"r{i}" for i in range(12)))
        return list(
            await asyncio.gather(bench.until_idle(concurrency=4), bench.until_idle(concurrency=4))
        )

    reports = asyncio.run(main())
    assert sum(report.outcomes.get("ok", 0) for report in reports) == 12
    assert twice == []
    assert set(bench.ran.values()) == {2}
    assert sum(report.superseded for report in reports) == 0


def test_a_held_run_does_not_hide_the_others_where_leases_are_not_listed() -> None:
    bench = Bench()
    bench.stores = WatchedStores(
        Stores(bench.store, bench.store.transcripts()),
        without={"get_lease", "list_leases", "seize"},
    )
    asyncio.run(bench.prepare("a", "b"))
    bench.store.acquire("a", "somebody else")
    report = asyncio.run(bench.until_idle(concurrency=1))
    assert (report.held, report.outcomes) == (1, {"ok": 1})
    assert bench.ran == {"b": 1}


def test_a_run_that_met_a_full_disk_is_tried_again_after_a_rest() -> None:
    bench = Bench()
    asyncio.run(bench.prepare("a"))
    full = True

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if full and call.method == "append":
            message = "no room"
            raise StoreFullError(message, run_id="a")
        return perform()

    bench.stores.around = around

    async def main() -> list[dict[str, int]]:
        nonlocal full
        async with bench.engine() as engine:
            worker = Worker(engine, poll_interval=0.005)
            report = await worker.run(until_idle=True)
            seen = [dict(report.outcomes)]
            assert list(report.broken) == ["a"]
            full = False
            seen.append(dict((await worker.run(until_idle=True)).outcomes))
            bench.clock.advance(30_000)
            seen.append(dict((await worker.run(until_idle=True)).outcomes))
            return seen

    assert asyncio.run(asyncio.wait_for(main(), 10)) == [{}, {}, {"ok": 1}]
    assert bench.ran == {"a": 1}


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"poll_interval": 0}])
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Worker(Bench().engine(), **wrong)  # type: ignore[arg-type]
