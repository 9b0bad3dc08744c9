"""Sleep: a clock that jumps past a lease ends a run only when somebody has taken it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.core import (
    Engine,
    Stores,
    SupersededError,
    assert_fenced_writes,
    workflow,
)
from rulvar.core.journal import read_journal
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from rulvar.core import (
        Context,
        Event,
    )


class World:
    """What a body meets in the middle of its second step."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def plain(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def interrupted(self, name: str) -> str:
        self.ran.append(name)
        if self.meanwhile is not None:
            await self.meanwhile()
        return name


WORLD = World()


@workflow
async def long_day(ctx: Context) -> list[str]:
    morning = await ctx.step("morning", WORLD.plain, "morning")
    noon = await ctx.step("noon", WORLD.interrupted, "noon")
    evening = await ctx.step("evening", WORLD.plain, "evening")
    return [morning, noon, evening]


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    fresh = World()
    monkeypatch.setitem(globals(), "WORLD", fresh)
    return fresh


def test_ten_ttls_of_sleep_with_nobody_around_are_no_loss(tmp_path: Path, world: World) -> None:
    ttl_ms = 60_000
    clock = ManualClock()
    heard: list[Event] = []

    async def sleep() -> None:
        clock.advance(10 * ttl_ms)

    world.meanwhile = sleep
    with SqliteStore(tmp_path / "runs.db", lease_ttl_ms=ttl_ms, clock=clock) as store:
        pair = assert_fenced_writes(Stores(store, store.transcripts()))

        async def play() -> None:
            async with Engine(pair, [long_day], observer=heard.append) as engine:
                outcome = await engine.run(long_day, run_id="day")
                assert (outcome.status, outcome.value) == ("ok", ["morning", "noon", "evening"])
                assert (outcome.segment, outcome.epoch, outcome.executed) == (1, 2, 3)

        asyncio.run(play())
        # The run went on by itself: nothing ran again, and the next epoch is its own.
        assert world.ran == ["morning", "noon", "evening"]
        entries = read_journal("day", store.load("day"))
        epochs = [entry.epoch for entry in entries if entry.epoch is not None]
        assert epochs == sorted(epochs)
        assert set(epochs) == {1, 2}
        row = store.get_meta("day")
        assert row is not None
        assert (row.status, row.segments) == ("ok", 1)
        assert "lease.lost" not in {event.kind for event in heard}


@pytest.mark.slow
def test_a_real_takeover_is_noticed_within_one_renewal(tmp_path: Path, world: World) -> None:
    ttl_ms = 3_000
    renewal_seconds = ttl_ms / 3 / 1000
    clock = ManualClock()
    path = tmp_path / "runs.db"
    taken_at: list[float] = []
    with (
        SqliteStore(path, lease_ttl_ms=ttl_ms, clock=clock) as store,
        SqliteStore(path, lease_ttl_ms=ttl_ms, clock=clock) as other,
    ):

        async def sleep_through_a_takeover() -> None:
            clock.advance(10 * ttl_ms)
            await asyncio.to_thread(other.acquire, "day", "successor")
            taken_at.append(time.monotonic())
            try:
                await asyncio.Event().wait()  # would wait for ever: the loss must end it
            except Exception:  # noqa: BLE001 - what careless code does
                pytest.fail("user code could swallow the loss")

        world.meanwhile = sleep_through_a_takeover
        pair = assert_fenced_writes(Stores(store, store.transcripts()))

        async def play() -> None:
            async with Engine(pair, [long_day]) as engine:
                with pytest.raises(SupersededError) as lost:
                    await engine.run(long_day, run_id="day")
                noticed_after = time.monotonic() - taken_at[0]
                assert (lost.value.reason, lost.value.epoch) == ("superseded", 1)
                assert (lost.value.holder, lost.value.holder_epoch) == ("successor", 2)
                assert noticed_after < renewal_seconds + 1

        asyncio.run(play())
        assert world.ran == ["morning", "noon"]
        held = other.get_lease("day")
        assert held is not None
        assert (held.owner, held.epoch, held.live) == ("successor", 2, True)
