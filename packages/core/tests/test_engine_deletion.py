"""Deletion: finished by a second call wherever it was interrupted, harmless under a stale owner."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    RulvarError,
    StoreCorruptError,
    StoreFullError,
    SupersededError,
)
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rulvar.core.engine import Context
    from rulvar.core.testing import StoreCall, StoreSnapshot

WHOLE = pytest.mark.parametrize(
    "hidden", [(), ("delete_whole_run",)], ids=["in one transaction", "call by call"]
)


@workflow
async def steps(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


class Bench:
    """A run `r` with blobs of its own, and neighbours whose ids begin alike."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.stores, without=hidden)

    NEIGHBOURS = ("r.", "r.1", "r0", "R", "rr")

    def engine(self) -> Engine:
        return Engine(self.watched, [steps], clock=self.clock, owner="stale")

    async def prepare(self) -> None:
        async with self.engine() as engine:
            for run_id in ("r", *self.NEIGHBOURS):
                assert (await engine.run(steps, run_id=run_id)).status == "ok"
        for run_id in ("r", *self.NEIGHBOURS):
            for name in ("ckpt/1", "ckpt/11", "patch"):
                self.stores.transcripts.put(f"{run_id}/{name}", name.encode())
        self.watched.calls.clear()

    def of_neighbours(self) -> list[object]:
        snapshot = self.store.snapshot()
        return [
            {k: v for k, v in part.items() if k.split("/")[0] != "r"}
            for part in (snapshot.journals, snapshot.rows, snapshot.blobs)
        ]

    def traces(self) -> list[str]:
        snapshot = self.store.snapshot()
        places = (snapshot.journals, snapshot.rows, snapshot.leases, snapshot.blobs)
        return [key for place in places for key in place if key.split("/")[0] == "r"]


class FailFrom:
    """Makes the n-th store call and every later one fail, before or after it has landed."""

    def __init__(self, at: int, *, landed: bool) -> None:
        self.at, self.landed, self.calls = at, landed, 0

    def __call__(self, _call: StoreCall, perform: Callable[[], object]) -> object:
        self.calls += 1
        if self.calls == self.at and self.landed:
            perform()
        if self.calls >= self.at:
            message = "the disk is gone"
            raise StoreFullError(message)
        return perform()


@WHOLE
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
def test_a_deletion_interrupted_at_any_store_call_is_finished_by_a_second(
    hidden: tuple[str, ...], landed: bool
) -> None:
    async def interrupted_at(at: int) -> bool:
        bench = Bench(hidden)
        await bench.prepare()
        neighbours = bench.of_neighbours()
        bench.watched.around = fault = FailFrom(at, landed=landed)
        async with bench.engine() as engine:
            with contextlib.suppress(StoreFullError):
                await engine.delete_run("r")
        if bench.store.snapshot().blobs.get("r/source") is not None:
            assert bench.store.load("r"), "the journal goes last"
        bench.watched.around = lambda _call, perform: perform()
        bench.clock.advance(bench.store.lease_ttl_ms)
        async with bench.engine() as engine:
            await engine.delete_run("r")
            assert bench.traces() == []
            assert bench.of_neighbours() == neighbours
            assert bench.store.snapshot().epochs["r"] >= 2, "the tombstone stays"
            again = await engine.run(steps, run_id="r")
        assert again.epoch == bench.store.snapshot().epochs["r"]
        refs = [ref for ref in bench.store.snapshot().blobs if ref.startswith("r/")]
        assert refs == ["r/source"], "a recreated run never sees an old blob"
        return fault.calls >= at

    at = 1
    while asyncio.run(interrupted_at(at)):
        at += 1
    assert at > (8 if hidden else 3)


@WHOLE
def test_a_stale_owners_deletion_takes_nothing_of_its_successors_at_any_store_call(
    hidden: tuple[str, ...],
) -> None:
    """The successor deletes, recreates and works, just before the n-th call of the cascade."""

    async def overtaken_at(at: int) -> bool:
        bench = Bench(hidden)
        await bench.prepare()
        calls = 0
        after: StoreSnapshot | None = None

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            nonlocal calls, after
            if call.method == "acquire":
                return perform()  # before it there is no owner to be overtaken
            calls += 1
            if calls == at:
                lease = bench.store.seize("r", "successor")
                bench.store.delete_whole_run("r", lease=lease)
                asyncio.run(recreate(bench))
                bench.store.acquire("r", "successor")
                after = bench.store.snapshot()
            return perform()

        bench.watched.around = around
        async with bench.engine() as engine:
            if at < 10**6:
                with contextlib.suppress(SupersededError):
                    await engine.delete_run("r")
        if after is None:
            assert bench.traces() == [], "nobody came between: it is gone"
            return False
        assert bench.store.snapshot() == after, f"call {at}"
        return True

    async def recreate(bench: Bench) -> None:
        async with Engine(bench.stores, [steps], clock=bench.clock, owner="successor") as engine:
            await engine.run(steps, run_id="r")
        for name in ("ckpt/1", "ckpt/11", "patch", "new"):
            bench.stores.transcripts.put(f"r/{name}", b"the successor's")

    at = 1
    while asyncio.run(overtaken_at(at)):
        at += 1
    assert at > (6 if hidden else 2)


@WHOLE
@pytest.mark.parametrize("trace", ["journal", "row", "blob"])
def test_a_trace_of_a_run_is_enough_to_delete_it(hidden: tuple[str, ...], trace: str) -> None:
    bench = Bench(hidden)
    if trace == "journal":
        bench.store.append("r", JournalRecord(seq=0, payload=b'{"seq":0}'))
    elif trace == "row":
        bench.store.put_meta(RunMeta(run_id="r", status="ok", updated_at="-"))
    else:
        bench.stores.transcripts.put("r/ckpt/1", b"left")

    async def main() -> None:
        async with bench.engine() as engine:
            await engine.delete_run("r")

    assert bench.traces() != []
    asyncio.run(main())
    assert bench.traces() == []


def test_blobs_that_are_kept_elsewhere_are_deleted_there() -> None:
    """The store's own one transaction knows nothing of them."""
    bench = Bench()
    other = ReferenceStore(clock=bench.clock)
    unfenced = WatchedStores(Stores(other, other.transcripts()), without={"fenced_writes"})
    elsewhere = unfenced.transcripts
    bench.watched = WatchedStores(Stores(bench.store, elsewhere))

    async def main() -> None:
        async with bench.engine() as engine:
            await engine.run(steps, run_id="r")
            assert list(elsewhere.list_refs("r")) == ["r/source"]
            await engine.delete_run("r")

    asyncio.run(main())
    assert list(elsewhere.list_refs("r")) == []
    assert bench.traces() == []
    deletions = [str(c).split(": ")[1] for c in bench.watched.changes() if "delete" in c.method]
    assert deletions == ["transcripts.delete", "journal.delete"]


def test_a_deletion_needs_the_run_and_says_who_has_it() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.prepare()
        held = bench.store.acquire("r", "somebody")
        before = bench.store.snapshot()
        async with bench.engine() as engine:
            with pytest.raises(LeaseHeldError) as refused:
                await engine.delete_run("r")
            assert (refused.value.reason, refused.value.holder) == ("held", "somebody")
            other = bench.store.acquire("rr", "somebody")
            with pytest.raises(ConfigError, match="not 'r'"):
                await engine.delete_run("r", lease=other)
            bench.store.release(other)
            assert bench.store.snapshot().journals == before.journals
            # The caller's own lease is used as it is, and ends with the run.
            bench.watched.calls.clear()
            await engine.delete_run("r", lease=held)
            await engine.delete_run("unknown")
        changes = [c for c in bench.watched.changes() if c.run_id == "r"]
        assert [(c.method, c.lease) for c in changes] == [("delete_whole_run", held)]

    asyncio.run(main())
    assert bench.traces() == []


def test_a_borrowed_lease_that_is_dead_deletes_nothing() -> None:
    bench = Bench(("delete_whole_run",))

    async def main() -> None:
        await bench.prepare()
        dead = bench.store.acquire("r", "me")
        bench.store.seize("r", "successor")
        before = bench.store.snapshot()
        async with bench.engine() as engine:
            with pytest.raises(SupersededError):
                await engine.delete_run("r", lease=dead)
        assert bench.store.snapshot() == before

    asyncio.run(main())


def test_strictness_forbids_a_deletion_without_a_lease() -> None:
    bench = Bench()
    with pytest.raises(ConfigError, match="require_lease"):
        Engine(bench.stores, ownership="none", require_lease=True)
    unleasable = WatchedStores(bench.stores, without={"acquire", "renew", "release"})
    with pytest.raises(ConfigError, match="store without leases"):
        Engine(unleasable, require_lease=True)

    async def main() -> None:
        await bench.prepare()
        strict = Engine(bench.watched, require_lease=True, clock=bench.clock)
        async with strict as engine:
            await engine.delete_run("r")
        async with Engine(bench.watched, ownership="none", clock=bench.clock) as engine:
            await engine.delete_run("rr")
        assert [c.lease is None for c in bench.watched.changes() if "delete" in c.method] == [
            False,
            True,
        ]

    asyncio.run(main())


# --- children ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_a_parent_with_a_live_child_is_not_deleted(damaged: bool) -> None:
    bench = Bench()

    @workflow
    async def asks(ctx: Context) -> object:
        return await ctx.await_external("ok")

    @workflow
    async def parent(ctx: Context) -> object:
        return await ctx.child("c", asks)

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if damaged and call.method == "load" and call.run_id == "p":
            message = "an undecodable record"
            raise StoreCorruptError(message, run_id="p", position=1)
        return perform()

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(parent, run_id="p")).status == "suspended"
            [child_id] = [m.run_id for m in bench.store.list_runs() if m.parent_run_id == "p"]
            held = bench.store.acquire(child_id, "worker")
            before = bench.store.snapshot()
            bench.watched.around = around
            with pytest.raises(LeaseHeldError, match=f"the child '{child_id}'") as refused:
                await engine.delete_run("p")
            assert (refused.value.reason, refused.value.run_id) == ("held", child_id)
            after = bench.store.snapshot()
            assert (after.journals, after.rows, after.blobs) == (
                before.journals,
                before.rows,
                before.blobs,
            )
            bench.store.release(held)
            await engine.delete_run("p")
            assert [m.run_id for m in bench.store.list_runs()] == [child_id]

    asyncio.run(main())


def test_a_parent_is_not_deleted_from_inside_while_a_child_of_it_lives() -> None:
    bench = Bench()
    told: list[object] = []

    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            entered.set()
            await go_on.wait()

        @workflow
        async def busy(ctx: Context) -> None:
            await ctx.step("slow", slow)

        @workflow
        async def parent(ctx: Context) -> object:
            async def child(branch: Context) -> object:
                return await branch.child("c", busy)

            async def deletes(branch: Context) -> None:  # noqa: ARG001
                await entered.wait()
                try:
                    await engine.delete_run("p")
                except RulvarError as error:
                    told.append(error)
                go_on.set()

            return await ctx.parallel("both", [child, deletes])

        async with bench.engine() as engine:
            assert (await engine.run(parent, run_id="p")).status == "ok"

    asyncio.run(main())
    [error] = told
    assert isinstance(error, LeaseHeldError)
    assert str(error.run_id).startswith("p.")
    assert len(bench.store.list_runs()) == 2
