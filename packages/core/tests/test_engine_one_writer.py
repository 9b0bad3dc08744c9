"""Whatever an engine does to a run it holds carries that run's lease; there is no other way."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_worktree_bench import git

import rulvar.core.engine
from rulvar.core.audit import reconcile_run_meta
from rulvar.core.engine import (
    Compaction,
    Continue,
    Done,
    Engine,
    RetentionPolicy,
    Worker,
    workflow,
)
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rulvar.core.engine import Context, Workflow
    from rulvar.core.testing import StoreCall

pytestmark = pytest.mark.slow

TTL_MS = 600

# --- every store call of a leased segment -------------------------------------------------------


@workflow
async def quick(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


@workflow
async def asks(ctx: Context) -> object:
    return await ctx.await_external("word")


class World:
    """A workflow that uses everything, the stores below it, and what is told of their calls."""

    def __init__(self, folder: Path, hidden: Collection[str]) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock, lease_ttl_ms=TTL_MS)
        self.pair = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.pair, without=hidden)
        self.repo = folder / "repo"
        self.repo.mkdir()
        git(self.repo, "init", "-q", "-b", "main")
        git(self.repo, "commit", "-q", "--allow-empty", "-m", "first")
        self.broken = True
        self.pruned: list[str] = []

    def engine(self) -> Engine:
        known = [self.everything, quick, asks]
        return Engine(self.watched, known, clock=self.clock, suspend_after=0)

    def fails_once(self) -> None:
        if self.broken:
            self.broken = False
            message = "as it should"
            raise ValueError(message)

    @property
    def everything(self) -> Workflow:
        def turn(state: object, number: int) -> object:
            return Done("over") if number == 3 else Continue(state)

        compact = Compaction(when=lambda _s, turns: turns == 2, make=lambda state, _t: state)

        @workflow(name="everything")
        async def body(ctx: Context) -> object:
            async def branch(inner: Context) -> object:
                return await inner.turns("think", turn, [], compact=compact)

            async def other(inner: Context) -> object:
                return await inner.step("s", lambda: 1)

            await ctx.parallel("p", [branch, other])
            await ctx.worktree("w", self.repo, lambda path: (path / "new").write_text("1"))
            await ctx.child("c", quick)
            await ctx.sleep(0)
            await ctx.now(), await ctx.random(), await ctx.uuid()
            await ctx.await_external("late", timeout=0, default=None)
            await ctx.await_external("word")
            await self.prune(ctx.run_id)
            return await ctx.step("fails", self.fails_once)

        return body

    async def prune(self, run_id: str) -> None:
        report = await self.now.prune_run(run_id)
        self.pruned += report.deleted

    async def story(self) -> None:
        """Begin, suspend, answer, go on, fail, retry; cancel, prune, repair, delete and retain."""
        async with self.engine() as self.now:
            assert (await self.now.run("everything", run_id="r")).status == "suspended"
            await self.now.resolve("r", "word", 1)
            assert (await self.now.resume("r")).status == "error"
        async with self.engine() as self.now:
            outcome = await self.now.retry("r")
            assert outcome.status == "ok"
            await self.now.run(asks, run_id="cancelled")
            await self.now.cancel("cancelled")
            await self.now.run(asks, run_id="live")
            handle = self.now.start_resume("live")
            await handle.resolve("word")
            await handle.result()
            await Worker(self.now).run(until_idle=True)
            assert len(self.pruned) == 2, "a checkpoint and a summary, from the inside"
            await self.now.prune_run("r")
            await self.now.delete_run("live")
            policy = RetentionPolicy(older_than=0, statuses=("cancelled",))
            assert (await self.now.apply_retention(policy)).deleted == ["cancelled"]


def renews(world: World) -> None:
    """Let a segment of another engine hold its run until its keeper has renewed."""
    renewed = asyncio.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            if call.method == "renew":
                loop.call_soon_threadsafe(renewed.set)
            return perform()

        @workflow
        async def waits(ctx: Context) -> object:
            return await ctx.step("waits", renewed.wait)

        world.watched.around = around
        async with Engine(world.watched, [waits], clock=world.clock) as engine:
            assert (await engine.run(waits, run_id="renewed")).value is True

    asyncio.run(main())


def is_repaired(world: World) -> None:
    row = world.store.get_meta("r")
    assert row is not None
    held = world.store.acquire("r", "a process that died before the row")
    world.store.put_meta(type(row)(run_id="r", status="running", updated_at="-"), lease=held)
    world.store.release(held)
    assert reconcile_run_meta(world.watched, "r", clock=world.clock).outcome == "repaired"


@pytest.mark.parametrize(
    "hidden",
    [(), ("delete_whole_run",), ("revive", "get_meta", "load_after", "list_run_ids")],
    ids=["every capability", "deletion call by call", "few capabilities"],
)
def test_every_store_call_that_changes_a_run_carries_the_lease_that_holds_it(
    tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    world = World(tmp_path, hidden)
    asyncio.run(world.story())
    is_repaired(world)
    renews(world)
    changes = world.watched.changes()
    for call in changes:
        if call.method == "acquire":
            continue
        assert call.lease is not None, f"{call} carries no lease"
        assert call.lease.run_id == call.run_id, f"{call} carries another run's lease"
    # That it was the live one, the store has said: it refused nothing.
    seen = Counter((call.part, call.method) for call in changes)
    deletion = {("journal", "delete"), ("transcripts", "delete")}
    if "delete_whole_run" not in hidden:
        deletion = {("journal", "delete_whole_run"), ("transcripts", "delete")}
    assert set(seen) == deletion | {
        ("journal", "acquire"),
        ("journal", "append"),
        ("journal", "put_meta"),
        ("journal", "release"),
        ("journal", "renew"),
        ("transcripts", "put"),
    }
    blobs = {call.arguments[0] for call in changes if call.method == "put"}
    assert {str(ref).split("/")[1] for ref in blobs} == {"source", "ckpt", "summary", "patch"}
    assert any(str(call.run_id).startswith("r.") for call in changes), "the child's, under its own"


# --- nobody else can ----------------------------------------------------------------------------

MUTATORS = frozenset(
    {"append", "put_meta", "delete", "put", "delete_whole_run"}
    | {"acquire", "renew", "release", "revive", "seize", "raise_epoch"}
)
WAYS = frozenset({"journal", "transcripts", "mutations", "leases"})
"""The names by which a store, or the calls that change one, can be had from something."""

ALLOWED: dict[str, set[str]] = {
    "mutations": {"journal", "transcripts"},
    "reads": {"journal", "transcripts"},
    "settings": {"journal", "transcripts"},  # asks what a pair can do
    "writer": {"mutations"},
    "runtime": {"mutations", "leases"},  # hands them to the writer and to the ownership
}
READS_ONLY = ("reads", "settings")


def ways_used(text: str) -> set[str]:
    """Return by which names a module's code has a store, under whatever name it goes on."""
    used = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            used.add(node.attr.strip("_"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value.strip("_"))  # getattr
    return used & WAYS


def mutators_named(text: str) -> set[str]:
    nodes = ast.walk(ast.parse(text))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} & MUTATORS


def engine_modules() -> dict[str, str]:
    folder = Path(str(rulvar.core.engine.__file__)).parent
    return {path.stem: path.read_text("utf-8") for path in folder.rglob("*.py")}


def test_no_other_module_of_the_engine_can_have_a_store() -> None:
    found = {name: ways_used(text) for name, text in engine_modules().items()}
    assert {name: ways for name, ways in found.items() if ways} == ALLOWED
    for name in READS_ONLY:
        assert mutators_named(engine_modules()[name]) == set(), name


@pytest.mark.parametrize(
    "planted",
    [
        "runtime.mutations.put_meta(authority, meta)",
        "mutations = segment.runtime.mutations; mutations.append(authority, run_id, record)",
        "segment.store.call(partial(segment.writer._mutations.put_blob, authority, ref, blob))",
        "stores.journal.put_meta(meta)",
        "write = stores.journal.append",
        "blobs = stores.transcripts",
        "runtime.reads._journal.delete(run_id)",
        "getattr(runtime.reads, '_transcripts').put(ref, blob)",
        "runtime.leases.acquire(run_id, owner)",
    ],
)
def test_a_call_beside_the_writer_would_be_found(planted: str) -> None:
    text = engine_modules()["retention"]
    assert ways_used(text) == set()
    assert ways_used(f"{text}\n{planted}\n") != set()
    assert mutators_named("x.put_meta") == {"put_meta"}
