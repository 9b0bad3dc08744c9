"""Cancelling a task has one known outcome: begun store calls end, leases are given back."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.journal import GIVEN_UP, read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunHandle, RunOutcome, Workflow
    from rulvar.core.testing import StoreCall


class Gate:
    """Holds the store calls that it is told to, until they may go on."""

    def __init__(self, due: Callable[[StoreCall], bool]) -> None:
        self.due = due
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if not self.reached.is_set() and self.due(call):
            self.reached.set()
            assert self.go_on.wait(10)
        return perform()


def bench(
    around: Callable[[StoreCall, Callable[[], object]], object] | None = None,
) -> tuple[ReferenceStore, WatchedStores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    pair = Stores(store, store.transcripts())
    if around is None:
        return store, WatchedStores(pair), clock
    return store, WatchedStores(pair, around=around), clock


async def reached(event: threading.Event) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)


def answer_of(key: str) -> Callable[[StoreCall], bool]:
    text = f'"key":"{key}"'.encode()
    return lambda call: (
        call.method == "append" and text in call.payload and b'"ref"' in call.payload
    )


@workflow
async def three(ctx: Context) -> list[str]:
    return [await ctx.step(name, str.upper, name) for name in ("a", "b", "c")]


@pytest.mark.parametrize("method", ["acquire", "load", "put", "put_meta", "append", "release"])
def test_a_cancelled_task_waits_for_the_store_call_that_it_began(method: str) -> None:
    gate = Gate(lambda call: call.method == method)
    store, stores, clock = bench(gate)

    async def main() -> None:
        async with Engine(stores, [three], clock=clock) as engine:
            task = asyncio.create_task(engine.run(three, run_id="r"))
            await reached(gate.reached)
            task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done(), "the call is under way, so its outcome is not known yet"
            gate.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert store.list_leases(None, 1) == [], "the lease is given back first"
            calls = len(stores.calls)
            await asyncio.sleep(0.01)
            assert len(stores.calls) == calls, "nothing goes on behind the caller's back"
            assert (await engine.run(three, run_id="r")).value == ["A", "B", "C"]

    asyncio.run(main())
    entries = read_journal("r", store.load("r"))
    assert [e.kind for e in entries].count("step") == 6


def test_a_cancelled_run_is_let_go_and_can_be_resumed_at_once() -> None:
    store, stores, clock = bench()
    began = asyncio.Event()
    ran: list[str] = []

    @workflow
    async def slow(ctx: Context) -> str:
        await ctx.step("a", ran.append, "a")

        async def work() -> str:
            ran.append("b")
            if len(ran) == 2:
                began.set()
                await asyncio.Event().wait()
            return "done"

        return await ctx.step("b", work)

    async def main() -> RunOutcome:
        async with Engine(stores, [slow], clock=clock) as engine:
            task = asyncio.create_task(engine.run(slow, run_id="r"))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            row = store.get_meta("r")
            assert row is not None
            assert row.status == "running"
            return await engine.resume("r")

    outcome = asyncio.run(main())
    assert outcome.value == "done"
    assert ran == ["a", "b", "b"]


def test_a_cancelled_handle_settles_as_cancelled() -> None:
    store, stores, clock = bench()
    began = asyncio.Event()
    cleaned = False

    @workflow
    async def slow(ctx: Context) -> None:
        async def work() -> None:
            nonlocal cleaned
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned = True

        await ctx.step("a", work)

    async def main() -> tuple[RunOutcome, RunOutcome]:
        async with Engine(stores, [slow], clock=clock) as engine:
            handle = engine.start(slow, run_id="r")
            await began.wait()
            return await handle.cancel(), await engine.resume("r")

    first, again = asyncio.run(main())
    assert (first.status, again.status) == ("cancelled", "cancelled")
    assert cleaned
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "cancelled"
    assert store.list_leases(None, 1) == []


def test_a_run_cancelled_while_it_boots_executes_nothing() -> None:
    gate = Gate(lambda call: call.method == "append")
    store, stores, clock = bench(gate)
    ran: list[str] = []

    @workflow
    async def steps(ctx: Context) -> None:
        ran.append("body")
        await ctx.step("a", ran.append, "a")

    async def main() -> RunOutcome | None:
        async with Engine(stores, [steps], clock=clock) as engine:
            engine.start(steps, run_id="r")
            await reached(gate.reached)
            asking = asyncio.create_task(engine.cancel("r"))
            await asyncio.sleep(0)
            gate.go_on.set()
            return await asking

    outcome = asyncio.run(main())
    assert outcome is not None
    assert outcome.status == "cancelled"
    assert ran == []
    assert len(store.load("r")) == 2


def test_a_cancel_that_meets_a_suspension_is_not_lost() -> None:
    """The settle as suspended is under way when the cancellation arrives."""
    gate = Gate(lambda call: b'"runStatus":"suspended"' in call.payload)
    store, stores, clock = bench(gate)

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    async def main() -> RunOutcome | None:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            engine.start(waits, run_id="r")
            await reached(gate.reached)
            asking = asyncio.create_task(engine.cancel("r"))
            for _ in range(5):
                await asyncio.sleep(0)
            gate.go_on.set()
            return await asking

    outcome = asyncio.run(main())
    assert outcome is not None
    assert outcome.status == "cancelled"
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "cancelled"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
def test_a_timeout_around_a_step_is_the_bodys_own(plain: bool) -> None:
    store, stores, clock = bench()
    release = threading.Event()

    @workflow
    async def impatient(ctx: Context) -> list[str]:
        async def forever() -> str:
            await asyncio.Event().wait()
            return "never"

        def blocked() -> str:
            release.wait(10)
            return "late"

        try:
            async with asyncio.timeout(0.01):
                await (ctx.step("slow", blocked) if plain else ctx.step("slow", forever))
        except TimeoutError:
            return ["timed out", await ctx.step("next", lambda: "next")]
        return ["?"]

    async def main() -> RunOutcome:
        async with Engine(stores, [impatient], clock=clock) as engine:
            return await engine.run(impatient, run_id="r")

    outcome = asyncio.run(main())
    release.set()
    assert outcome.value == ["timed out", "next"]
    steps = [(e.key, e.ref is not None) for e in read_journal("r", store.load("r")) if e.key]
    assert steps == [("slow", False), ("slow", True), ("next", False), ("next", True)]
    [given_up] = [e for e in read_journal("r", store.load("r")) if e.kind == GIVEN_UP]
    assert (given_up.key, given_up.status) == ("slow", "cancelled")


@pytest.mark.parametrize("answer", [False, True], ids=["opening", "answer"])
def test_a_timeout_while_a_step_is_journalled_leaves_the_journal_in_order(answer: bool) -> None:
    gate = Gate(
        lambda call: b'"key":"slow"' in call.payload and (b'"ref"' in call.payload) == answer
    )
    store, stores, clock = bench(gate)

    limits: list[asyncio.Timeout] = []

    @workflow
    async def impatient(ctx: Context) -> list[str]:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.step("slow", lambda: "slow")
        except TimeoutError:
            return ["timed out", await ctx.step("next", lambda: "next")]
        return ["?"]

    async def main() -> RunOutcome:
        async with Engine(stores, [impatient], clock=clock) as engine:
            handle = engine.start(impatient, run_id="r")
            await reached(gate.reached)
            limits[0].reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(0.03)
            gate.go_on.set()
            return await handle.result()

    assert asyncio.run(main()).value == ["timed out", "next"]
    assert [r.seq for r in store.load("r")] == list(range(len(store.load("r"))))
    landed = [(e.kind, e.key) for e in read_journal("r", store.load("r")) if e.ref is not None]
    given_up = [(GIVEN_UP, "slow"), ("step", "next")]
    assert landed == ([("step", "slow"), *given_up] if answer else given_up)


def test_closing_an_engine_lets_its_live_runs_go() -> None:
    store, stores, clock = bench()
    began = asyncio.Barrier(4)

    @workflow
    async def waits(ctx: Context) -> None:
        async def work() -> None:
            await began.wait()
            await asyncio.Event().wait()

        await ctx.step("a", work)

    async def main() -> list[str]:
        engine = Engine(stores, [waits], clock=clock)
        handles = [engine.start(waits, run_id=f"r{i}") for i in range(3)]
        await began.wait()
        await engine.aclose()
        await engine.aclose()
        assert store.list_leases(None, 9) == []
        with pytest.raises(ConfigError, match="closed"):
            engine.start(waits, run_id="late")
        assert store.get_lease("late") is None
        return [(await handle.result()).status for handle in handles]

    assert asyncio.run(main()) == ["running"] * 3


def test_a_loop_that_ends_with_live_runs_leaves_no_lease_behind() -> None:
    store, stores, clock = bench()
    engine = Engine(stores, [three], clock=clock)
    handles: list[RunHandle] = []
    began = asyncio.Event()

    @workflow
    async def waits(ctx: Context) -> None:
        async def work() -> None:
            began.set()
            await asyncio.Event().wait()

        await ctx.step("a", work)

    async def main() -> None:
        handles.append(engine.start(waits, run_id="r"))
        await began.wait()

    asyncio.run(main())
    assert store.list_leases(None, 9) == []
    assert handles[0].done
    asyncio.run(engine.aclose())


def test_a_loop_that_ends_while_a_run_is_being_taken_leaves_no_lease_behind() -> None:
    gate = Gate(lambda call: call.method == "acquire")
    store, stores, clock = bench(gate)
    engine = Engine(stores, [three], clock=clock)
    opens: list[asyncio.Task[None]] = []

    async def open_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.go_on.set()  # the loop has cancelled everybody by now

    async def main() -> None:
        engine.start(three, run_id="r")
        opens.append(asyncio.create_task(open_when_cancelled()))
        await reached(gate.reached)

    asyncio.run(main())
    assert store.snapshot().epochs == {"r": 1}, "the lease was granted"
    assert store.list_leases(None, 9) == [], "and given back"
    asyncio.run(engine.aclose())


def test_an_engine_serves_two_event_loops() -> None:
    outcomes: list[object] = []
    waiting = threading.Semaphore(0)

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        result = perform()
        if b'"kind":"external"' in call.payload:
            waiting.release()
        return result

    store, stores, clock = bench(around)

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k", timeout=60)

    engine = Engine(stores, [waits, three], clock=clock, suspend_after=100)

    async def host(run_id: str) -> None:
        outcomes.append((await engine.run(waits, run_id=run_id)).value)

    threads = [threading.Thread(target=lambda i=i: asyncio.run(host(f"r{i}"))) for i in range(2)]
    for thread in threads:
        thread.start()

    async def main() -> None:
        run_in_thread = asyncio.get_running_loop().run_in_executor
        assert await run_in_thread(None, waiting.acquire, True, 10)
        assert await run_in_thread(None, waiting.acquire, True, 10)
        for i in range(2):
            with pytest.raises(LeaseHeldError):
                await engine.resume(f"r{i}")
        await engine.resolve("r0", "k", "resolved elsewhere")
        cancelled = await engine.cancel("r1")
        assert cancelled is not None
        assert cancelled.status == "cancelled"
        await asyncio.get_running_loop().run_in_executor(None, threads[0].join, 10)
        assert (await engine.run(three, run_id="here")).value == ["A", "B", "C"]
        await engine.aclose()

    asyncio.run(main())
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes, key=str) == [None, "resolved elsewhere"]
    assert store.list_leases(None, 9) == []


def test_closing_from_another_loop_lets_live_runs_go() -> None:
    store, stores, clock = bench()
    began = threading.Event()

    @workflow
    async def waits(ctx: Context) -> None:
        async def work() -> None:
            began.set()
            await asyncio.Event().wait()

        await ctx.step("a", work)

    engine = Engine(stores, [waits], clock=clock)
    seen: list[str] = []

    async def host() -> None:
        seen.append((await engine.run(waits, run_id="r")).status)

    thread = threading.Thread(target=lambda: asyncio.run(host()))
    thread.start()
    assert began.wait(10)
    asyncio.run(engine.aclose())
    thread.join(10)
    assert seen == ["running"]
    assert store.list_leases(None, 9) == []


def test_a_body_that_cancels_itself_has_failed() -> None:
    _store, stores, clock = bench()

    @workflow
    async def gives_up(_ctx: Context) -> None:
        raise asyncio.CancelledError

    async def main(body: Workflow) -> RunOutcome:
        async with Engine(stores, [body], clock=clock) as engine:
            return await engine.run(body, run_id="r")

    outcome = asyncio.run(main(gives_up))
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.error_type.endswith("CancelledError")


def test_a_second_cancellation_still_waits_for_the_lease_to_be_given_back() -> None:
    store, stores, clock = bench()
    began, releasing, may_release = threading.Event(), threading.Event(), threading.Event()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "release":
            releasing.set()
            assert may_release.wait(10)
        return perform()

    stores.around = around

    @workflow
    async def waits(ctx: Context) -> None:
        began.set()
        await ctx.step("a", asyncio.Event().wait)

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock) as engine:
            task = asyncio.create_task(engine.run(waits, run_id="r"))
            await asyncio.to_thread(began.wait, 10)
            task.cancel()
            await asyncio.to_thread(releasing.wait, 10)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=0.05)
            assert not done
            may_release.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert store.list_leases(None, 9) == []
            handle = engine.start_resume("r")
            handle.detach()
            assert (await handle.result()).status == "running"

    asyncio.run(main())
