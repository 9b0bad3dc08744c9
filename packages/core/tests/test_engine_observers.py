"""Observers hear of everything, soon after the fact, and none can hurt a run."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from event_bench import WHOLE, Bench, told, two_steps

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, PluginError
from rulvar.core.spi import hookimpl

if TYPE_CHECKING:
    from rulvar.core.engine import Context, Event


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Plugin:
    """An observer by hook."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    @hookimpl
    def rulvar_observe(self, event: Event) -> None:
        self.heard.append(event)


class Raising:
    """An observer that raises, whatever it hears."""

    @hookimpl
    def rulvar_observe(self) -> None:
        message = "not in the mood"
        raise SystemExit(message)


def test_observers_by_hook_get_what_the_callable_gets(bench: Bench) -> None:
    first, second = Plugin(), Plugin()
    heard: list[Event] = []

    async def main() -> None:
        async with Engine(
            bench.pair, clock=bench.clock, observer=heard.append, observers=[first, second]
        ) as engine:
            await engine.run(two_steps, {}, run_id="r")

    asyncio.run(main())
    assert told(heard) == WHOLE
    assert heard == first.heard == second.heard


def test_an_observer_that_raises_is_logged_and_hurts_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Plugin()

    async def main() -> str:
        async with Engine(bench.pair, clock=bench.clock, observers=[Raising(), plugin]) as engine:
            return (await engine.run(two_steps, {}, run_id="r")).status

    with caplog.at_level(logging.ERROR, logger="rulvar.engine"):
        assert asyncio.run(main()) == "ok"
    assert told(plugin.heard) == WHOLE
    raised = [r for r in caplog.records if "an observer raised" in r.getMessage()]
    assert len(raised) == len(WHOLE)
    assert all(record.exc_info for record in raised)


def test_an_observer_that_blocks_keeps_no_run_and_no_renewal_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rulvar.core.engine.io.event_bus._CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("rulvar.core.engine.io.event_bus._OBSERVER_BUFFER", 4)
    inside, free, done = threading.Event(), threading.Event(), threading.Event()
    heard: list[Event] = []

    def observe(event: Event) -> None:
        inside.set()
        assert free.wait(60)
        heard.append(event)
        if event.kind == "lease.released":
            done.set()

    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock, observer=observe) as engine:
            outcome = await asyncio.wait_for(engine.run(two_steps, {}, run_id="r"), 30)
            assert outcome.status == "ok"
            assert inside.is_set()

    asyncio.run(main())
    assert heard == []
    assert "an observer has not handled" in caplog.text
    free.set()
    assert done.wait(10)
    lagged = [event.count for event in heard if event.kind == "lagged"]
    assert lagged == [len(WHOLE) - 1 - 4], "one was in its hands, four in the buffer"
    assert told(heard)[-4:] == WHOLE[-4:]


def test_an_observer_may_call_the_engine(bench: Bench) -> None:
    """It holds no lock of the run: whatever it asks of the engine is answered."""
    answers: list[str] = []

    def observe(event: Event) -> None:
        if event.kind == "step.finished" and not answers:
            answers.append("asked")
            outcome = asyncio.run(asyncio.wait_for(engines[0].run(two_steps, {}, run_id="x"), 20))
            answers.append(outcome.status)
            answered.set()

    answered = threading.Event()
    engines: list[Engine] = []

    async def main() -> None:
        async with Engine(bench.pair, clock=bench.clock, observer=observe) as engine:
            engines.append(engine)
            await engine.run(two_steps, {}, run_id="r")
            await asyncio.to_thread(answered.wait, 30)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert answers == ["asked", "ok"]


class Misfit:
    """An observer whose hook asks for what there is not."""

    @hookimpl
    def rulvar_observe(self, event: Event, mood: str) -> None:
        raise NotImplementedError


class Misnamed:
    """An observer whose hook nobody calls."""

    @hookimpl
    def rulvar_observes(self, event: Event) -> None:
        raise NotImplementedError


class Never:
    """An observer whose hook only makes a coroutine."""

    @hookimpl
    async def rulvar_observe(self, event: Event) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (Misfit(), "does not fit"),
        (Misnamed(), "does not fit"),
        (Never(), "is async and would never run"),
        (object(), "implements no"),
    ],
)
def test_a_plugin_that_is_no_observer_is_refused(bench: Bench, plugin: object, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        Engine(bench.pair, observers=[plugin])


class NeverCalled:
    """An observer whose call only makes a coroutine."""

    async def __call__(self, event: Event) -> None:
        raise NotImplementedError


def test_an_observer_that_would_never_run_is_refused(bench: Bench) -> None:
    async def never(_event: Event) -> None:
        raise NotImplementedError

    for observer in (never, partial(never), NeverCalled()):
        with pytest.raises(ConfigError, match="observer is an async function"):
            Engine(bench.pair, observer=observer)  # type: ignore[arg-type] # a wrong one, on purpose


def test_whoever_waits_for_the_beginning_goes_on_before_the_body_does(bench: Bench) -> None:
    order: list[str] = []

    @workflow
    async def prompt(_ctx: Context) -> None:
        order.append("body")

    async def main() -> None:
        async with Engine(bench.pair, [prompt], clock=bench.clock) as engine:
            handle = engine.start(prompt, run_id="r")
            assert await handle.began() is True
            order.append("told")
            await handle.result()
            # It is over already: nothing begins, and nobody waits for ever.
            assert await engine.start(prompt, run_id="r").began() is False
            bench.store.acquire("r", "somebody else")
            refused = engine.start_resume("r")
            assert await refused.began() is False
            await refused.wait()

    asyncio.run(main())
    assert order == ["told", "body"]
