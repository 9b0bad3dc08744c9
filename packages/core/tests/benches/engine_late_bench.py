"""Runs that are lost to a successor while calls of theirs are under way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rulvar.core.engine import SegmentEnded
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.engine import Engine


def bench() -> tuple[ReferenceStore, Stores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, Stores(store, store.transcripts()), clock


def lose(store: ReferenceStore, engine: Engine) -> None:
    """Let a successor take the run, and the keeper notice it at once."""
    store.seize("r", "successor")
    [owned] = [owned for owned in engine.runtime.renewer._kept if owned.run_id == "r"]
    owned.renew()


async def hold_on(call: object) -> None:
    """Let a call go on in a task of its own, which nobody cancels, to its very end."""
    assert asyncio.iscoroutine(call)
    task = asyncio.create_task(call)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError, SegmentEnded):
            await asyncio.shield(task)
    assert isinstance(task.exception(), SegmentEnded)
