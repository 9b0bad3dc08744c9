"""What a worker takes, in which order, and what it leaves for last, or to others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.engine.admin.sweep import Candidate, Sweeper, choose
from rulvar.core.engine.code.workflow import code_of
from rulvar.core.engine.io.reads import Reads
from rulvar.core.errors import ConfigError
from rulvar.core.journal import JournalEntry, encode_entry
from rulvar.core.records import Blocked, JournalRecord, RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Workflow
    from rulvar.core.testing import StoreCall

NOW = 1_700_000_000_000


def candidate(name: str, *, ago: int = 0, suspected: bool = False) -> Candidate:
    return Candidate(run_id=name, due_since=NOW - ago, suspected=suspected, lease=None)


def chosen(*found: Candidate, executing: int = 0, free: int = 4) -> list[str]:
    return [each.run_id for each in choose(found, executing=executing, free=free, now_ms=NOW)]


def test_a_suspected_run_is_taken_last_and_alone() -> None:
    healthy, suspect = candidate("h"), candidate("s", suspected=True)
    other = candidate("t", suspected=True)
    assert chosen(suspect, healthy) == ["h"]
    assert chosen(suspect, executing=1) == []
    assert chosen(suspect, other) == ["s"]
    assert chosen() == []


def test_for_one_that_is_due_for_a_minute_no_other_is_taken() -> None:
    suspect = candidate("s", ago=60_000, suspected=True)
    assert chosen(suspect, candidate("h"), executing=1) == []
    assert chosen(suspect, candidate("h"), executing=0) == ["s"]
    early = candidate("s", ago=59_999, suspected=True)
    assert chosen(early, candidate("h"), executing=1) == ["h"]


def test_no_more_are_taken_than_there_is_room_for() -> None:
    assert chosen(*map(candidate, "abc"), free=2) == ["a", "b"]


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())

        @workflow(version="2", accepts=("1",))
        async def job(ctx: Context) -> None: ...

        self.job = job
        self.code = "this"

    def sweeper(self) -> Sweeper:
        return Sweeper(Reads(self.pair), self.clock, {"job": self.job}, lambda _workflow: self.code)

    def put(self, run_id: str, *, ago: int = 0, **facts: object) -> None:
        row = RunMeta(
            run_id=run_id,
            status="running",
            updated_at=format_time(NOW - ago),
            workflow_name="job",
            workflow_version="2",
        )
        self.store.put_meta(replace(row, **facts))  # type: ignore[arg-type]

    def has_died(self, run_id: str, times: int) -> None:
        """Leave a run as that many deaths in a row do."""
        row = self.store.get_meta(run_id)
        assert row is not None
        for number in range(1, times + 1):
            seq = self.store.load(run_id)[-1].seq + 1
            value = {"decisionType": "recovered", "count": number, "segment": -number}
            entry = JournalEntry(seq=seq, kind="decision", status="ok", value=value)
            self.store.append(run_id, JournalRecord(seq=seq, payload=encode_entry(entry)))
        self.store.put_meta(replace(row, recoveries=times))

    def found(self, sweeper: Sweeper | None = None) -> list[str]:
        sweeper = sweeper or self.sweeper()
        return [each.run_id for each in sweeper.candidates(())]


def test_those_that_are_due_for_longest_come_first_and_not_the_lowest_ids() -> None:
    bench = Bench()
    bench.put("a", ago=1_000)
    bench.put("b", ago=3_000)
    bench.put("c", status="suspended", wake_at=format_time(NOW - 2_000))
    assert bench.found() == ["b", "c", "a"]
    # One whose owner died waits since its lease ran out, not since its segment began.
    bench.store.acquire("b", "dead")
    bench.clock.advance(bench.store.lease_ttl_ms)
    assert bench.found() == ["c", "a", "b"]


def test_whose_holder_is_gone_is_due_since_its_last_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not since its segment began: a run that works for an hour is not due for an hour."""
    bench = Bench()
    bench.put("r", ago=3_600_000)
    bench.store.acquire("r", "gone")
    monkeypatch.setattr("rulvar.core.engine.admin.sweep.holds", lambda _lease: False)
    sweeper = replace(bench.sweeper(), lease_ttl_ms=bench.store.lease_ttl_ms)
    [found] = sweeper.candidates(())
    assert found.due_since == NOW
    assert found.lease is not None


def test_no_run_waits_for_ever_behind_more_than_a_sweep_looks_at() -> None:
    bench = Bench()
    for number in range(450):
        bench.put(f"r{number:03}", ago=number)
    sweeper = bench.sweeper()
    seen = [set(bench.found(sweeper)) for _ in range(4)]
    assert [len(each) for each in seen[:3]] == [200, 200, 200]
    assert len(seen[0] | seen[1] | seen[2]) == 450
    assert seen[3] & seen[0]


def test_what_was_noted_of_a_run_is_forgotten_when_it_is_unfinished_no_more() -> None:
    bench = Bench()
    waiting = {"status": "suspended"}
    for number in range(5):
        bench.put(f"r{number}", **waiting)  # type: ignore[arg-type]
    sweeper = bench.sweeper()
    sweeper.candidates(())
    for number in range(5):
        sweeper.note_broken(f"r{number}")
        sweeper.rest(f"r{number}", 10**9)
    for number in range(4):
        bench.put(f"r{number}", status="ok")
    sweeper.candidates(())
    assert set(sweeper.set_aside) == {"r4"}
    assert set(sweeper._resting) == {"r4"}
    assert set(sweeper._seen) <= {"r4"}


def test_what_a_suspended_run_waits_for_is_noted_once_and_forgotten_with_it() -> None:
    bench = Bench()

    @workflow
    async def job(ctx: Context) -> object:
        return await ctx.await_external("go")

    async def main() -> None:
        async with Engine(bench.pair, [job], clock=bench.clock, suspend_after=0) as engine:
            for number in range(3):
                await engine.run(job, run_id=f"r{number}")
        sweeper = bench.sweeper()
        assert bench.found(sweeper) == []
        assert set(sweeper._seen) == {"r0", "r1", "r2"}
        async with Engine(bench.pair, [job], clock=bench.clock, suspend_after=0) as engine:
            await engine.cancel("r0")
            await engine.delete_run("r1")
        assert bench.found(sweeper) == []
        assert set(sweeper._seen) == {"r2"}

    asyncio.run(main())


def test_only_versions_that_the_worker_has_are_taken() -> None:
    bench = Bench()
    for version in ("1", "2", "3"):
        bench.put(version, workflow_version=version)
    bench.put("unsaid", workflow_version=None)
    bench.put("stranger", workflow_name="billing.job")
    assert bench.found() == ["1", "2", "unsaid"]


def test_a_run_that_this_code_cannot_replay_is_left_to_another() -> None:
    bench = Bench()
    blocked = Blocked(reason="another call", since=format_time(NOW), codes=("older", "this"))
    bench.put("r", blocked=blocked)
    assert bench.found() == []
    assert bench.sweeper().why_blocked("r") == "another call"
    bench.code = "mended"
    assert bench.found() == ["r"]
    assert bench.sweeper().why_blocked("r") is None


def test_a_run_that_turned_out_to_be_blocked_is_told_as_that_and_not_set_aside() -> None:
    bench = Bench()

    async def main() -> None:
        async with Engine(bench.pair, [bench.job], clock=bench.clock) as engine:
            code = engine.runtime.code(bench.job)
            blocked = Blocked(reason="another call", since=format_time(NOW), codes=(code,))
            bench.put("r", blocked=blocked)
            bench.put("s")
            worker = Worker(engine)
            for name in ("r", "s"):
                await worker._set_aside(name, ConfigError(name))
            assert worker._report.blocked == {"r": "another call"}
            assert set(worker._report.broken) == {"s"}
            assert set(worker._sweeper.set_aside) == {"s"}

    asyncio.run(main())


def test_a_suspected_child_makes_its_parent_suspected() -> None:
    """It is executed in its parent's segment: whoever takes that takes it."""
    bench = Bench()
    bench.put("p")
    bench.put("p.1", parent_run_id="p", recoveries=2)
    [found] = bench.sweeper().candidates(())
    assert (found.run_id, found.suspected) == ("p", True)


def test_a_worker_executes_a_suspected_run_last_and_alone() -> None:
    bench = Bench()
    order: list[str] = []
    under_way: set[str] = set()
    alone: list[bool] = []

    @workflow
    async def job(ctx: Context) -> None:
        async def work() -> None:
            under_way.add(ctx.run_id)
            order.append(ctx.run_id)
            await asyncio.sleep(0.05)
            if ctx.run_id.startswith("suspect"):
                alone.append(len(under_way) == 1)
            under_way.discard(ctx.run_id)

        await ctx.await_external("go")
        await ctx.step("work", work)

    async def main() -> dict[str, int]:
        async with Engine(bench.pair, [job], clock=bench.clock, suspend_after=0) as engine:
            names = ["suspect-1", "suspect-2", "z1", "z2", "z3"]
            for name in names:
                await engine.run(job, run_id=name)
                await engine.resolve(name, "go")
                row = bench.store.get_meta(name)
                assert row is not None
                if name.startswith("suspect"):
                    bench.store.put_meta(replace(row, recoveries=2))
        async with Engine(bench.pair, [job], clock=bench.clock, suspend_after=0) as engine:
            worker = Worker(engine, concurrency=2, poll_interval=0.005)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
            return report.outcomes

    assert asyncio.run(main()) == {"ok": 5}
    assert set(order[:3]) == {"z1", "z2", "z3"}
    assert order[3:] == ["suspect-1", "suspect-2"]
    assert alone == [True, True]


def test_nothing_is_taken_beside_a_suspected_run_until_it_has_got_something_done() -> None:
    bench = Bench()
    begun, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    looks = 0
    order: list[str] = []

    @workflow
    async def job(ctx: Context) -> None:
        async def wait_for(gate: asyncio.Event) -> None:
            order.append(ctx.run_id)
            begun.set()
            await gate.wait()

        await ctx.await_external("go")
        if ctx.run_id == "suspect":
            await ctx.step("first", wait_for, first)
            await ctx.step("second", wait_for, second)
        else:
            order.append(ctx.run_id)
            second.set()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal looks
        if order == ["suspect"] and call.method == "get_meta" and call.run_id == "suspect":
            looks += 1
            if looks == 20:  # so many sweeps had their chance
                loops[0].call_soon_threadsafe(first.set)
        return perform()

    async def main() -> dict[str, int]:
        loops.append(asyncio.get_running_loop())
        async with Engine(bench.pair, [job], clock=bench.clock, suspend_after=0) as engine:
            for name in ("suspect", "healthy"):
                await engine.run(job, run_id=name)
            await engine.resolve("suspect", "go")
        bench.has_died("suspect", 2)
        watched = WatchedStores(bench.pair, around=around)
        async with Engine(watched, [job], clock=bench.clock, suspend_after=0) as engine:
            worker = Worker(engine, concurrency=2, poll_interval=0.005)
            task = asyncio.create_task(worker.run())
            await begun.wait()
            await engine.resolve("healthy", "go")
            await second.wait()
            worker.stop(grace=30)
            return (await task).outcomes

    assert asyncio.run(asyncio.wait_for(main(), 30)) == {"ok": 2}
    assert order == ["suspect", "suspect", "healthy"]
    assert looks >= 20


# --- identity -------------------------------------------------------------------------------


def versioned(*, version: str = "1", accepts: tuple[str, ...] = ()) -> Workflow:
    @workflow(name="billing.process", version=version, accepts=accepts)
    async def body(ctx: Context) -> str:
        await ctx.await_external("go")
        return version

    return body


def test_a_version_is_kept_and_only_who_accepts_it_goes_on() -> None:
    bench = Bench()

    async def main() -> object:
        pair, clock = bench.pair, bench.clock
        one, two = versioned(), versioned(version="2")
        async with Engine(pair, [one], clock=clock, suspend_after=0) as engine:
            await engine.run(one, run_id="r")
        row = bench.store.get_meta("r")
        assert row is not None
        assert row.workflow_version == "1"
        before = bench.store.snapshot()
        async with Engine(pair, [two], clock=clock, suspend_after=0) as engine:
            for again in (engine.resume("r"), engine.run(two, run_id="r")):
                with pytest.raises(ConfigError, match=r"version '1'.*takes '2'"):
                    await again
            await engine.resolve("r", "go")
            report = await Worker(engine).run(until_idle=True)
            assert (report.outcomes, report.broken) == ({}, {})
        assert bench.store.snapshot().leases == before.leases == {}
        three = versioned(version="2", accepts=("1",))
        async with Engine(pair, [three], clock=clock, suspend_after=0) as engine:
            report = await Worker(engine).run(until_idle=True)
            assert report.outcomes == {"ok": 1}
            return (await engine.resume("r")).value

    assert asyncio.run(main()) == "2"


@pytest.mark.parametrize("bad", ["", 2, "a\nb", "x" * 201])
def test_a_version_that_cannot_be_is_refused(bad: object) -> None:
    with pytest.raises(ConfigError, match="version"):
        versioned(version=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="version"):
        versioned(accepts=(bad,))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="accepts must be a tuple"):
        versioned(accepts="1")  # type: ignore[arg-type]


def test_a_code_is_told_by_version_body_and_build() -> None:
    one = versioned()
    assert code_of(one) == code_of(versioned())
    assert len({code_of(one), code_of(versioned(version="2")), code_of(one, "b1")}) == 3
    other = replace(one, hash="sha256:other")
    assert code_of(other, "b1") != code_of(one, "b1")
    bench = Bench()
    assert Engine(bench.pair, build="b1").runtime.code(one) == code_of(one, "b1")
    assert Engine(bench.pair).runtime.code(one) == code_of(one)
    with pytest.raises(ConfigError, match="a build"):
        Engine(bench.pair, build="")
