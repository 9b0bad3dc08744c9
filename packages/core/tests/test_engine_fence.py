"""A successor seizes the run at every store call of a segment in turn: nothing stale lands."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, SegmentEnded, workflow
from rulvar.core.errors import LeaseHeldError, RunCancelledError, SupersededError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.records import Lease
    from rulvar.core.testing import StoreCall, StoreSnapshot


class Takeover:
    """Lets a successor seize the run just before the call that it waits for."""

    def __init__(self, store: ReferenceStore, due: Callable[[StoreCall], bool]) -> None:
        self.store = store
        self.due = due
        self.lease: Lease | None = None
        self.snapshot: StoreSnapshot | None = None
        self.seen_at_takeover = 0
        self.ran: list[str] = []

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self.lease is None and self.due(call):
            self.lease = self.store.seize("r", "successor")
            self.snapshot = self.store.snapshot()
            self.seen_at_takeover = len(self.ran)
        return perform()


def bench() -> tuple[ReferenceStore, Stores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, Stores(store, store.transcripts()), clock


async def start(stores: WatchedStores, clock: ManualClock, body: Workflow) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.run(body, run_id="r")


def key_is(key: str, *, answer: bool = False) -> Callable[[StoreCall], bool]:
    """Mean the append that opens (or answers) the step of a name."""
    text = f'"key":"{key}"'.encode()
    return lambda call: (
        call.method == "append" and text in call.payload and (b'"ref":' in call.payload) == answer
    )


def test_superseded_at_any_store_call_nothing_stale_lands() -> None:
    at = 1
    landed_first = 0
    while True:
        store, stores, clock = bench()
        takeover = Takeover(store, lambda call, at=at: call.number == at)  # type: ignore[misc]
        watched = WatchedStores(stores, around=takeover)

        @workflow
        async def steps(ctx: Context, takeover: Takeover = takeover) -> object:
            for name in ("a", "b", "c"):
                await ctx.step(name, takeover.ran.append, name)
            return len(takeover.ran)

        error: Exception | None = None
        outcome = None
        try:
            outcome = asyncio.run(start(watched, clock, steps))
        except (SupersededError, LeaseHeldError) as caught:
            error = caught
        if takeover.lease is None:
            break
        assert store.snapshot() == takeover.snapshot, f"the zombie changed something at call {at}"
        call = watched.calls[at - 1]
        if call.method == "release":
            assert outcome is not None, "a lost release is harmless"
            landed_first += 1
        elif call.method == "acquire":
            assert isinstance(error, LeaseHeldError)
            assert error.reason == "held"
            assert takeover.ran == []
        else:
            assert isinstance(error, SupersededError), f"at call {call}: {error!r}"
            assert (error.reason, error.epoch) == ("superseded", 1)
            assert (error.holder, error.holder_epoch) == ("successor", 2)
            # The step whose answer is refused has run; no later one may begin.
            assert len(takeover.ran) - takeover.seen_at_takeover <= (call.changes is False)
        at += 1
    assert landed_first == 1
    assert at > 15


@pytest.mark.parametrize("method", ["load", "get_meta", "list_refs", "put", "put_meta", "append"])
def test_boot_refused_executes_no_step_and_leaves_the_stores_as_they_were(method: str) -> None:
    store, stores, clock = bench()
    takeover = Takeover(store, lambda call: call.method == method)
    watched = WatchedStores(stores, around=takeover)

    @workflow
    async def steps(ctx: Context) -> None:
        await ctx.step("a", takeover.ran.append, "a")

    with pytest.raises(SupersededError):
        asyncio.run(start(watched, clock, steps))
    assert takeover.ran == []
    assert store.snapshot() == takeover.snapshot
    assert store.load("r") == ()


def test_boot_of_a_resume_refused_executes_no_step() -> None:
    store, stores, clock = bench()
    ran: list[str] = []

    @workflow
    async def waits(ctx: Context) -> object:
        await ctx.await_external("k")
        return await ctx.step("a", ran.append, "a")

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock, linger_ms=0) as engine:
            await engine.run(waits, run_id="r")
            await engine.resolve("r", "k", 1)
        takeover = Takeover(store, lambda call: call.method == "put_meta")
        async with Engine(WatchedStores(stores, around=takeover), [waits], clock=clock) as engine:
            with pytest.raises(SupersededError):
                await engine.resume("r")
        assert store.snapshot() == takeover.snapshot

    asyncio.run(main())
    assert ran == []


# --- a refusal is never swallowed -------------------------------------------------------------


async def catches_exception(ctx: Context, ran: list[str]) -> object:
    for name in ("a", "b", "c"):
        try:
            await ctx.step(name, ran.append, name)
        except Exception:  # noqa: BLE001 - what user code does
            ran.append("caught")
    return "fine"


async def catches_base_exception(ctx: Context, ran: list[str]) -> object:
    for name in ("a", "b", "c"):
        try:
            await ctx.step(name, ran.append, name)
        except BaseException:  # noqa: BLE001 - as bad as it gets
            continue
    return "fine"


async def goes_on_in_finally(ctx: Context, ran: list[str]) -> object:
    try:
        await ctx.step("a", ran.append, "a")
        await ctx.step("b", ran.append, "b")
    finally:
        await ctx.step("c", ran.append, "c")
    return "fine"


async def swallows_cancellation(ctx: Context, ran: list[str]) -> object:
    try:
        await ctx.step("a", ran.append, "a")
        await ctx.step("b", ran.append, "b")
    except (asyncio.CancelledError, SegmentEnded):
        pass
    try:
        await asyncio.Event().wait()  # not a call of ours: only a cancellation ends it
    finally:
        try:
            await ctx.step("c", ran.append, "c")
        except BaseException:  # noqa: BLE001 - as bad as it gets
            ran.append("refused")
    return "fine"


async def returns_from_finally(ctx: Context, ran: list[str]) -> object:
    try:
        await ctx.step("a", ran.append, "a")
        await ctx.step("b", ran.append, "b")
    finally:
        return "fine"  # noqa: B012 - swallows what is on its way


async def fails_beside_it(ctx: Context, ran: list[str]) -> object:
    noticed = asyncio.Event()

    async def notices(inner: Context) -> object:
        try:
            return await inner.step("b", ran.append, "b")
        finally:
            noticed.set()

    async def fails(_inner: Context) -> object:
        try:
            await noticed.wait()
        finally:
            message = "a failure of the sibling's own"
            raise ValueError(message)

    await ctx.step("a", ran.append, "a")
    return await ctx.parallel("p", [fails, notices])


@pytest.mark.parametrize(
    "body",
    [
        catches_exception,
        catches_base_exception,
        goes_on_in_finally,
        swallows_cancellation,
        returns_from_finally,
        fails_beside_it,
    ],
)
@pytest.mark.parametrize("answer", [False, True], ids=["opening", "answer"])
@pytest.mark.filterwarnings("ignore:.*'return' in a 'finally'.*:SyntaxWarning")
def test_lost_ownership_ends_as_superseded_whatever_user_code_catches(
    body: Callable[[Context, list[str]], Awaitable[object]],
    answer: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 0.05)
    store, stores, clock = bench()
    takeover = Takeover(store, key_is("b", answer=answer))
    watched = WatchedStores(stores, around=takeover)

    @workflow
    async def run(ctx: Context) -> object:
        return await body(ctx, takeover.ran)

    with pytest.raises(SupersededError) as caught:
        asyncio.run(start(watched, clock, run))
    assert caught.value.reason == "superseded"
    assert store.snapshot() == takeover.snapshot
    assert "c" not in takeover.ran
    assert ("b" in takeover.ran) == answer
    assert takeover.ran.count("caught") == 0, "a refusal is no Exception to user code"
    after = [c for c in watched.changes() if c.method == "append" and b'"key":"b"' in c.payload]
    assert after[-1] is [c for c in watched.changes() if c.method == "append"][-1]


def test_a_body_that_never_obeys_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 0.01)
    store, stores, clock = bench()
    takeover = Takeover(store, key_is("b"))
    let_go = False

    @workflow
    async def deaf(ctx: Context) -> object:
        try:
            await ctx.step("b", lambda: 1)
        finally:
            while not let_go:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
        return "fine"

    async def main() -> None:
        nonlocal let_go
        with pytest.raises(SupersededError):
            await start(WatchedStores(stores, around=takeover), clock, deaf)
        let_go = True

    asyncio.run(main())
    assert store.snapshot() == takeover.snapshot


def test_a_loss_noticed_by_the_keeper_reaches_work_that_calls_nothing() -> None:
    """The store is asked by the renewal alone; the body waits for something else."""
    store = ReferenceStore(lease_ttl_ms=300)
    stores = Stores(store, store.transcripts())
    began = asyncio.Event()
    ended = threading.Event()

    @workflow
    async def waits(ctx: Context) -> None:
        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        await ctx.step("a", work)

    async def main() -> None:
        async with Engine(stores, [waits]) as engine:
            handle = engine.start(waits, run_id="r")
            await began.wait()
            successor = store.seize("r", "successor")
            snapshot = store.snapshot()
            with pytest.raises(SupersededError) as caught:
                await asyncio.wait_for(handle.result(), 5)
            assert caught.value.holder_epoch == successor.epoch
            assert store.snapshot() == snapshot

    asyncio.run(main())
    assert ended.is_set()


# --- calls from inside about its own run --------------------------------------------------------


def test_calls_from_inside_use_the_segments_own_lease() -> None:
    store, stores, clock = bench()
    watched = WatchedStores(stores)
    refused: list[object] = []

    @workflow
    async def asks(ctx: Context) -> object:
        async def answer() -> None:
            await engine.resolve("r", "k", "from inside")

        async def waits(inner: Context) -> object:
            return await inner.await_external("k")

        async def resolves(inner: Context) -> object:
            return await inner.step("resolve", answer)

        [value, _] = await ctx.parallel("p", [waits, resolves])
        for again in (engine.resume("r"), engine.run(asks, run_id="r")):
            try:
                await again
            except LeaseHeldError as error:
                refused.append(error.reason)
        return value

    engine: Engine

    async def main() -> RunOutcome:
        nonlocal engine
        async with Engine(watched, [asks], clock=clock) as engine:
            return await engine.run(asks, run_id="r")

    outcome = asyncio.run(main())
    assert outcome.value == "from inside"
    assert refused == ["held", "held"]
    assert [c.method for c in watched.changes()].count("acquire") == 1
    assert {c.lease for c in watched.changes() if c.method == "append"} == {
        watched.changes()[1].lease
    }
    assert store.list_leases(None, 1) == []


@pytest.mark.parametrize("ask", ["cancel", "delete_run", "resolve", "resume"])
@pytest.mark.parametrize("thread", [False, True], ids=["task", "thread"])
@pytest.mark.parametrize("other_engine", [False, True], ids=["same", "other"])
def test_a_superseded_segment_is_refused_from_inside_and_gets_no_fresh_lease(
    ask: str, thread: bool, other_engine: bool
) -> None:
    store, stores, clock = bench()
    takeover = Takeover(store, lambda _call: False)
    watched = WatchedStores(stores, around=takeover)
    seen: list[type[BaseException]] = []

    @workflow
    async def asks(ctx: Context) -> None:
        def about_itself() -> Awaitable[object]:
            asked = other if other_engine else engine
            if ask == "resolve":
                return asked.resolve("r", "k", 1)
            return getattr(asked, ask)("r")  # type: ignore[no-any-return]

        async def call() -> None:
            takeover.due = lambda _call: True
            takeover(watched.calls[-1], lambda: None)
            store.release(takeover.lease or pytest.fail("no takeover"))
            takeover.snapshot = store.snapshot()  # nobody holds it: a fresh lease would be granted
            try:
                await about_itself()
            except BaseException as error:
                seen.append(type(error))
                raise

        async def parks(inner: Context) -> None:
            await inner.await_external("k")

        async def step(inner: Context) -> None:
            await inner.step("ask", (lambda: asyncio.run(call())) if thread else call)

        await ctx.parallel("p", [parks, step])

    engine: Engine
    other: Engine

    async def main() -> None:
        nonlocal engine, other
        async with (
            Engine(watched, [asks], clock=clock) as engine,
            Engine(watched, [asks], clock=clock) as other,
        ):
            with pytest.raises(SupersededError):
                await engine.run(asks, run_id="r")

    asyncio.run(main())
    assert store.snapshot() == takeover.snapshot
    assert [c.method for c in watched.changes()].count("acquire") == 1


@pytest.mark.parametrize("ask", ["cancel", "delete_run", "resolve", "resume", "run"])
def test_what_is_left_of_a_segment_that_has_ended_may_begin_nothing(ask: str) -> None:
    store, stores, clock = bench()
    watched = WatchedStores(stores)
    left: list[contextvars.Context] = []

    @workflow
    async def leaves(ctx: Context) -> int:
        def keep() -> None:
            left.append(contextvars.copy_context())

        await ctx.step("keep", keep)
        return 1

    async def main() -> None:
        async with Engine(watched, [leaves], clock=clock) as engine:
            await engine.run(leaves, run_id="r")
            before, calls = store.snapshot(), len(watched.calls)

            async def late() -> None:
                if ask == "resolve":
                    await engine.resolve("r", "k", 1)
                elif ask == "run":
                    await engine.run(leaves, run_id="another")
                else:
                    await getattr(engine, ask)("r")

            with pytest.raises(SegmentEnded):
                await asyncio.get_running_loop().create_task(late(), context=left[0])
            assert store.snapshot() == before
            assert len(watched.calls) == calls

    asyncio.run(main())


@pytest.mark.parametrize("thread", [False, True], ids=["task", "thread"])
def test_deleting_a_run_from_inside_ends_it_as_deleted(thread: bool) -> None:
    store = ReferenceStore(lease_ttl_ms=90)
    stores = WatchedStores(Stores(store, store.transcripts()))
    ran: list[str] = []

    @workflow
    async def deletes(ctx: Context) -> None:
        async def delete() -> None:
            await engine.delete_run("r")

        try:
            await ctx.step("delete", (lambda: asyncio.run(delete())) if thread else delete)
        finally:
            # Slow to leave: the keeper would have renewed by now.
            time.sleep(0.1)  # noqa: ASYNC251 - it blocks the loop on purpose
            ran.append("left")
            await ctx.step("after", ran.append, "after")

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(stores, [deletes]) as engine:
            with pytest.raises(RunCancelledError):
                await engine.run(deletes, run_id="r")

    asyncio.run(main())
    assert ran == ["left"]
    assert store.list_run_ids(None, 10) == []
    assert [c.method for c in stores.changes()].count("acquire") == 1


def test_one_run_id_in_two_databases_is_two_runs() -> None:
    store, stores, clock = bench()
    other_store, other_stores, _ = bench()

    @workflow
    async def inner(ctx: Context) -> str:
        return await ctx.step("s", lambda: "inner")

    @workflow
    async def outer(ctx: Context) -> object:
        async def elsewhere() -> object:
            value = (await there.run(inner, run_id="r")).value
            await there.delete_run("r")
            return value

        return await ctx.step("elsewhere", elsewhere)

    there: Engine

    async def main() -> RunOutcome:
        nonlocal there
        async with (
            Engine(stores, [outer], clock=clock) as here,
            Engine(other_stores, [inner]) as there,
        ):
            return await here.run(outer, run_id="r")

    assert asyncio.run(main()).value == "inner"
    assert read_journal("r", store.load("r"))[-1].kind == "decision"
    assert other_store.load("r") == ()
