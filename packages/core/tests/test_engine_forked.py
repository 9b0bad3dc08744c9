"""What an engine of the parent's does in a forked child: it refuses at once, and never hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.engine.segment.lifecycle import current_segment
from rulvar.core.store_life import StoreLife
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, reference_stores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunHandle
    from rulvar.core.engine.io.event_bus import EventStream

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

_LONGEST_S = 20


class Anywhere(StoreLife):
    """A life that asks for no process."""

    def check_process(self) -> None:
        """Return in every process."""


class Careless(ReferenceStore):
    """A store that does not know of forks: what refuses is the engine."""

    def __init__(self) -> None:
        super().__init__()
        self._gate._life = Anywhere("the store")


@workflow
async def quick(ctx: Context) -> int:
    return await ctx.step("one", lambda: 1)


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.step("wait", asyncio.sleep, 600)


def in_child(act: Callable[[], str]) -> str:
    """Fork, act there, and return what it says; a child that hangs says so."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST_S)  # ends it, whatever it waits for
        said = "nothing"
        try:
            said = act()
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"it hangs (ended by signal {os.WTERMSIG(status)})"


class Used:
    """An engine that the parent has used, with one run that is live."""

    engine: Engine
    worker: Worker
    handle: RunHandle
    stream: EventStream


def asks(used: Used, name: str) -> Callable[[], str]:
    return lambda: str(asyncio.run(every_call(used, name)))


async def every_call(used: Used, name: str) -> object:
    engine, handle = used.engine, used.handle
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "run": lambda: engine.run(quick),
        "run, with a timeout": lambda: asyncio.wait_for(engine.run(quick), 5),
        "resume": lambda: engine.resume("done"),
        "cancel": lambda: engine.cancel("live"),
        "resolve": lambda: engine.resolve("live", "k"),
        "delete": lambda: engine.delete_run("done"),
        "prune": lambda: engine.prune_run("done"),
        "close": engine.aclose,
        "worker": used.worker.run,
        "result": handle.result,
        "result, with a timeout": lambda: asyncio.wait_for(handle.result(), 5),
        "wait": handle.wait,
        "began": handle.began,
        "handle cancel": handle.cancel,
        "handle resolve": lambda: handle.resolve("k"),
        "event": used.stream.__anext__,
    }
    return await calls[name]()


NAMES = [
    *("run", "run, with a timeout", "resume", "cancel", "resolve", "delete", "prune", "close"),
    *("worker", "result", "result, with a timeout", "wait", "began"),
    *("handle cancel", "handle resolve", "event"),
]


def used_engine(play: Callable[[Used], None]) -> None:
    """Use an engine on a loop in a thread, and play with it here, where nothing runs."""
    store = Careless()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> Used:
        used = Used()
        used.engine = Engine(Stores(store, store.transcripts()), [quick, waits])
        used.worker = Worker(used.engine)
        used.stream = used.engine.events()
        await used.engine.run(quick, run_id="done")
        used.handle = used.engine.start(waits, run_id="live")
        assert await used.handle.began()
        while used.stream._buffer._events:
            await used.stream.__anext__()
        return used

    try:
        used = asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
        try:
            play(used)
        finally:
            asyncio.run_coroutine_threadsafe(used.engine.aclose(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.mark.slow
def test_every_call_of_a_parents_engine_is_refused_at_once_in_a_child() -> None:
    said: dict[str, str] = {}

    def play(used: Used) -> None:
        for name in NAMES:
            said[name] = in_child(asks(used, name))

    used_engine(play)
    refused = {name: words for name, words in said.items() if words.startswith("StoreForkedError")}
    assert refused.keys() == set(NAMES), {n: w for n, w in said.items() if n not in refused}
    assert "before the fork" in refused["run"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["detach", "drain", "events", "start"])
def test_so_is_what_is_no_coroutine(call: str) -> None:
    def play(used: Used) -> None:
        async def main() -> None:
            target = used.engine if call == "start" else used.handle
            getattr(target, call)(*((quick,) if call == "start" else ()))

        words = in_child(lambda: str(asyncio.run(main())))
        assert words.startswith("StoreForkedError"), words

    used_engine(play)


@pytest.mark.slow
def test_a_fork_while_every_lock_of_the_engine_is_held_is_refused_as_well() -> None:
    """The child has the locks as they were, and no thread that would ever open them."""

    def play(used: Used) -> None:
        runtime = used.engine.runtime
        held = (runtime.bridge._lock, runtime.renewer._changed, used.engine._starting)
        for lock in (*held, runtime.bus._changing):
            with lock:
                for name in ("run", "resume", "worker", "event", "result"):
                    words = in_child(asks(used, name))
                    assert words.startswith("StoreForkedError"), (name, words)

    used_engine(play)


@pytest.mark.slow
def test_a_child_makes_an_engine_of_its_own() -> None:
    """Also in a child that a step has forked: it is no part of that run."""

    def own() -> str:
        async def main() -> str:
            async with Engine(reference_stores(), [quick]) as engine:
                return f"{current_segment()} {(await engine.run(quick, run_id='r')).value}"

        return asyncio.run(main())

    said: list[str] = []

    @workflow
    async def forks(ctx: Context) -> None:
        await ctx.step("fork", lambda: said.append(in_child(own)))

    async def main() -> None:
        async with Engine(reference_stores(), [forks]) as engine:
            await engine.run(forks, run_id="r")

    asyncio.run(main())
    assert said == ["None 1"]


@pytest.mark.slow
def test_a_step_that_forks_does_not_write_its_run_from_the_child() -> None:
    said: list[str] = []

    @workflow
    async def forks(ctx: Context) -> None:
        async def again() -> object:
            return await ctx.step("inner", lambda: 1)

        await ctx.step("fork", lambda: said.append(in_child(lambda: str(asyncio.run(again())))))

    async def main() -> None:
        store = Careless()
        async with Engine(Stores(store, store.transcripts()), [forks]) as engine:
            assert (await engine.run(forks, run_id="r")).status == "ok"

    asyncio.run(main())
    assert not said[0].startswith("it hangs"), said
    assert "Error" in said[0] or "Ended" in said[0], said
