"""Deaths that count: what a boot makes of predecessors that ended without a word."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from rulvar.core.audit import audit_run
from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, StoreFullError, SupersededError
from rulvar.core.journal import (
    attempts,
    last_settle,
    open_suspensions,
    read_journal,
    recovered_of,
    recoveries,
    structure,
    works_after,
)
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta
    from rulvar.core.testing import StoreCall


FULL = "the disk is full"


class DiedError(BaseException):
    """The process is gone: nothing that it still tries has any effect."""


class Bench:
    """Engines that die, one after the other, over one store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())
        self.ran: list[str] = []
        self.dead = False

    def engine(
        self, *workflows: Workflow, fatal: Callable[[StoreCall], bool] | None = None
    ) -> Engine:
        """Make an engine whose process can die, also before or at a store call."""

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            if fatal is not None and fatal(call):
                self.dead = True
            if self.dead:
                raise DiedError
            return perform()

        self.dead = False
        pair = WatchedStores(self.pair, around=around)
        return Engine(
            pair, workflows, clock=self.clock, suspend_after=0, owner=f"box:{len(self.ran)}"
        )

    def die(self) -> str:
        """What a step does that kills its process."""
        self.ran.append("bomb")
        self.dead = True
        raise DiedError

    async def life(
        self,
        flow: Workflow,
        *,
        fatal: Callable[[StoreCall], bool] | None = None,
        run_id: str = "r",
    ) -> RunOutcome | None:
        """Start or resume the run in one process; None when that died."""
        engine = self.engine(flow, fatal=fatal)
        outcome = None
        with contextlib.suppress(DiedError):
            outcome = await engine.run(flow, run_id=run_id)
        with contextlib.suppress(DiedError):
            await engine.aclose()
        if self.dead:
            outcome = None
            self.clock.advance(self.store.lease_ttl_ms)
        return outcome

    @property
    def row(self) -> RunMeta:
        row = self.store.get_meta("r")
        assert row is not None
        return row

    @property
    def entries(self) -> list[JournalEntry]:
        return read_journal("r", self.store.load("r"))

    @property
    def told(self) -> list[tuple[int, int | None]]:
        """Count and segment of every death that is journalled."""
        found = map(recovered_of, self.entries)
        return [(death.count, death.segment) for death in found if death is not None]


def bomb(bench: Bench, *, before: int = 0, max_recoveries: int | None = 10) -> Workflow:
    @workflow(name="bomb", max_recoveries=max_recoveries)
    async def body(ctx: Context) -> str:
        for number in range(before):
            await ctx.step(f"s{number}", bench.ran.append, f"s{number}")
        await ctx.step("boom", bench.die)
        return "never"

    return body


def test_a_death_is_journalled_before_the_body_is_entered_and_so_is_each_attempt() -> None:
    bench = Bench()
    flow = bomb(bench)

    async def main() -> None:
        for _ in range(4):
            assert await bench.life(flow) is None

    asyncio.run(main())
    kinds = [(e.kind, e.key, e.value) for e in bench.entries[1:]]
    assert [kind for kind, _, _ in kinds] == [
        "step",
        *["decision", "attempt"] * 3,
    ]
    assert [value for kind, _, value in kinds if kind == "attempt"] == [
        {"seq": 1, "attempt": 2},
        {"seq": 1, "attempt": 3},
        {"seq": 1, "attempt": 4},
    ]
    assert attempts(bench.entries) == {1: 4}
    assert bench.told == [(1, 1), (2, 2), (3, 3)]
    last = recoveries(bench.entries)[-1]
    assert last.under_way == ("step boom",)
    assert bench.row.recoveries == 3
    assert bench.ran == ["bomb"] * 4


def test_after_max_recoveries_the_run_settles_exhausted_with_its_witnesses() -> None:
    bench = Bench()
    flow = bomb(bench, before=1, max_recoveries=3)

    async def main() -> RunOutcome | None:
        for _ in range(4):
            assert await bench.life(flow) is None
        first = await bench.life(flow)
        again = await bench.life(flow)
        assert first is not None
        assert again is not None
        assert (first.status, first.error) == (again.status, again.error)
        return first

    outcome = asyncio.run(main())
    assert outcome is not None
    assert bench.ran == ["s0", *["bomb"] * 4], "once, and as often again as it may be recovered"
    assert outcome.status == "exhausted"
    assert outcome.error is not None
    assert "step boom" in outcome.error.message
    settle = last_settle(bench.entries)
    assert settle is not None
    assert settle.status == "exhausted"
    assert settle.error is not None
    data = settle.error["data"]
    assert isinstance(data, dict)
    assert [(w["segment"], w["underWay"]) for w in data["witnesses"]] == [
        (1, ["step boom"]),
        (2, ["step boom"]),
        (3, ["step boom"]),
        (4, ["step boom"]),
    ]
    assert (bench.row.status, bench.row.recoveries, bench.row.wake_at) == ("exhausted", 4, None)
    assert audit_run(bench.pair, "r").verdict == "consistent"


def test_the_start_says_how_often_its_own_run_may_be_recovered() -> None:
    bench = Bench()
    flow = bomb(bench, max_recoveries=None)

    async def main() -> list[str | None]:
        engine = bench.engine(flow)
        with pytest.raises(ConfigError, match="max_recoveries"):
            engine.start(flow, max_recoveries=-1)
        with contextlib.suppress(DiedError):
            await engine.run(flow, run_id="r", max_recoveries=0)
        with contextlib.suppress(DiedError):
            await engine.aclose()
        bench.clock.advance(bench.store.lease_ttl_ms)
        outcome = await bench.life(flow)
        return [None if outcome is None else outcome.status]

    assert asyncio.run(main()) == ["exhausted"]
    assert bench.ran == ["bomb"]


def test_without_a_limit_a_run_is_recovered_for_ever() -> None:
    bench = Bench()
    flow = bomb(bench, max_recoveries=None)

    async def main() -> None:
        for _ in range(15):
            assert await bench.life(flow) is None

    asyncio.run(main())
    assert bench.row.recoveries == 14


@pytest.mark.parametrize("bad", [-1, True, "3", 1.5])
def test_a_limit_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="max_recoveries"):
        workflow(max_recoveries=bad)(body_of_nothing)


async def body_of_nothing(ctx: Context) -> None: ...


def test_a_new_answer_begins_the_count_anew_in_journal_and_row() -> None:
    bench = Bench()
    deaths = iter([True, True, False, True, False])

    @workflow(name="flaky")
    async def flaky(ctx: Context) -> str:
        for name in ("a", "b"):
            await ctx.step(name, sometimes)
        return "done"

    def sometimes() -> None:
        bench.ran.append("x")
        if next(deaths):
            bench.dead = True
            raise DiedError

    async def main() -> list[int | None]:
        seen: list[int | None] = []
        while True:
            outcome = await bench.life(flaky)
            seen.append(bench.row.recoveries)
            if outcome is not None:
                assert outcome.status == "ok"
                return seen

    # Two deaths in a; then a is answered, and b dies once.
    assert asyncio.run(main()) == [0, 1, 0, 0]
    assert bench.told == [(1, 1), (2, 2), (1, 3)]


def test_the_row_is_told_of_an_answer_at_once() -> None:
    """Another worker is not to leave it for last: it has got something done."""
    bench = Bench()
    flow = bomb(bench)
    counts: list[int | None] = []

    @workflow(name="bomb")
    async def mended(ctx: Context) -> str:
        await ctx.step("boom", lambda: None)
        counts.append(bench.row.recoveries)
        return "mended"

    async def main() -> None:
        for _ in range(3):
            await bench.life(flow)
        outcome = await bench.life(mended)
        assert outcome is not None
        assert outcome.status == "ok"

    asyncio.run(main())
    assert counts == [0]
    assert bench.row.recoveries == 0


def test_fifty_orderly_stops_leave_the_count_at_nothing() -> None:
    bench = Bench()
    begun = asyncio.Event()

    @workflow
    async def long(ctx: Context) -> None:
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        await ctx.step("s", work)

    async def main() -> None:
        for number in range(50):
            begun.clear()
            async with bench.engine(long) as engine:
                handle = engine.start(long, run_id="r")
                await asyncio.wait_for(begun.wait(), 10)
                if number % 2:
                    handle.detach()
                    assert (await handle.result()).status == "running"
            assert (bench.row.stopped, bench.row.status) == (number + 1, "running")
            assert bench.store.list_leases(None, 9) == []

    asyncio.run(main())
    assert bench.told == []
    assert bench.row.recoveries == 0
    assert attempts(bench.entries) == {1: 50}


@pytest.mark.parametrize("method", ["acquire", "load", "append", "put_meta"])
def test_fifty_losses_before_the_body_began_leave_the_count_where_it_was(method: str) -> None:
    """The first death is told once, however often what follows it dies before the body."""
    bench = Bench()
    flow = bomb(bench)

    async def main() -> None:
        await bench.life(flow)
        for _ in range(50):
            assert await bench.life(flow, fatal=lambda call: call.method == method) is None

    asyncio.run(main())
    assert bench.ran == ["bomb"]
    assert bench.told == ([(1, 1)] if method == "put_meta" else [])
    assert bench.row.segments == 1
    outcome = asyncio.run(bench.life(flow))
    assert outcome is None
    assert bench.told == [(1, 1)]
    assert bench.row.recoveries == 1


def test_a_death_over_a_settled_run_is_not_counted() -> None:
    bench = Bench()

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("go")

    async def main() -> None:
        # The settle has landed, the row has not.
        seen = iter([False, True])
        await bench.life(waits, fatal=lambda call: call.method == "put_meta" and next(seen, False))
        assert bench.row.status == "running"
        for _ in range(3):
            await bench.life(waits, fatal=lambda call: call.method == "put_meta")
        await bench.life(waits)

    asyncio.run(main())
    assert bench.told == []


def test_a_segment_that_the_store_has_failed_is_no_death() -> None:
    """Its process lives: it gives the run back in order."""
    bench = Bench()
    fails = True

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if fails and call.method == "append" and b'"kind":"step"' in call.payload:
            raise StoreFullError(FULL)
        return perform()

    @workflow
    async def steps(ctx: Context) -> str:
        await ctx.step("a", lambda: None)
        return "done"

    async def main() -> RunOutcome:
        nonlocal fails
        watched = WatchedStores(bench.pair, around=around)
        for number in range(12):
            engine = Engine(watched, [steps], clock=bench.clock)
            async with engine:
                with pytest.raises(StoreFullError):
                    await engine.run(steps, run_id="r")
            assert (bench.row.stopped, bench.row.recoveries) == (number + 1, 0)
        fails = False
        async with Engine(watched, [steps], clock=bench.clock) as engine:
            return await engine.resume("r")

    assert asyncio.run(main()).status == "ok"
    assert bench.told == []


def test_a_superseded_segment_writes_no_word_of_its_end() -> None:
    bench = Bench()
    begun = asyncio.Event()

    @workflow
    async def long(ctx: Context) -> None:
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        await ctx.step("s", work)

    async def main() -> None:
        async with bench.engine(long) as engine:
            handle = engine.start(long, run_id="r")
            await begun.wait()
            bench.store.seize("r", "successor")
            frozen = bench.store.snapshot()
            handle.detach()
            with pytest.raises(SupersededError):
                await handle.result()
            assert bench.store.snapshot() == frozen

    asyncio.run(main())


def test_no_entry_about_deaths_is_work_of_a_body() -> None:
    bench = Bench()
    flow = bomb(bench)

    async def main() -> None:
        for _ in range(3):
            await bench.life(flow)

    asyncio.run(main())
    entries = bench.entries
    opening = entries[1]
    assert [call.seq for call in structure(entries).dangling] == [opening.seq]
    assert open_suspensions(entries) == []
    assert not works_after(entries, opening.seq)
    assert not structure(entries).moved_on(entries, opening.seq)
    assert audit_run(bench.pair, "r").verdict == "consistent"


def test_a_retry_of_an_exhausted_run_begins_the_count_anew() -> None:
    bench = Bench()
    flow = bomb(bench, max_recoveries=1)

    @workflow(name="bomb")
    async def mended(ctx: Context) -> str:
        await ctx.step("boom", bench.ran.append, "mended")
        return "mended"

    async def main() -> list[tuple[str, object]]:
        for _ in range(3):
            await bench.life(flow)
        assert (bench.row.status, bench.row.recoveries) == ("exhausted", 2)
        async with bench.engine(mended) as engine:
            again = await engine.resume("r")
            assert again.status == "exhausted"
            done = await engine.retry("r")
            return [(done.status, done.value)]

    assert asyncio.run(main()) == [("ok", "mended")]
    assert bench.ran == ["bomb", "bomb", "mended"]
    assert (bench.row.recoveries, recoveries(bench.entries)) == (0, [])


def test_whoever_is_cancelled_while_it_begins_has_let_the_run_go_in_order() -> None:
    """A program that ends while a run begins enters no body: that is no death."""
    bench = Bench()
    go_on = threading.Event()
    tasks: list[asyncio.Task[object]] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        answer = perform()
        if call.method == "append" and not tasks[0].cancelling():
            loops[0].call_soon_threadsafe(tasks[0].cancel)
            loops[0].call_soon_threadsafe(go_on.set)
            assert go_on.wait(10)
        return answer

    loops: list[asyncio.AbstractEventLoop] = []

    @workflow
    async def never(ctx: Context) -> None:
        bench.ran.append(f"entered by segment {ctx.segment}")

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        engine = Engine(WatchedStores(bench.pair, around=around), [never], clock=bench.clock)
        handle = engine.start(never, run_id="r")
        tasks.append(cast("asyncio.Task[object]", handle._task))
        with contextlib.suppress(asyncio.CancelledError):
            await handle._task
        await engine.aclose()

    asyncio.run(main())
    assert bench.ran == []
    assert (bench.row.status, bench.row.stopped) == ("running", 1)
