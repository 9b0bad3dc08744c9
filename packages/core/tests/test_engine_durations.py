"""Durations in the application's interface: seconds or a timedelta, refused before any I/O."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.core import ConfigError, Engine, RetentionPolicy, RetryPolicy, Worker, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, reference_stores
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core import Context
    from rulvar.core.engine.kernel.durations import Duration

MINUTE = [60, 60.0, timedelta(minutes=1)]
WRONG = [-1, "60", math.nan, math.inf, True, 1e12, timedelta(seconds=-1), None]


def waits_for(ask: Callable[[Context], Any]) -> int:
    """Return for how many milliseconds a run suspends that makes this call."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)

    @workflow
    async def asks(ctx: Context) -> object:
        return await ask(ctx)

    async def main() -> int:
        async with Engine(Stores(store, store.transcripts()), [asks], clock=clock) as engine:
            began = clock.now_ms()
            outcome = await engine.run(asks, run_id="r")
            assert outcome.status == "suspended", outcome
            assert outcome.wake_at is not None
            return parse_time(outcome.wake_at) - began

    return asyncio.run(main())


@pytest.mark.parametrize("minute", MINUTE)
def test_a_minute_is_sixty_seconds(minute: Duration) -> None:
    assert waits_for(lambda ctx: ctx.sleep(minute)) == 60_000
    assert waits_for(lambda ctx: ctx.await_external("k", timeout=minute)) == 60_000


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_duration_is_refused_before_anything_is_written(wrong: Any) -> None:
    store = ReferenceStore()
    stores = Stores(store, store.transcripts())

    @workflow
    async def sleeps(ctx: Context) -> None:
        with pytest.raises(ConfigError, match="duration must be"):
            await ctx.sleep(wrong)
        if wrong is not None:
            with pytest.raises(ConfigError, match="timeout must be"):
                await ctx.await_external("k", timeout=wrong)
            with pytest.raises(ConfigError, match="deadline must be"):
                await ctx.turns("t", lambda _state, _n: None, 0, deadline=wrong)

    async def main() -> list[str]:
        async with Engine(stores, [sleeps]) as engine:
            assert (await engine.run(sleeps, run_id="r")).status == "ok"
            return [
                refused(lambda: Worker(engine, poll_interval=wrong)),
                refused(lambda: Worker(engine, retention_interval=wrong)),
                refused(lambda: Worker(engine).stop(grace=wrong)),
                refused(lambda: RetentionPolicy(older_than=wrong)),
                refused(lambda: RetryPolicy(wait_initial=wrong)),
                refused(lambda: RetryPolicy(wait_max=wrong)),
                refused(lambda: RetryPolicy(wait_jitter=wrong)),
                refused(lambda: Engine(reference_stores(), suspend_after=wrong)),
            ]

    names = ["poll_interval", "retention_interval", "grace", "older_than"]
    names += ["wait_initial", "wait_max", "wait_jitter", "suspend_after"]
    assert asyncio.run(main()) == names
    assert b"suspend" not in b"".join(record.payload for record in store.load("r"))


def refused(call: Callable[[], object]) -> str:
    """Return the first word of the refusal: the name of what was wrong."""
    with pytest.raises(ConfigError, match="must be") as info:
        call()
    return str(info.value).split()[0]


def test_an_interval_of_nothing_is_refused() -> None:
    async def main() -> None:
        async with Engine(reference_stores()) as engine:
            with pytest.raises(ConfigError, match="poll_interval must be above 0"):
                Worker(engine, poll_interval=0)

    asyncio.run(main())
