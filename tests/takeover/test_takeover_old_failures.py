"""Three old failures: each happens over stores without the marker, and is refused over the pair.

Without the marker, appends are fenced and everything else is not. So a holder that was
stalled before a row, a blob or a deletion, and woke up after a takeover, still wrote it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core import (
    Continue,
    Done,
    Engine,
    Stores,
    SupersededError,
    Worker,
    assert_fenced_writes,
    has_fenced_writes,
    workflow,
)
from rulvar.core.spi import RunMeta
from rulvar.core.testing import ManualClock, WatchedStores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rulvar.core import Context, Workflow
    from rulvar.core.testing import StoreCall

TTL_MS = 60_000
"""Long in real time, so that no renewal comes between; the clock moves by hand."""

WITHOUT_MARKER = ("fenced_writes", "delete_whole_run")


class Stalled:
    """Stops one store call just before it is made, until it is thawed; in its own thread."""

    def __init__(self, chosen: Callable[[StoreCall], bool]) -> None:
        self._chosen = chosen
        self.reached = threading.Event()
        self.thawed = threading.Event()

    def __call__(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self._chosen(call) and not self.reached.is_set():
            self.reached.set()
            assert self.thawed.wait(30)
        return perform()

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


def dies(_call: StoreCall, _perform: Callable[[], object]) -> object:
    """Stand for a process that is gone: nothing of what it calls happens."""
    raise ConnectionError("this process is gone")  # noqa: EM101, TRY003


class Scene:
    """Two workers on one file, the first with or without the marker, and one clock."""

    def __init__(self, path: Path, *, marker: bool) -> None:
        self.clock = ManualClock()
        self.stores = [SqliteStore(path, lease_ttl_ms=TTL_MS, clock=self.clock) for _ in range(3)]
        pairs = [Stores(store, store.transcripts()) for store in self.stores]
        without = () if marker else WITHOUT_MARKER
        self.stalled = WatchedStores(pairs[0], without=without)
        self.successor = WatchedStores(pairs[1], without=without)
        self.look = assert_fenced_writes(pairs[2])
        assert has_fenced_writes(self.stalled.journal) is marker

    def takeover(self) -> None:
        """Let every lease run out."""
        self.clock.advance(TTL_MS + 1)

    def row(self, run_id: str) -> RunMeta:
        found = self.stores[2].get_meta(run_id)
        assert found is not None
        return found


@pytest.fixture(params=[False, True], ids=["without the marker", "the fenced pair"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    WORLD.reset()
    built = Scene(tmp_path / "runs.db", marker=request.param)
    yield built
    for store in built.stores:
        store.close()


@pytest.fixture
def fenced(request: pytest.FixtureRequest) -> bool:
    return bool(request.node.callspec.params["scene"])


class World:
    """What the order's steps meet outside: a card that may work, and a ship to wait for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.card_works = False
        self.shipping = asyncio.Event()
        self.shipped = asyncio.Event()

    def charge(self) -> str:
        if not self.card_works:
            message = "card refused"
            raise ValueError(message)
        return "charged"

    async def ship(self) -> None:
        self.shipping.set()
        await self.shipped.wait()


WORLD = World()


@workflow
async def order(ctx: Context) -> str:
    charged = await ctx.step("charge", WORLD.charge)
    await ctx.step("ship", WORLD.ship)
    return charged


def test_a_stale_terminal_row_cannot_strand_a_run(scene: Scene, fenced: bool) -> None:
    asyncio.run(a_stale_terminal_row_cannot_strand_a_run(scene, fenced))


async def a_stale_terminal_row_cannot_strand_a_run(scene: Scene, fenced: bool) -> None:
    stalled = Stalled(
        lambda call: any(isinstance(a, RunMeta) and a.status == "error" for a in call.arguments)
    )
    scene.stalled.around = stalled

    # stalled: the first segment has journalled its failure, and is about to write the row.
    async with Engine(scene.stalled, [order], owner="stalled") as engine:
        first = engine.start(order, run_id="order-1")
        await stalled.until_reached()
        scene.takeover()

        # successor: tries the failed run again, and is in the middle of it.
        WORLD.card_works = True
        successor = Engine(scene.successor, [order], owner="successor")
        second = successor.start_retry("order-1")
        await WORLD.shipping.wait()
        assert (scene.row("order-1").status, scene.row("order-1").segments) == ("running", 2)

        # thaw: the row that the first segment had in its hands.
        stalled.thawed.set()
        if fenced:
            with pytest.raises(SupersededError):
                await first.result()
            assert (scene.row("order-1").status, scene.row("order-1").segments) == ("running", 2)
        else:
            assert (await first.result()).status == "error"
            assert (scene.row("order-1").status, scene.row("order-1").segments) == ("error", 1)

    # The successor dies. Whoever looks for work must find the run.
    scene.successor.around = dies
    second.detach()
    await second.wait()
    await successor.aclose()
    scene.takeover()
    WORLD.shipped.set()
    async with Engine(scene.look, [order], owner="third") as engine:
        report = await Worker(engine).run(until_idle=True)
    if fenced:
        assert report.outcomes == {"ok": 1}
        assert scene.row("order-1").status == "ok"
    else:
        assert report.outcomes == {}  # stranded: live work under a terminal row
        assert scene.row("order-1").status == "error"


def agent(who: str, paid: Counter[int], reached: asyncio.Event) -> Workflow:
    """Make a loop of nine turns, as one process has it: two of them get stuck on their way."""
    stuck = {"stalled": 3, "successor": 6}.get(who)

    async def turn(said: list[str], number: int) -> Continue[object] | Done[object]:
        if number == stuck:
            reached.set()
            await asyncio.Event().wait()
        paid[number] += 1
        said = [*said, f"{number} by {who}"]
        return Done(said) if number == 8 else Continue(said)

    @workflow(name="agent")
    async def loop(ctx: Context) -> object:
        return (await ctx.turns("think", turn, [])).result

    return loop


def test_a_stale_checkpoint_cannot_take_a_boot_back(scene: Scene, fenced: bool) -> None:
    asyncio.run(a_stale_checkpoint_cannot_take_a_boot_back(scene, fenced))


async def a_stale_checkpoint_cannot_take_a_boot_back(scene: Scene, fenced: bool) -> None:
    paid: Counter[int] = Counter()
    got_stuck = {who: asyncio.Event() for who in ("stalled", "successor", "third")}
    loops = {who: agent(who, paid, event) for who, event in got_stuck.items()}

    # stalled: has the state after its third turn in its hands.
    stalled = Stalled(lambda call: call.method == "put" and b'"turns":3' in call.payload)
    scene.stalled.around = stalled
    async with Engine(scene.stalled, owner="stalled") as engine:
        first = engine.start(loops["stalled"], run_id="long-talk")
        await stalled.until_reached()
        scene.takeover()

        # successor: continues the same attempt, gets further, and dies.
        successor = Engine(scene.successor, [loops["successor"]], owner="successor")
        second = successor.start_resume("long-talk")
        await got_stuck["successor"].wait()
        scene.successor.around = dies
        second.detach()
        await second.wait()
        await successor.aclose()
        assert paid == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}

        # thaw.
        stalled.thawed.set()
        if fenced:
            with pytest.raises(SupersededError):
                await first.result()
        else:
            await got_stuck["stalled"].wait()  # it has been told nothing, and goes on
    [ref] = [ref for ref in scene.look.transcripts.list_refs("long-talk") if "/ckpt/" in ref]
    kept = scene.look.transcripts.get(ref)
    assert kept is not None
    assert json.loads(kept)["turns"] == (6 if fenced else 3)

    # A later boot of that attempt.
    scene.takeover()
    async with Engine(scene.look, [loops["third"]], owner="third") as engine:
        outcome = await engine.resume("long-talk")
    said = cast("list[str]", outcome.value)
    again = [number for number in range(3, 6) if paid[number] == 2]
    if fenced:
        assert again == []
        assert said[2:6] == [f"{number} by successor" for number in range(2, 6)]
    else:
        assert again == [3, 4, 5]  # paid for twice, and what the first came to is lost
        assert said[2:6] == ["2 by stalled", "3 by third", "4 by third", "5 by third"]


def test_a_stale_deletion_removes_nothing(scene: Scene, fenced: bool) -> None:
    asyncio.run(a_stale_deletion_removes_nothing(scene, fenced))


async def a_stale_deletion_removes_nothing(scene: Scene, fenced: bool) -> None:
    async with (
        Engine(scene.stalled, [order], owner="stalled") as retention,
        Engine(scene.successor, [order], owner="successor") as successor,
    ):
        assert (await retention.run(order, run_id="order-1")).status == "error"

        # stalled: a retention job has judged the failed run, and is about to delete it.
        stalled = Stalled(
            lambda call: call.method in {"delete", "delete_whole_run"} and call.run_id == "order-1"
        )
        scene.stalled.around = stalled
        late = asyncio.create_task(retention.delete_run("order-1"))
        await stalled.until_reached()
        scene.takeover()

        # successor: somebody tries the failed run again.
        WORLD.card_works = True
        second = successor.start_retry("order-1")
        await WORLD.shipping.wait()
        held = scene.look.journal.load("order-1"), scene.look.transcripts.list_refs("order-1")
        assert all(held)

        # thaw.
        stalled.thawed.set()
        if fenced:
            with pytest.raises(SupersededError):
                await late
            now = scene.look.journal.load("order-1"), scene.look.transcripts.list_refs("order-1")
            assert now == held
            WORLD.shipped.set()
            assert (await second.result()).status == "ok"
        else:
            await late
            # The run is gone from under the one who works on it.
            assert list(scene.look.journal.load("order-1")) == []
            assert list(scene.look.transcripts.list_refs("order-1")) == []
            WORLD.shipped.set()
            with pytest.raises(Exception, match="order-1"):
                await second.result()
