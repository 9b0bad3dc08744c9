"""What the journal answers is told as replayed, and not as begun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from engine_worktree_bench import git

from rulvar.core.engine import Done, Engine, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.engine import Context, Event

pytestmark = pytest.mark.slow


def test_a_replay_tells_what_it_did_not_perform(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    heard: list[Event] = []

    @workflow
    async def works(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)
        await ctx.worktree("w", tmp_path, lambda _path: None)
        await ctx.turns("t", lambda _state, _number: Done(1), None)
        await ctx.await_external("k")

    async def main() -> None:
        pair = Stores(store, store.transcripts())
        for _ in range(2):
            heard.clear()
            async with Engine(
                pair, [works], clock=clock, suspend_after=0, observer=heard.append
            ) as engine:
                assert (await engine.run(works, run_id="r")).status == "suspended"

    asyncio.run(main())
    calls = ("step", "worktree", "turn")
    told = [(e.kind, e.name, e.seq) for e in heard if e.kind.partition(".")[0] in calls]
    assert told == [("step.replayed", "s", 1), ("worktree.replayed", "w", 3)]
