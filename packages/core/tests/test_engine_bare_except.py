"""Code that catches everything and calls again harms nobody but itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Done, Engine, workflow
from rulvar.core.engine.segment import requests
from rulvar.core.errors import LeaseHeldError, RunCancelledError, SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from rulvar.core.engine import Context, Workflow


async def quick() -> int:
    await asyncio.sleep(0.001)
    return 1


async def deaf() -> None:
    """An async step that obeys nobody."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.01)


@workflow
async def small(_ctx: Context) -> int:
    return 1


async def for_ever(ctx: Context) -> None:
    while True:
        try:  # noqa: SIM105 - the point
            await ctx.step("s", quick)
        except:  # noqa: E722 - the point
            pass


async def no_branches(ctx: Context) -> None:
    await ctx.parallel("p", [])
    await asyncio.sleep(0)  # what has nothing to wait for would hold up the loop by itself


CALLS: dict[str, Callable[[Context], Awaitable[object]]] = {
    "step": lambda ctx: ctx.step("s", lambda: 1),
    "async step": lambda ctx: ctx.step("s", quick),
    "now": lambda ctx: ctx.now(),
    "random": lambda ctx: ctx.random(),
    "parallel": lambda ctx: ctx.parallel("p", [lambda inner: inner.step("s", quick)]),
    "no branches": no_branches,
    "external": lambda ctx: ctx.await_external("k", timeout=0.001, default=1),
    "sleep": lambda ctx: ctx.sleep(0.001),
    "turns": lambda ctx: ctx.turns("t", lambda _state, _n: Done(1), 0),
    "child": lambda ctx: ctx.child("c", small),
    "engine": lambda ctx: ctx.step("s", quick),
    "branch": lambda ctx: ctx.parallel("p", [for_ever, for_ever]),
    "deaf": lambda ctx: ctx.step("s", deaf),
}


def spinning(call: Callable[[Context], Awaitable[object]], engines: list[Engine]) -> Workflow:
    @workflow
    async def spins(ctx: Context) -> None:
        number = 0
        while True:
            try:
                number += 1
                await call(ctx)
                if call is CALLS["engine"]:
                    await engines[0].run(small, run_id=f"other{number}")
            except:  # noqa: E722 - the point
                pass

    return spins


async def superseded(_engine: Engine, store: ReferenceStore) -> None:
    store.seize("r", "successor")


async def detach(engine: Engine, _store: ReferenceStore) -> None:
    engine._live["r"].detach()


async def cancelled(engine: Engine, _store: ReferenceStore) -> None:
    await engine.cancel("r")


async def deleted(engine: Engine, _store: ReferenceStore) -> None:
    segment = engine._live["r"]._segment
    assert segment is not None
    while True:
        try:
            await requests.delete(segment)
        except LeaseHeldError:  # the child of this moment; it is over in the next
            await asyncio.sleep(0)
        else:
            return


async def failed(engine: Engine, _store: ReferenceStore) -> None:
    segment = engine._live["r"]._segment
    assert segment is not None
    segment.fail(OSError("as the stores have it"))


ENDINGS = [superseded, detach, cancelled, deleted, failed]


class Beat:
    """Whether the loop lives: counts, and notes the longest pause."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.timeout(20)  # a loop that is frozen can end in no other way
def test_a_body_that_catches_everything_holds_up_nobody(
    name: str,
    ending: Callable[[Engine, ReferenceStore], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 0.05)
    store = ReferenceStore(lease_ttl_ms=600)
    engines: list[Engine] = []
    spins = spinning(CALLS[name], engines)
    beat = Beat()

    async def main() -> None:
        async with Engine(Stores(store, store.transcripts()), [spins, small]) as engine:
            engines.append(engine)
            handle = engine.start(spins, run_id="r")
            await handle.began()
            await asyncio.sleep(0.02)
            beating = asyncio.create_task(beat.run())
            try:
                await ending(engine, store)
                await handle.result()
            except (SupersededError, RunCancelledError, OSError):
                pass
            assert handle.done
            beating.cancel()

    asyncio.run(main())
    gc.collect()
    assert beat.longest < 2
    lease = store.get_lease("r")
    assert lease is None or not lease.live or lease.owner == "successor"


@pytest.mark.parametrize("name", ["external", "sleep", "child"])
@pytest.mark.timeout(20)
def test_a_suspension_is_settled_without_its_body(name: str) -> None:
    store = ReferenceStore()
    stores = Stores(store, store.transcripts())
    call: Callable[[Context], Awaitable[object]] = {
        "external": lambda ctx: ctx.await_external("k"),
        "sleep": lambda ctx: ctx.sleep(1000),
        "child": lambda ctx: ctx.child("c", waits),
    }[name]

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    @workflow
    async def asks(ctx: Context) -> object:
        while True:
            try:
                return await call(ctx)
            except:  # noqa: E722 - the point
                pass

    async def main() -> None:
        async with Engine(stores, [asks, waits], suspend_after=0) as engine:
            began = time.monotonic()
            outcome = await engine.run(asks, run_id="r")
            assert outcome.status == "suspended"
            assert time.monotonic() - began < 0.9, "nobody waits for what never comes"
            if name == "external":
                await engine.resolve("r", "k", 7)
                assert (await engine.resume("r")).value == 7

    asyncio.run(main())


def test_the_first_call_after_the_end_is_told_and_cleans_up() -> None:
    store = ReferenceStore()
    stores = Stores(store, store.transcripts())
    told: list[str] = []

    @workflow
    async def body(ctx: Context) -> None:
        try:
            await ctx.await_external("k")
        finally:
            try:
                await ctx.step("clean up", quick)
            except BaseException as error:
                told.append(type(error).__name__)
                raise
            finally:
                told.append("closed")

    async def main() -> str:
        async with Engine(stores, [body], suspend_after=0) as engine:
            return (await engine.run(body, run_id="r")).status

    assert asyncio.run(main()) == "suspended"
    assert told == ["SegmentEnded", "closed"]


@pytest.mark.timeout(20)
def test_a_task_that_a_body_leaves_behind_stays_where_it_is() -> None:
    store = ReferenceStore()
    left: list[asyncio.Task[None]] = []
    over = asyncio.Event()

    @workflow
    async def leaves(ctx: Context) -> str:
        async def goes_on() -> None:
            await over.wait()
            await for_ever(ctx)

        left.append(asyncio.create_task(goes_on()))
        return "done"

    async def main() -> object:
        async with Engine(Stores(store, store.transcripts()), [leaves]) as engine:
            outcome = await engine.run(leaves, run_id="r")
            over.set()
            for _ in range(10):
                await asyncio.sleep(0)
            return outcome.value

    assert asyncio.run(main()) == "done"
    assert not left[0].done()


HOST = """
import asyncio, sys
from rulvar.core import Engine, Stores, workflow
from rulvar.core.testing import ReferenceStore

@workflow
async def agent(ctx):
    while True:
        try:
            await ctx.await_external("approval")
        except:
            pass

@workflow
async def swallows(ctx):
    async def step():
        while True:
            try:
                await asyncio.sleep(0.01)
            except:
                if not going_on:
                    raise
    await ctx.step("s", step)

going_on = True
store = ReferenceStore()

async def main():
    global going_on
    stores = Stores(store, store.transcripts())
    async with Engine(stores, [agent, swallows], suspend_after=0) as engine:
        for number in range(20):
            print((await engine.run(agent, run_id=f"r{number}")).status)
        handle = engine.start(swallows, run_id="s")
        await handle.began()
        await asyncio.sleep(0.05)
        handle.detach()
        print((await handle.result()).status)
    going_on = False
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_host_ends_quietly_after_such_bodies(tmp_path: Path) -> None:
    script = tmp_path / "host.py"
    script.write_text(HOST, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert (done.returncode, done.stdout) == (0, "suspended\n" * 20 + "running\n"), done.stderr
    noise = [line for line in done.stderr.splitlines() if "its body continues" not in line]
    assert noise == []
