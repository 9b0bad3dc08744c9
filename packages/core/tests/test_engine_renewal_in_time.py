"""A lease is renewed in time beside a blocked event loop and a busy store."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    StoreBusyError,
)
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.testing import StoreCall


# --- the keeper -----------------------------------------------------------------------------------


def real_time(around: Callable[[StoreCall, Callable[[], object]], object]) -> WatchedStores:
    store = ReferenceStore(lease_ttl_ms=300)
    return WatchedStores(Stores(store, store.transcripts()), around=around)


@pytest.mark.slow
def test_a_blocked_loop_keeps_its_lease() -> None:
    ran: list[str] = []
    stores = real_time(lambda _call, perform: perform())

    @workflow
    async def blocks(ctx: Context) -> None:
        async def block() -> None:
            ran.append("blocked")
            time.sleep(1.0)  # noqa: ASYNC251 - it blocks the loop on purpose

        await ctx.step("block", block)

    async def main() -> RunOutcome:
        async with Engine(stores, [blocks]) as engine:
            return await engine.run(blocks, run_id="r")

    outcome = asyncio.run(main())
    assert (outcome.status, outcome.epoch, ran) == ("ok", 1, ["blocked"])
    renewals = [call for call in stores.calls if call.method == "renew"]
    assert 5 <= len(renewals) <= 15


def test_busy_renewals_are_tried_again_and_only_a_refusal_means_lost() -> None:
    enough = threading.Event()
    seen: list[str] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "renew":
            seen.append("renew")
            if len(seen) == 1:
                message = "busy"
                raise StoreBusyError(message)
            if len(seen) == 2:
                message = "a store without manners"
                raise RuntimeError(message)
            perform()
            enough.set()
            return None
        return perform()

    stores = real_time(around)

    @workflow
    async def waits(ctx: Context) -> bool:
        return await ctx.step("wait", enough.wait, 5)

    async def main() -> RunOutcome:
        async with Engine(stores, [waits]) as engine:
            return await engine.run(waits, run_id="r")

    outcome = asyncio.run(main())
    assert (outcome.value, outcome.epoch) == (True, 1)
    assert len(seen) >= 3
