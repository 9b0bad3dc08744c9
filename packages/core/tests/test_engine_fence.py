"""A successor seizes the run at every store call of a segment in turn: nothing stale lands."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, SegmentEnded, workflow
from rulvar.core.errors import LeaseHeldError, SupersededError
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

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


async def start(
    stores: WatchedStores, clock: ManualClock, body: Workflow, *, lease: Lease | None = None
) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.run(body, run_id="r", lease=lease)


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
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
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


async def gathers_exceptions(ctx: Context, ran: list[str]) -> object:
    for name in ("a", "b", "c"):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(ctx.step(name, ran.append, name), return_exceptions=True)
    return "fine"


async def groups_tasks(ctx: Context, ran: list[str]) -> object:
    for name in ("a", "b", "c"):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step(name, ran.append, name))
        except BaseException:  # noqa: BLE001 - a group of them is as bad
            continue
    return "fine"


async def shields(ctx: Context, ran: list[str]) -> object:
    async def all_of_them() -> None:
        for name in ("a", "b", "c"):
            with contextlib.suppress(SegmentEnded):
                try:
                    await ctx.step(name, ran.append, name)
                except Exception:  # noqa: BLE001 - what user code does
                    ran.append("caught")

    work = asyncio.create_task(all_of_them())  # not the body's task: nobody cancels it
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(work)
    return "fine"


async def takes_its_time(ctx: Context, ran: list[str]) -> object:
    for name in ("a", "b", "c"):
        with contextlib.suppress(TimeoutError, asyncio.CancelledError, SegmentEnded):
            async with asyncio.timeout(60):
                await ctx.step(name, ran.append, name)
    return "fine"


async def generates(ctx: Context, ran: list[str]) -> object:
    async def names() -> AsyncIterator[str]:
        try:
            for name in ("a", "b"):
                yield await ctx.step(name, lambda: name)  # noqa: B023 - called at once
        finally:
            await ctx.step("c", ran.append, "c")

    ran.extend([name async for name in names()])
    return "fine"


@pytest.mark.parametrize(
    "body",
    [
        catches_exception,
        catches_base_exception,
        goes_on_in_finally,
        swallows_cancellation,
        returns_from_finally,
        fails_beside_it,
        gathers_exceptions,
        groups_tasks,
        shields,
        takes_its_time,
        generates,
    ],
)
@pytest.mark.parametrize("answer", [False, True], ids=["opening", "answer"])
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "callers"])
@pytest.mark.filterwarnings("ignore:.*'return' in a 'finally'.*:SyntaxWarning")
def test_lost_ownership_ends_as_superseded_whatever_user_code_catches(
    body: Callable[[Context, list[str]], Awaitable[object]],
    answer: bool,
    borrowed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 0.05)
    store, stores, clock = bench()
    takeover = Takeover(store, key_is("b", answer=answer))
    watched = WatchedStores(stores, around=takeover)

    @workflow
    async def run(ctx: Context) -> object:
        return await body(ctx, takeover.ran)

    lease = store.acquire("r", "caller") if borrowed else None
    refused = False

    async def main() -> None:
        nonlocal refused
        with pytest.raises(SupersededError) as caught:
            await start(watched, clock, run, lease=lease)
        assert caught.value.reason == "superseded"
        refused = "refused" in takeover.ran  # before the end of the loop cancels what is left

    asyncio.run(main())
    assert store.snapshot() == takeover.snapshot
    assert "c" not in takeover.ran
    assert ("b" in takeover.ran) == (answer and body is not generates)
    assert refused == (body is swallows_cancellation), "cancelled once more"
    assert takeover.ran.count("caught") == 0, "a refusal is no Exception to user code"
    after = [c for c in watched.changes() if c.method == "append" and b'"key":"b"' in c.payload]
    assert after[-1] is [c for c in watched.changes() if c.method == "append"][-1]


def test_a_body_that_never_obeys_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 0.01)
    store, stores, clock = bench()
    takeover = Takeover(store, key_is("b"))
    detach = False

    @workflow
    async def deaf(ctx: Context) -> object:
        try:
            await ctx.step("b", lambda: 1)
        finally:
            while not detach:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
        return "fine"

    async def main() -> None:
        nonlocal detach
        with pytest.raises(SupersededError):
            await start(WatchedStores(stores, around=takeover), clock, deaf)
        detach = True

    asyncio.run(main())
    assert store.snapshot() == takeover.snapshot


def test_a_loss_noticed_by_the_keeper_reaches_work_that_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is asked by the renewal alone; the body waits for something else."""
    # Nobody is cancelled a second time: the first cancellation comes at once.
    monkeypatch.setattr("rulvar.core.engine.driver._CANCEL_EVERY_SECONDS", 3_600.0)
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
