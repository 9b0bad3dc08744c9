"""One writer: each store call of a segment carries its lease; busy, unknown and full differ."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    JournalOrderViolation,
    OutcomeUnknownError,
    StoreBusyError,
    StoreFullError,
)
from rulvar.core.records import JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.testing import StoreCall

MUTATORS = {
    "append",
    "put_meta",
    "delete",
    "put",
    "delete_whole_run",
    "acquire",
    "renew",
    "release",
    "revive",
    "seize",
    "renew_all",
    "raise_epoch",
}


def bench() -> tuple[ReferenceStore, WatchedStores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, WatchedStores(Stores(store, store.transcripts())), clock


@workflow
async def two_steps(ctx: Context) -> object:
    first = await ctx.step("one", lambda: 1)
    return [first, await ctx.step("two", lambda: 2)]


async def run(stores: WatchedStores, clock: ManualClock, body: Workflow = two_steps) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.run(body, run_id="r")


async def resume(
    stores: WatchedStores, clock: ManualClock, body: Workflow = two_steps
) -> RunOutcome:
    async with Engine(stores, [body], clock=clock) as engine:
        return await engine.resume("r")


# --- who may call what --------------------------------------------------------------------------


def engine_modules() -> dict[str, ast.Module]:
    spec = importlib.util.find_spec("rulvar.core.engine")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    found = {path.stem: ast.parse(path.read_text("utf-8")) for path in folder.rglob("*.py")}
    assert "writer" in found
    return found


def store_receivers(tree: ast.Module) -> set[str]:
    """Return the mutators called on something that is a store, by its name."""
    called = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        receiver = ast.unparse(node.func.value)
        store = any(word in receiver for word in ("journal", "transcripts", "store", "_fenced"))
        if node.func.attr in MUTATORS and store and "step_threads" not in receiver:
            called.add(f"{receiver}.{node.func.attr}")
    return called


@pytest.mark.slow
def test_only_the_mutations_module_calls_a_mutating_store_method() -> None:
    found = {name: store_receivers(tree) for name, tree in engine_modules().items()}
    assert len(found.pop("mutations")) >= 10
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.slow
def test_only_the_writer_and_the_ownership_import_the_mutations() -> None:
    importers = set()
    for name, tree in engine_modules().items():
        checked_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(
                "engine.io.mutations"
            ):
                allowed = {"writer", "ownership", "runtime"} if id(node) in checked_only else set()
                if name not in allowed:
                    importers.add(name)
    assert importers == {"engine"}, "the engine makes them; nobody else may have them"


@pytest.mark.slow
def test_the_mutations_are_used_by_the_writer_and_the_ownership_alone() -> None:
    users = set()
    for name, tree in engine_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                owner = node.value.attr.strip("_")
                if owner == "mutations" or (owner in {"calls", "leases"} and node.attr in MUTATORS):
                    users.add(name)
    assert users == {"writer", "ownership"}


# --- the lease rides every call -----------------------------------------------------------------


def test_every_mutation_of_a_segment_carries_its_lease() -> None:
    _store, stores, clock = bench()

    @workflow
    async def everything(ctx: Context) -> object:
        async def branch(inner: Context) -> int:
            return await inner.step("s", lambda: 1)

        await ctx.parallel("p", [branch, branch])
        await ctx.sleep(0)
        await ctx.random()
        return await ctx.await_external("k", timeout=0, default=None)

    assert asyncio.run(run(stores, clock, everything)).status == "ok"
    changes = stores.changes()
    assert [c.method for c in changes[:5]] == ["acquire", "put", "put_meta", "append", "append"]
    assert [c.method for c in changes[-3:]] == ["append", "put_meta", "release"]
    leases = {call.lease for call in changes[1:]}
    assert len(leases) == 1, leases
    assert all("lease" in c.keywords for c in changes if c.method not in {"acquire", "release"})


def test_deletion_and_offline_calls_ride_a_brief_lease() -> None:
    store, stores, clock = bench()

    @workflow
    async def waits(ctx: Context) -> object:
        return await ctx.await_external("k")

    async def main() -> None:
        async with Engine(stores, [waits], clock=clock, suspend_after=0) as engine:
            await engine.run(waits, run_id="r")
            for act in ("resolve", "cancel", "delete_run"):
                stores.calls.clear()
                if act == "resolve":
                    await engine.resolve("r", "k", 1)
                else:
                    await getattr(engine, act)("r")
                changes = stores.changes()
                assert changes[0].method == "acquire"
                assert len(changes) > 1
                assert all(c.lease is not None for c in changes[1:]), [str(c) for c in changes]

    asyncio.run(main())
    assert store.snapshot().journals == {}
    assert store.snapshot().leases == {}


def test_deletion_without_one_transaction_goes_blobs_first_journal_last() -> None:
    store, _, clock = bench()
    stores = WatchedStores(Stores(store, store.transcripts()), without={"delete_whole_run"})
    asyncio.run(run(stores, clock))
    stores.calls.clear()

    async def main() -> None:
        async with Engine(stores, clock=clock) as engine:
            await engine.delete_run("r")

    asyncio.run(main())
    parts = [(c.part, c.method) for c in stores.changes()]
    assert parts == [
        ("journal", "acquire"),
        ("transcripts", "delete"),
        ("journal", "delete"),
    ]
    assert store.snapshot().blobs == {}


def test_an_interrupted_deletion_is_finished_by_running_it_again() -> None:
    store, _, clock = bench()
    stores = WatchedStores(Stores(store, store.transcripts()), without={"delete_whole_run"})
    asyncio.run(run(stores, clock))

    def fails_once(call: StoreCall, perform: Callable[[], object]) -> object:
        if (call.part, call.method) == ("journal", "delete"):
            message = "no room to delete"
            raise StoreFullError(message)
        return perform()

    async def main() -> None:
        async with Engine(stores, clock=clock) as engine:
            stores.around = fails_once
            with pytest.raises(StoreFullError):
                await engine.delete_run("r")
            assert store.load("r"), "the journal goes last"
            assert store.list_leases(None, 1) == []
            stores.around = lambda _call, perform: perform()
            await engine.delete_run("r")

    asyncio.run(main())
    assert store.list_run_ids(None, 10) == []


# --- busy, unknown, full, out of order ----------------------------------------------------------


class Once:
    """Answers the n-th append of a run otherwise."""

    def __init__(self, nth: int, answer: Callable[[Callable[[], object]], object]) -> None:
        self.nth = nth
        self.answer = answer
        self.appends = 0

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "append":
            self.appends += 1
            if self.appends == self.nth:
                return self.answer(perform)
        return perform()


def busy(_perform: Callable[[], object]) -> object:
    message = "busy"
    raise StoreBusyError(message)


def unknown_and_landed(perform: Callable[[], object]) -> object:
    perform()
    message = "who knows"
    raise OutcomeUnknownError(message)


def unknown_and_lost(_perform: Callable[[], object]) -> object:
    message = "who knows"
    raise OutcomeUnknownError(message)


def full(_perform: Callable[[], object]) -> object:
    message = "no room"
    raise StoreFullError(message)


def seqs(store: ReferenceStore) -> list[int]:
    return [record.seq for record in store.load("r")]


def offered(stores: WatchedStores) -> list[int]:
    """Return the seq of every append that was tried."""
    return [
        argument.seq
        for call in stores.calls
        for argument in call.arguments
        if isinstance(argument, JournalRecord)
    ]


@pytest.mark.parametrize("nth", [1, 2, 3, 6])
def test_a_busy_append_is_tried_again_under_the_same_seq(nth: int) -> None:
    store, stores, clock = bench()
    stores.around = Once(nth, busy)
    outcome = asyncio.run(run(stores, clock))
    assert outcome.value == [1, 2]
    assert seqs(store) == [0, 1, 2, 3, 4, 5]
    assert offered(stores).count(nth - 1) == 2


def test_a_busy_append_is_given_up_when_the_lease_has_run_out() -> None:
    store, stores, clock = bench()
    tries = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal tries
        if call.method == "append" and b'"key":"two"' in call.payload:
            tries += 1
            clock.advance(store.lease_ttl_ms // 4)
            busy(perform)
        return perform()

    stores.around = around
    with pytest.raises(StoreBusyError):
        asyncio.run(run(stores, clock))
    assert tries == 4
    assert seqs(store) == [0, 1, 2], "nothing after it, no settle"


@pytest.mark.parametrize("nth", [1, 2, 3, 6])
def test_an_append_of_unknown_outcome_that_landed_is_not_made_twice(nth: int) -> None:
    store, stores, clock = bench()
    stores.around = Once(nth, unknown_and_landed)
    outcome = asyncio.run(run(stores, clock))
    assert outcome.value == [1, 2]
    assert seqs(store) == [0, 1, 2, 3, 4, 5]
    assert offered(stores) == [0, 1, 2, 3, 4, 5]


def test_the_read_after_an_unknown_outcome_waits_for_a_busy_store() -> None:
    store, stores, clock = bench()
    once = Once(3, unknown_and_landed)
    reads = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal reads
        if call.method == "load" and once.appends == 3:
            reads += 1
            if reads == 1:
                busy(perform)
        return once(call, perform)

    stores.around = around
    assert asyncio.run(run(stores, clock)).value == [1, 2]
    assert reads == 2
    assert seqs(store) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("answer", [unknown_and_lost, full])
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_any_other_failed_append_latches_the_segment(
    nth: int, answer: Callable[[Callable[[], object]], object]
) -> None:
    store, stores, clock = bench()
    stores.around = Once(nth, answer)
    wanted = StoreFullError if answer is full else OutcomeUnknownError
    with pytest.raises(wanted):
        asyncio.run(run(stores, clock))
    assert seqs(store) == list(range(nth - 1)), "no later append, no settle"
    assert len(offered(stores)) == nth
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "running", "the row is not written"
    assert store.list_leases(None, 1) == []
    stores.around = lambda _call, perform: perform()
    outcome = asyncio.run(resume(stores, clock))
    assert (outcome.status, outcome.value) == ("ok", [1, 2])


def test_a_full_disk_is_the_result_even_when_the_body_catches_everything() -> None:
    store, stores, clock = bench()
    later: list[str] = []

    @workflow
    async def stubborn(ctx: Context) -> str:
        for name in ("a", "b", "c"):
            try:
                await ctx.step(name, later.append, name)
            except BaseException:  # noqa: BLE001 - as bad as user code gets
                continue
        return "all is well"

    stores.around = Once(3, full)
    with pytest.raises(StoreFullError):
        asyncio.run(run(stores, clock, stubborn))
    assert later == ["a"]
    assert seqs(store) == [0, 1]


def test_a_foreign_append_is_never_overtaken_with_a_higher_seq() -> None:
    store, stores, clock = bench()

    def interferes(perform: Callable[[], object]) -> object:
        store.append("r", JournalRecord(seq=2, payload=b'{"seq":2,"kind":"note"}'))
        return perform()

    stores.around = Once(3, interferes)
    with pytest.raises(JournalOrderViolation):
        asyncio.run(run(stores, clock))
    assert offered(stores) == [0, 1, 2]
    assert seqs(store) == [0, 1, 2]
    assert store.load("r")[2].payload == b'{"seq":2,"kind":"note"}'


def test_appends_of_parallel_branches_go_in_order_one_at_a_time() -> None:
    store, stores, clock = bench()
    under_way = 0
    most = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal under_way, most
        if call.method != "append":
            return perform()
        under_way += 1
        most = max(most, under_way)
        try:
            return perform()
        finally:
            under_way -= 1

    @workflow
    async def wide(ctx: Context) -> object:
        async def branch(inner: Context) -> int:
            return await inner.step("s", lambda: 1)

        return sum(await ctx.parallel("p", [branch] * 20))

    stores.around = around
    assert asyncio.run(run(stores, clock, wide)).value == 20
    assert most == 1
    assert seqs(store) == list(range(44)), "start, settle, and 21 calls with their answers"
