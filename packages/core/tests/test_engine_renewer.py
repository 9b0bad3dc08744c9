"""Many leases in one unit, and event loops that do not answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.lease.watch import LoopWatch
from rulvar.core.errors import ConfigError, StoreBusyError, SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context
    from rulvar.core.events import Event
    from rulvar.core.testing import StoreCall

pytestmark = pytest.mark.slow

MANY = 60
TTL_MS = 600


class Bench:
    """Runs that wait for a word, and what the store is asked meanwhile."""

    def __init__(self, *without: str) -> None:
        self.store = ReferenceStore(lease_ttl_ms=TTL_MS)
        self.calls: Counter[str] = Counter()
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.go_on = threading.Event()
        self.renewed = threading.Event()
        self.at_renewal: Callable[[], None] = lambda: None
        stores = Stores(self.store, self.store.transcripts())
        self.stores = WatchedStores(stores, around=self.around, without=without)

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        self.calls[call.method] += 1
        if call.method in {"renew", "renew_all"}:
            self.at_renewal()
            if call.method == "renew_all":
                [leases] = call.arguments
                assert isinstance(leases, tuple)
                self.batches.append(len(leases))
        answer = perform()
        if call.method in {"renew", "renew_all"}:
            self.renewed.set()
        return answer

    def kinds(self, run_id: str | None = None) -> list[str]:
        return [event.kind for event in self.events if run_id in {None, event.run_id}]

    def play(self, runs: int, meanwhile: Callable[[], None]) -> dict[str, object]:
        """Start so many runs, do something in a thread, let all go on; return how each ended."""

        @workflow
        async def waits(ctx: Context) -> str:
            async def until_told() -> str:
                while not self.go_on.is_set():  # noqa: ASYNC110 - told from a thread
                    await asyncio.sleep(0.01)
                return "done"

            return await ctx.step("wait", until_told)

        async def main() -> dict[str, object]:
            engine = Engine(self.stores, [waits], observer=self.events.append)
            async with engine:
                handles = [engine.start(waits, run_id=f"r{n:03}") for n in range(runs)]
                for handle in handles:
                    await handle.began()
                await asyncio.to_thread(meanwhile)
                self.go_on.set()
                ends = await asyncio.gather(
                    *(handle.result() for handle in handles), return_exceptions=True
                )
                return {
                    handle.run_id: end if isinstance(end, BaseException) else end.status
                    for handle, end in zip(handles, ends, strict=True)
                }

        return asyncio.run(main())

    def some_ttls(self, number: float = 3) -> None:
        time.sleep(number * TTL_MS / 1000)


def test_many_runs_are_renewed_in_few_units() -> None:
    bench = Bench()
    ends = bench.play(MANY, bench.some_ttls)
    assert set(ends.values()) == {"ok"}
    assert max(bench.batches) > MANY // 2
    # One unit at each third, and the stragglers of the start: not one call for each run.
    assert bench.calls["renew_all"] + bench.calls["renew"] < MANY
    assert bench.kinds().count("lease.renewed") >= MANY * 5
    assert "revive" not in bench.calls


def test_a_store_that_renews_one_at_a_time_keeps_its_runs() -> None:
    bench = Bench("renew_all")
    ends = bench.play(12, bench.some_ttls)
    assert set(ends.values()) == {"ok"}
    assert bench.calls["renew"] >= 12 * 5
    assert "renew_all" not in bench.calls


def test_a_refusal_among_many_ends_that_run_alone() -> None:
    bench = Bench()

    def meanwhile() -> None:
        bench.store.seize("r003", "successor")
        bench.some_ttls()

    ends = bench.play(9, meanwhile)
    lost = ends.pop("r003")
    assert isinstance(lost, SupersededError)
    assert lost.holder == "successor"
    assert set(ends.values()) == {"ok"}
    assert "lease.lost" in bench.kinds("r003")


def test_leases_that_ran_out_together_are_taken_again() -> None:
    """The machine slept: nobody was there, and every run goes on under its next epoch."""
    bench = Bench()
    asleep = [True]

    def sleeps() -> None:
        if asleep:
            asleep.clear()
            time.sleep(1.2 * TTL_MS / 1000)

    def meanwhile() -> None:
        bench.at_renewal = sleeps
        bench.some_ttls()

    ends = bench.play(9, meanwhile)
    assert set(ends.values()) == {"ok"}
    assert bench.kinds().count("lease.reacquired") >= 9


def test_a_busy_unit_is_tried_again_soon_and_loses_nothing() -> None:
    bench = Bench()
    tries: list[float] = []

    def busy() -> None:
        if len(tries) < 6:
            tries.append(time.monotonic())
            message = "somebody else writes just now"
            raise StoreBusyError(message)

    def meanwhile() -> None:
        bench.at_renewal = busy
        bench.some_ttls()

    ends = bench.play(9, meanwhile)
    assert set(ends.values()) == {"ok"}
    assert bench.kinds().count("store.busy") >= 6
    assert "revive" not in bench.calls


# --- event loops ------------------------------------------------------------------------------


class Blocked:
    """One run whose step blocks its loop, and the engine's limit in times to live."""

    def __init__(self, limit_ttls: float | None, blocked_ttls: float) -> None:
        self.bench = Bench()
        self.limit = None if limit_ttls is None else limit_ttls * TTL_MS / 1000
        self.seconds = blocked_ttls * TTL_MS / 1000
        self.blocked = threading.Event()

    def run(self, *, thread: bool = False) -> tuple[str, int]:
        def block() -> str:
            self.blocked.set()
            time.sleep(self.seconds)
            return "done"

        async def block_the_loop() -> str:
            return block()

        @workflow
        async def blocks(ctx: Context) -> object:
            return await ctx.step("block", block if thread else block_the_loop)

        async def main() -> tuple[str, int]:
            engine = Engine(
                self.bench.stores,
                [blocks],
                observer=self.bench.events.append,
                blocked_loop_limit=self.limit,
            )
            async with engine:
                outcome = await engine.run(blocks, run_id="r")
                return outcome.status, outcome.epoch or 0

        return asyncio.run(main())

    def told(self) -> list[str]:
        return [
            f"{event.kind} {event.detail}".strip()
            for event in self.bench.events
            if event.kind.startswith("loop.")
        ]


def test_a_loop_that_does_not_answer_is_told_of_and_keeps_its_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = Blocked(limit_ttls=None, blocked_ttls=4)
    assert there.run() == ("ok", 1)
    assert there.told()[:1] == ["loop.blocked"]
    assert "loop.blocked given-up" not in there.told()
    assert "has not answered" in caplog.text


def test_what_a_loop_holds_that_does_not_come_back_is_given_up() -> None:
    there = Blocked(limit_ttls=2, blocked_ttls=9)
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(there.run())
        except SupersededError as error:
            ends.append(error.holder)

    thread = threading.Thread(target=run)
    thread.start()
    assert there.blocked.wait(10)
    until = time.monotonic() + 7 * TTL_MS / 1000
    while True:
        info = there.bench.store.get_lease("r")
        assert info is not None
        if not info.live:
            break
        assert time.monotonic() < until, "its lease is renewed still"
        time.sleep(0.01)
    successor = there.bench.store.acquire("r", "successor")
    thread.join(10)
    assert there.told()[:2] == ["loop.blocked", "loop.blocked given-up"]
    assert successor.epoch == 2
    # It learns of it when it comes back; the successor here never renews.
    assert ends in ([None], ["successor"])


def test_a_loop_that_comes_back_after_the_limit_goes_on_where_nobody_came() -> None:
    there = Blocked(limit_ttls=1, blocked_ttls=4)
    assert there.run() == ("ok", 2)
    assert "loop.blocked given-up" in there.told()


def test_a_blocked_step_thread_is_no_blocked_loop() -> None:
    there = Blocked(limit_ttls=1, blocked_ttls=5)
    assert there.run(thread=True) == ("ok", 1)
    assert there.told() == []


CLOSES_ITS_LOOP = """
import asyncio, os, time
from rulvar.core.engine import Engine, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

@workflow
async def waits(ctx):
    return await ctx.step("wait", asyncio.sleep, 600)

store = ReferenceStore(lease_ttl_ms=300)

async def begin():
    engine = Engine(Stores(store, store.transcripts()), [waits])
    for run_id in ("r", "s"):
        assert await engine.start(waits, run_id=run_id).began()
    return engine

loop = asyncio.new_event_loop()
engine = loop.run_until_complete(begin())
tasks = asyncio.all_tasks(loop)
loop.close()
until = time.monotonic() + 20
while any(info.live for info in store.list_leases(None, 10)) and time.monotonic() < until:
    time.sleep(0.01)
print([info.live for info in store.list_leases(None, 10)], flush=True)
os._exit(0)  # what the closed loop has left has no end of its own
"""


def test_what_a_closed_loop_worked_on_is_not_renewed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSES_ITS_LOOP],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[False, False]"
    assert done.stderr.count("its event loop was closed: its lease runs out") == 2


def test_time_in_which_nobody_looked_says_nothing_about_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was stopped for an hour between two looks."""
    now = [1000.0]
    monkeypatch.setattr("rulvar.core.engine.lease.watch.time.monotonic", lambda: now[0])
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, patience=3.0)
    assert watch.silence() == 0
    now[0] += 3600
    assert watch.silence() == 3.0
    now[0] += 1
    assert watch.silence() == 4.0
    loop.run_until_complete(asyncio.sleep(0))
    assert watch.silence() == 0
    loop.close()


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan"), True, "10"])
def test_a_limit_that_cannot_work_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match="blocked_loop_limit"):
        Engine(Bench().stores, blocked_loop_limit=limit)


# --- times to live ----------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_ms", [1, 10, 49])
def test_leases_that_no_keeper_can_keep_alive_are_refused(ttl_ms: int) -> None:
    store = ReferenceStore(lease_ttl_ms=ttl_ms)
    with pytest.raises(ConfigError, match="lease_ttl_ms=50 at least"):
        Engine(Stores(store, store.transcripts()))
    Engine(Stores(store, store.transcripts()), ownership="none")


def test_a_store_whose_calls_wait_longer_than_its_leases_live_is_refused() -> None:
    store = ReferenceStore(lease_ttl_ms=3_000)
    store.busy_timeout_ms = 1_000
    with pytest.raises(ConfigError, match="busy_timeout_ms"):
        Engine(Stores(store, store.transcripts()))
