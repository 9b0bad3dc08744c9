"""A run suspends when only the outside can move it, and whatever moves it is not lost."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import InvalidResolutionError, StepFailedError, StoreBusyError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.testing import StoreCall


class Bench:
    """``parked`` counts the suspensions that have been journalled."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.parked = threading.Semaphore(0)
        self.stores = WatchedStores(
            Stores(self.store, self.store.transcripts()), around=self.around
        )

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        result = perform()
        if b'"status":"suspended"' in call.payload:
            self.parked.release()
        return result

    async def until_parked(self, times: int = 1) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(times):
            assert await loop.run_in_executor(None, self.parked.acquire, True, 10)


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.await_external("k")


@workflow
async def waits_a_while(ctx: Context) -> object:
    return await ctx.await_external("k", timeout=5)


def test_a_live_run_is_woken_by_its_resolution() -> None:
    bench = Bench()

    async def main() -> RunOutcome:
        async with Engine(
            bench.stores, [waits_a_while], clock=bench.clock, suspend_after=9
        ) as engine:
            handle = engine.start(waits_a_while, run_id="r")
            await bench.until_parked()
            await engine.resolve("r", "k", {"by": "me"})
            return await handle.result()

    outcome = asyncio.run(main())
    assert (outcome.value, outcome.segment) == ({"by": "me"}, 1)


def test_a_resolution_of_a_suspended_run_waits_for_its_resume() -> None:
    bench = Bench()

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [waits], clock=bench.clock) as engine:
            outcome = await engine.run(waits, run_id="r")
            assert outcome.status == "suspended"
            assert [(w.kind, w.key) for w in outcome.waiting_for] == [("external", "k")]
            assert bench.store.list_leases(None, 1) == []
            await engine.resolve("r", "k", 1)
            row = bench.store.get_meta("r")
            assert row is not None
            assert row.wake_at is not None, "a worker shall look at it now"
            with pytest.raises(InvalidResolutionError):
                await engine.resolve("r", "k", 2)
            with pytest.raises(InvalidResolutionError):
                await engine.resolve("r", "other", 2)
            return await engine.resume("r")

    assert asyncio.run(main()).value == 1


def test_a_handle_answers_its_run_live_and_settled_alike() -> None:
    bench = Bench()

    async def main() -> None:
        async with Engine(
            bench.stores, [waits_a_while, waits], clock=bench.clock, suspend_after=9
        ) as engine:
            live = engine.start(waits_a_while, run_id="live")
            await bench.until_parked()
            await live.resolve("k", 1)
            assert (await live.result()).value == 1
            with pytest.raises(InvalidResolutionError):
                await live.resolve("k", 2)
        async with Engine(bench.stores, [waits], clock=bench.clock) as engine:
            settled = engine.start(waits, run_id="settled")
            assert (await settled.result()).status == "suspended"
            await settled.resolve("k", {"by": "me"})
            assert bench.store.list_leases(None, 1) == []
            with pytest.raises(InvalidResolutionError):
                await settled.resolve("k", 2)
            assert (await engine.resume("settled")).value == {"by": "me"}

    asyncio.run(main())


def test_whoever_answers_later_is_told_that_it_is_resolved() -> None:
    bench = Bench()
    over = asyncio.Event()

    @workflow
    async def goes_on(ctx: Context) -> object:
        answer = await ctx.await_external("k")
        await ctx.step("goes on", over.wait)
        await ctx.await_external("never")
        return answer

    async def too_late(engine: Engine) -> None:
        with pytest.raises(InvalidResolutionError, match="'k' is resolved already; the first"):
            await engine.resolve("r", "k", 2)
        with pytest.raises(InvalidResolutionError, match="does not wait for 'other'"):
            await engine.resolve("r", "other", 2)

    async def main() -> None:
        async with Engine(bench.stores, [goes_on], clock=bench.clock) as engine:
            assert (await engine.run(goes_on, run_id="r")).status == "suspended"
            await engine.resolve("r", "k", 1)
            await too_late(engine)
            live = engine.start_resume("r")
            await too_late(engine)
            over.set()
            assert (await live.result()).status == "suspended"
            await too_late(engine)

    asyncio.run(main())


def test_a_timer_that_is_over_is_not_kept() -> None:
    bench = Bench()

    @workflow
    async def naps(ctx: Context) -> int:
        for _ in range(3):
            await ctx.sleep(0)
        return len(ctx._segment.scheduler._timers)

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [naps], clock=bench.clock) as engine:
            return await engine.run(naps, run_id="r")

    assert asyncio.run(main()).value == 0


def test_a_sleep_beside_other_work_is_over_when_the_clock_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine slept, or its clock was put forward: no timer of the loop has heard of it."""
    monkeypatch.setattr("rulvar.core.engine.segment.scheduling._LONGEST_NAP_SECONDS", 0.01)

    looks = threading.Semaphore(0)

    class Looked(ManualClock):
        def now_ms(self) -> int:
            looks.release()
            return super().now_ms()

    bench = Bench()
    bench.clock = clock = Looked()
    hour_ms = 3_600_000

    @workflow
    async def both(ctx: Context) -> object:
        slept = asyncio.Event()

        async def sleeps(inner: Context) -> None:
            await inner.sleep(hour_ms / 1000)
            slept.set()

        async def works(inner: Context) -> object:
            return await inner.step("works", slept.wait)

        return await ctx.parallel("both", [sleeps, works])

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [both], clock=bench.clock) as engine:
            handle = engine.start(both, run_id="r")
            await bench.until_parked()
            clock.set(clock.now_ms() - hour_ms)
            while looks.acquire(blocking=False):
                pass
            for _ in range(4):  # it naps, looks and naps
                assert await asyncio.to_thread(looks.acquire, True, 10)
            clock.set(clock.now_ms() + 2 * hour_ms)
            return await asyncio.wait_for(handle.result(), 10)

    assert asyncio.run(main()).value == [None, True]
    entries = read_journal("r", bench.store.load("r"))
    [deadline] = [e.deadline_at for e in entries if e.kind == "timer"]
    [over] = [e.ended_at for e in entries if e.kind == "resolution"]
    assert deadline is not None
    assert over is not None
    assert over >= deadline


def test_a_late_answer_is_refused_everywhere() -> None:
    bench = Bench()

    async def main() -> None:
        async with Engine(
            bench.stores, [waits_a_while], clock=bench.clock, suspend_after=9
        ) as engine:
            handle = engine.start(waits_a_while, run_id="r")
            await bench.until_parked()
            answers = await asyncio.gather(
                *(engine.resolve("r", "k", n) for n in range(5)), return_exceptions=True
            )
            refused = [a for a in answers if isinstance(a, InvalidResolutionError)]
            assert len(refused) == 4
            assert (await handle.result()).value == answers.index(None)
            with pytest.raises(InvalidResolutionError):
                await engine.resolve("r", "k", "later still")

    asyncio.run(main())


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("default", [True, False])
def test_a_deadline_that_passes_gives_the_default_or_fails(live: bool, default: bool) -> None:
    bench = Bench()

    @workflow
    async def deadline(ctx: Context) -> object:
        try:
            if default:
                return await ctx.await_external("k", timeout=0.05, default=[1])
            return await ctx.await_external("k", timeout=0.05)
        except StepFailedError as error:
            return error.error_type

    async def main() -> RunOutcome:
        linger = 1_000 if live else 0
        async with Engine(
            bench.stores, [deadline], clock=bench.clock, suspend_after=linger / 1000
        ) as engine:
            handle = engine.start(deadline, run_id="r")
            await bench.until_parked()
            if live:
                bench.clock.advance(50)
                return await handle.result()
            outcome = await handle.result()
            assert outcome.status == "suspended"
            assert outcome.wake_at is not None
            bench.clock.advance(50)
            return await engine.resume("r")

    assert asyncio.run(main()).value == ([1] if default else "TimeoutError")


def test_a_sleep_lasts_across_restarts() -> None:
    bench = Bench()

    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep(60)
        return "awake"

    async def main() -> list[str]:
        async with Engine(bench.stores, [sleeps], clock=bench.clock) as engine:
            seen = [(await engine.run(sleeps, run_id="r")).status]
            for _ in range(3):
                bench.clock.advance(20_000)
                seen.append((await engine.resume("r")).status)
            return seen

    assert asyncio.run(main()) == ["suspended", "suspended", "suspended", "ok"]
    row = bench.store.get_meta("r")
    assert row is not None
    assert row.wake_at is None


def test_a_run_does_not_suspend_beside_a_branch_that_still_works() -> None:
    bench = Bench()
    release = threading.Event()

    @workflow
    async def body(ctx: Context) -> object:
        async def parks(inner: Context) -> object:
            return await inner.await_external("k")

        async def works(inner: Context) -> list[object]:
            async def leaf(deep: Context) -> object:
                return await deep.step("slow", release.wait, 10)

            await inner.parallel("deep", [leaf])
            return [await inner.step(name, str.upper, name) for name in ("a", "b")]

        return await ctx.parallel("p", [parks, works])

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [body], clock=bench.clock, suspend_after=0) as engine:
            handle = engine.start(body, run_id="r")
            await bench.until_parked()
            assert not handle.done
            release.set()
            return await handle.result()

    outcome = asyncio.run(main())
    assert (outcome.status, outcome.executed) == ("suspended", 3), "it worked to the end first"


def test_a_branch_that_waits_for_its_place_does_not_keep_a_run_awake() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        async def parks(inner: Context) -> object:
            return await inner.await_external("k")

        return await ctx.parallel("p", [parks, parks, parks], limit=1)

    async def main() -> object:
        async with Engine(bench.stores, [body], clock=bench.clock) as engine:
            assert (await engine.run(body, run_id="r")).status == "suspended"
            for n in range(3):
                await engine.resolve("r", "k", n)
                outcome = await engine.resume("r")
            return outcome.value

    assert asyncio.run(main()) == [0, 1, 2]


def test_an_answer_on_its_way_keeps_the_run_from_suspending_over_it() -> None:
    """The answer hangs in the store while the last branch that works comes to its end."""
    bench = Bench()
    in_store, go_on = threading.Event(), threading.Event()
    leave = asyncio.Event()

    @workflow
    async def body(ctx: Context) -> object:
        async def parks(inner: Context) -> object:
            return await inner.await_external("k")

        async def works(_inner: Context) -> str:
            await leave.wait()  # no call of ours: it ends without an append
            return "left"

        return await ctx.parallel("p", [parks, works])

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if b'"kind":"resolution"' in call.payload:
            in_store.set()
            assert go_on.wait(10)
        return bench.around(call, perform)

    bench.stores.around = around

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [body], clock=bench.clock, suspend_after=0) as engine:
            handle = engine.start(body, run_id="r")
            await bench.until_parked()
            answer = asyncio.create_task(engine.resolve("r", "k", 7))
            assert await asyncio.get_running_loop().run_in_executor(None, in_store.wait, 10)
            leave.set()
            for _ in range(20):
                await asyncio.sleep(0)
            go_on.set()
            await answer
            return await handle.result()

    outcome = asyncio.run(main())
    assert (outcome.status, outcome.value) == ("ok", [7, "left"])


def test_a_deadline_that_the_body_has_given_up_on_wakes_nobody() -> None:
    bench = Bench()

    @workflow
    async def body(ctx: Context) -> object:
        try:
            async with asyncio.timeout(0.01):
                await ctx.await_external("given up", timeout=0.5)
        except TimeoutError:
            return await ctx.await_external("k")
        return None

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [body], clock=bench.clock, suspend_after=1) as engine:
            return await asyncio.wait_for(engine.run(body, run_id="r"), 5)

    outcome = asyncio.run(main())
    assert (outcome.status, outcome.wake_at) == ("suspended", None)


def test_what_was_resolved_stands_though_the_brief_lease_is_not_given_back() -> None:
    bench = Bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "release" and b'"kind":"resolution"' in bench.stores.calls[-3].payload:
            message = "busy"
            raise StoreBusyError(message)
        return bench.around(call, perform)

    bench.stores.around = around

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [waits], clock=bench.clock) as engine:
            await engine.run(waits, run_id="r")
            await engine.resolve("r", "k", 1)
            bench.clock.advance(bench.store.lease_ttl_ms)
            return await engine.resume("r")

    assert asyncio.run(main()).value == 1
    answers = [e for e in read_journal("r", bench.store.load("r")) if e.kind == "resolution"]
    assert len(answers) == 1


def test_a_run_that_never_began_says_so() -> None:
    bench = Bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append":
            message = "the process dies before run_start"
            raise RuntimeError(message)
        return perform()

    async def main() -> None:
        async with Engine(bench.stores, [waits], clock=bench.clock) as engine:
            bench.stores.around = around
            with pytest.raises(RuntimeError):
                await engine.run(waits, run_id="r")
            bench.stores.around = bench.around
            for missing in ("r", "never heard of"):
                with pytest.raises(Exception, match="start it with run"):
                    await engine.resume(missing)
            assert (await engine.run(waits, run_id="r")).status == "suspended"

    asyncio.run(main())
