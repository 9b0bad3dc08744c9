"""The engine decides once per store what takes a lease, and old stores keep working."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, SupersededError
from rulvar.core.memory import MemoryStores
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.stores import StorePair


@workflow
async def job(ctx: Context) -> object:
    value = await ctx.step("a", lambda: 1)
    return [value, await ctx.await_external("k")]


async def through(stores: StorePair, *, lease_ttl: float | None = None) -> RunOutcome:
    async with Engine(stores, [job], suspend_after=0, lease_ttl=lease_ttl) as engine:
        assert (await engine.run(job, run_id="r")).status == "suspended"
        await engine.resolve("r", "k", 2)
        outcome = await engine.resume("r")
        await engine.run(job, run_id="s")
        cancelled = await engine.cancel("s")
        assert cancelled is not None
        await engine.delete_run("s")
        return outcome


def reference() -> tuple[ReferenceStore, Stores]:
    store = ReferenceStore(clock=ManualClock())
    return store, Stores(store, store.transcripts())


def test_the_in_memory_stores_work_without_a_lease() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = MemoryStores()
    stores = WatchedStores(inner)
    assert asyncio.run(through(stores)).value == [1, 2]
    assert not any("lease" in call.keywords for call in stores.calls)


def test_a_leasable_store_without_the_marker_gets_the_lease_where_it_takes_one() -> None:
    store, pair = reference()
    stores = WatchedStores(pair, without={"fenced_writes", "delete_whole_run", "revive"})
    assert asyncio.run(through(stores)).value == [1, 2]
    for call in stores.changes():
        if call.method in {"append", "put_meta", "delete", "put"}:
            assert ("lease" in call.keywords) == (call.method == "append"), str(call)
    assert store.list_leases(None, 1) == []


def test_a_store_without_leases_gets_none() -> None:
    _store, pair = reference()
    stores = WatchedStores(pair, without={"acquire", "delete_whole_run"})
    assert asyncio.run(through(stores)).value == [1, 2]
    assert not any("lease" in call.keywords for call in stores.calls)
    assert not {"renew", "release", "revive"} & {call.method for call in stores.calls}


def test_a_store_without_any_capability_works() -> None:
    _store, pair = reference()
    hidden = {"acquire", "get_meta", "load_after", "list_leases", "delete_whole_run"}
    stores = WatchedStores(pair, without=hidden | {"fenced_writes", "lease_ttl_ms"})
    assert asyncio.run(through(stores)).value == [1, 2]


def test_a_host_may_decide_to_go_without_unless_it_is_forbidden() -> None:
    _store, pair = reference()
    stores = WatchedStores(pair)

    async def main() -> None:
        async with Engine(stores, [job], ownership="none", suspend_after=0) as engine:
            await engine.run(job, run_id="r")

    asyncio.run(main())
    assert not any(call.lease for call in stores.calls)
    with pytest.raises(ConfigError, match="require_lease"):
        Engine(stores, ownership="none", require_lease=True)
    with pytest.raises(ConfigError, match="require_lease"):
        Engine(WatchedStores(pair, without={"acquire"}), require_lease=True)
    with pytest.raises(ConfigError, match="ownership"):
        Engine(stores, ownership="maybe")  # type: ignore[arg-type]


def test_a_store_that_does_not_say_how_long_its_leases_live_must_be_told() -> None:
    _store, pair = reference()
    silent = WatchedStores(pair, without={"lease_ttl_ms"})
    with pytest.raises(ConfigError, match="lease_ttl"):
        Engine(silent)
    assert asyncio.run(through(silent, lease_ttl=60)).value == [1, 2]
    with pytest.raises(ConfigError, match="60000"):
        Engine(pair, lease_ttl=0.005)


def test_two_databases_cannot_fence_each_other() -> None:
    first, _ = reference()
    second, _ = reference()
    with pytest.raises(ConfigError, match="fenc"):
        Engine(Stores(first, second.transcripts()))


def test_a_seized_run_is_lost_also_where_only_appends_are_fenced() -> None:
    store, pair = reference()

    @workflow
    async def loses(ctx: Context) -> None:
        await ctx.step("a", store.seize, "r", "successor")

    async def main() -> None:
        stores = WatchedStores(pair, without={"fenced_writes", "delete_whole_run"})
        async with Engine(stores, [loses]) as engine:
            with pytest.raises(SupersededError):
                await engine.run(loses, run_id="r")

    asyncio.run(main())
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "running", "its settle was refused, so its row is not written"


def test_another_run_under_the_same_id_is_refused() -> None:
    _store, pair = reference()

    @workflow
    async def other(_ctx: Context, args: int = 0) -> int:
        return args

    async def main() -> None:
        async with Engine(pair, [job, other], suspend_after=0) as engine:
            await engine.run(other, 1, run_id="r")
            assert (await engine.run(other, 1, run_id="r")).value == 1
            for wrong in (2, None):
                with pytest.raises(ConfigError, match="other arguments"):
                    await engine.run(other, wrong, run_id="r")
            with pytest.raises(ConfigError, match="other arguments"):
                await engine.run(other, run_id="r")
            with pytest.raises(ConfigError, match="workflow"):
                await engine.run(job, run_id="r")

    asyncio.run(main())
