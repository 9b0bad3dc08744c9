"""Events tell what happens, in order, to whoever listens, and no listener can hurt a run."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from event_bench import WHOLE, Bench, all_of, told, two_steps

from rulvar.core.engine import Continue, Done, Engine, workflow
from rulvar.core.engine.io.event_bus import EventBus
from rulvar.core.errors import ConfigError, StoreBusyError, SupersededError
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Event
    from rulvar.core.engine.lease.ownership import OwnedLease
    from rulvar.core.records import Lease
    from rulvar.core.testing import StoreCall


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- streams ----------------------------------------------------------------------------------


def test_a_run_tells_everything_in_order_and_its_stream_ends_with_it(bench: Bench) -> None:
    async def main() -> list[Event]:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            handle = engine.start(two_steps, {}, run_id="r")
            stream = handle.events()
            heard = await asyncio.wait_for(all_of(stream), 10)
            assert handle.done
            assert await asyncio.wait_for(all_of(handle.events()), 10) == [], "it is over"
            return heard

    heard = asyncio.run(main())
    assert told(heard) == WHOLE
    assert {event.run_id for event in heard} == {"r"}
    assert [event.seq for event in heard if event.kind.startswith("step")] == [1, 1, 3, 3]
    assert {event.segment for event in heard[1:]} == {1}
    assert {event.at_ms for event in heard} == {bench.clock.now_ms()}


def test_an_engine_tells_of_all_its_runs_and_its_stream_ends_with_it(bench: Bench) -> None:
    async def main() -> tuple[list[Event], list[Event]]:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            everything = engine.events()
            first = engine.start(two_steps, {}, run_id="1")
            second = engine.start(two_steps, {}, run_id="2")
            alone = first.events()
            await first.result()
            await second.result()
            only_first = await asyncio.wait_for(all_of(alone), 10)
        late = engine.events()
        assert await asyncio.wait_for(all_of(late), 10) == []
        return await asyncio.wait_for(all_of(everything), 10), only_first

    everything, only_first = asyncio.run(main())
    for run_id in ("1", "2"):
        assert told([event for event in everything if event.run_id == run_id]) == WHOLE
    assert told(only_first) == WHOLE
    assert {event.run_id for event in only_first} == {"1"}


def test_a_slow_reader_loses_the_oldest_and_is_told_how_many(bench: Bench) -> None:
    async def main() -> list[Event]:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            stream = engine.events(buffer=3)
            await engine.run(two_steps, {}, run_id="r")
        return await all_of(stream)

    heard = asyncio.run(main())
    assert (heard[0].kind, heard[0].count) == ("lagged", len(WHOLE) - 3)
    assert told(heard[1:]) == WHOLE[-3:]


def test_a_reader_that_waits_is_woken_from_another_thread(bench: Bench) -> None:
    """A keeper's event comes while the loop has nothing else to do."""

    async def main() -> Event:
        # In debug mode the loop refuses to be touched from another thread.
        asyncio.get_running_loop().set_debug(enabled=True)
        async with Engine(bench.pair, clock=bench.clock) as engine:
            stream = engine.events()
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            hub = engine.runtime.bus
            thread = threading.Thread(target=lambda: hub.emit("r", 0, "lease.renewed"))
            thread.start()
            event = await asyncio.wait_for(reading, 10)
            thread.join()
            return event

    assert asyncio.run(main()).kind == "lease.renewed"


def test_two_readers_of_one_stream_are_refused_and_a_cancelled_one_is_forgotten(
    bench: Bench,
) -> None:
    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            stream = engine.events()
            first = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task reads"):
                await anext(stream)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            engine.runtime.bus.emit("r", 0, "kept")
            assert (await anext(stream)).kind == "kept"
            await stream.aclose()
            assert await all_of(stream) == []

    asyncio.run(main())


def test_a_stream_that_nobody_has_any_more_is_forgotten(bench: Bench) -> None:
    hub = EventBus(bench.clock, ())
    stream = hub.stream(None, buffer=1)
    hub.emit("r", 0, "kept")
    kept = list(hub._streams)
    assert len(kept) == 1
    del stream
    gc.collect()
    hub.emit("r", 0, "unheard")
    assert list(hub._streams) == []


def test_nobody_listens_and_nothing_is_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**_facts: object) -> Event:
        pytest.fail("an event was made for nobody")

    monkeypatch.setattr("rulvar.core.engine.io.event_bus.Event", made)

    async def main() -> str:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return (await engine.run(two_steps, {}, run_id="r")).status

    assert asyncio.run(main()) == "ok"


@pytest.mark.parametrize("buffer", [0, -1, 1.5, True])
def test_a_buffer_that_cannot_work_is_refused(bench: Bench, buffer: int) -> None:
    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            with pytest.raises(ConfigError, match="buffer"):
                engine.events(buffer=buffer)

    asyncio.run(main())


# --- what the lease goes through ----------------------------------------------------------------


def test_a_renewal_says_how_long_the_store_took(bench: Bench) -> None:
    heard: list[Event] = []
    kept: list[set[OwnedLease]] = []

    @workflow
    async def renewing(ctx: Context) -> None:
        def renew() -> None:
            [owned] = kept[0]
            owned.renew()

        await ctx.step("renew", renew)

    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock, observer=heard.append) as engine:
            kept.append(engine.runtime.renewer._kept)
            await engine.run(renewing)

    asyncio.run(main())
    [renewed] = [event for event in heard if event.kind == "lease.renewed"]
    assert renewed.duration is not None
    assert 0 < renewed.duration < 10
    assert (renewed.epoch, renewed.segment) == (1, 1)


MUTATIONS = {
    "append": lambda call: call.method == "append" and call.number > 9,
    "put_meta": lambda call: call.method == "put_meta" and call.number > 9,
    "put_blob": lambda call: call.method == "put" and call.number > 9,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_refused_write_is_told_by_mutation_and_the_loss_by_reason(
    bench: Bench, mutation: str
) -> None:
    heard: list[Event] = []
    fits: Callable[[StoreCall], bool] = MUTATIONS[mutation]
    taken: list[Lease] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if fits(call) and not taken:
            bench.clock.advance(bench.store.lease_ttl_ms)
            taken.append(bench.store.acquire("r", "successor"))
        return perform()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.turns("loop", lambda _s, n: Continue(n) if n < 2 else Done(n), 0)

    async def main() -> None:
        watched = WatchedStores(bench.pair, around=around)
        async with Engine(watched, clock=bench.clock, observer=heard.append) as engine:
            with pytest.raises(SupersededError):
                await engine.run(work, run_id="r")

    asyncio.run(main())
    refused = [(e.name, e.detail) for e in heard if e.kind == "write.refused"]
    assert refused == [(mutation, "superseded")]
    [lost] = [event for event in heard if event.kind == "lease.lost"]
    assert (lost.detail, lost.epoch) == ("superseded", 1)
    [ended] = [event for event in heard if event.kind == "run.ended"]
    assert ended.name == "SupersededError"


def test_a_refused_renewal_is_told(bench: Bench) -> None:
    heard: list[Event] = []
    kept: list[set[OwnedLease]] = []

    @workflow
    async def superseded(ctx: Context) -> None:
        def renew() -> None:
            bench.clock.advance(bench.store.lease_ttl_ms)
            bench.store.acquire("r", "successor")
            [owned] = kept[0]
            owned.renew()

        await ctx.step("renew", renew)

    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock, observer=heard.append) as engine:
            kept.append(engine.runtime.renewer._kept)
            with pytest.raises(SupersededError):
                await engine.run(superseded, run_id="r")

    asyncio.run(main())
    refused = [(e.name, e.detail) for e in heard if e.kind == "write.refused"]
    assert refused == [("renew", "superseded")]


def test_a_busy_store_is_told_by_mutation(bench: Bench) -> None:
    heard: list[Event] = []
    busy: set[str] = {"append", "put_meta", "put"}

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method in busy:
            busy.discard(call.method)
            message = "busy"
            raise StoreBusyError(message)
        return perform()

    async def main() -> None:
        watched = WatchedStores(bench.pair, around=around)
        async with Engine(watched, clock=bench.clock, observer=heard.append) as engine:
            await engine.run(two_steps, {}, run_id="r")

    asyncio.run(main())
    waits = [event.name for event in heard if event.kind == "store.busy"]
    assert waits == ["put_blob", "put_meta", "append"]


def test_a_resume_after_a_segment_that_had_not_settled_is_a_takeover(bench: Bench) -> None:
    heard: list[Event] = []

    @workflow(name="waits")
    async def waits(ctx: Context) -> None:
        await ctx.await_external("key")

    async def main() -> None:
        async with Engine(bench.pair, [waits], clock=bench.clock, observer=heard.append) as engine:
            assert (await engine.run(waits, run_id="r")).status == "suspended"
            await engine.resume("r")
            del bench.store._tables._runs["r"].records[2:]  # as if it had died before the settle
            row = bench.store.get_meta("r")
            assert row is not None
            bench.store.put_meta(replace(row, status="running"))
            await engine.resume("r")

    asyncio.run(main())
    begun = [(e.kind, e.detail) for e in heard if e.kind in {"run.started", "run.resumed"}]
    assert begun == [("run.started", ""), ("run.resumed", ""), ("run.resumed", "takeover")]
