"""Retention: judged under the lease, and nothing more than was asked for."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from engine_retention_bench import DAY_S, Bench, fails, fine, waits

from rulvar.core.engine import Engine, RetentionPolicy, Worker, workflow
from rulvar.core.errors import (
    ConfigError,
    StoreCorruptError,
    StoreFullError,
)
from rulvar.core.journal import JournalEntry, encode_entry
from rulvar.core.records import JournalRecord
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rulvar.core.engine import Context
    from rulvar.core.testing import StoreCall

# --- the policy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        (RetentionPolicy(older_than=0), ["a", "d", "e", "f"]),
        (RetentionPolicy(older_than=2 * DAY_S), ["a", "d", "e"]),
        (RetentionPolicy(older_than=2 * DAY_S + 0.001), ["a", "d"]),
        (RetentionPolicy(older_than=0, keep_last=1), ["a", "d"]),
        (RetentionPolicy(older_than=0, keep_last=2), ["a"]),
        (RetentionPolicy(older_than=0, statuses=("error",)), ["b"]),
        (RetentionPolicy(older_than=9 * DAY_S), []),
    ],
)
def test_what_a_policy_deletes_and_a_dry_run_says_the_same(
    policy: RetentionPolicy, deleted: list[str]
) -> None:
    bench = Bench()

    async def main() -> None:
        await bench.prepare()
        before = bench.store.snapshot()
        foreseen = await bench.retain(policy, dry_run=True)
        assert bench.store.snapshot() == before
        assert bench.watched.changes() == [], "a dry run acquires nothing either"
        report = await bench.retain(policy)
        assert foreseen.deleted == report.deleted == deleted
        assert (foreseen.matched, report.matched, report.kept) == (len(deleted), len(deleted), {})
        assert bench.left() == [run for run in "abcdef" if run not in deleted]
        assert bench.store.list_leases(None, 9) == []
        refs = {ref.split("/")[0] for ref in bench.store.snapshot().blobs}
        assert refs == set(bench.left())

    asyncio.run(main())


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetentionPolicy(older_than=-0.001),
        lambda: RetentionPolicy(older_than=0, keep_last=-1),
        lambda: RetentionPolicy(older_than=0, statuses=("running",)),
        lambda: RetentionPolicy(older_than=0, statuses=("suspended", "ok")),
        lambda: RetentionPolicy(older_than=0, statuses=()),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


# --- the verdict ------------------------------------------------------------------------------


def test_a_run_that_was_recreated_and_works_since_the_listing_is_not_touched() -> None:
    for how in ("at work", "settled anew", "suspended", "gone"):
        bench = Bench()

        def around(
            call: StoreCall,
            perform: Callable[[], object],
            bench: Bench = bench,
            how: str = how,
        ) -> object:
            if call.method == "acquire" and call.run_id == "a":
                bench.store.delete_whole_run("a")
                asyncio.run(recreate(bench, how))
            return perform()

        async def recreate(bench: Bench, how: str) -> None:
            async with Engine(bench.stores, clock=bench.clock, suspend_after=0) as engine:
                if how == "settled anew":
                    await engine.run(fine, run_id="a")
                elif how != "gone":
                    await engine.run(waits, run_id="a")
            row = bench.store.get_meta("a")
            if how == "at work" and row is not None:
                bench.store.put_meta(replace(row, status="running"))

        async def main(
            bench: Bench = bench, around: Callable[..., object] = around, how: str = how
        ) -> None:
            await bench.prepare()
            bench.watched.around = around
            report = await bench.retain(RetentionPolicy(older_than=3 * DAY_S))
            assert report.deleted == ["d"], how
            assert list(report.kept) == ["a"], how
            if how != "gone":
                assert bench.store.load("a"), how
                assert bench.stores.transcripts.list_refs("a"), how
            assert bench.store.list_leases(None, 9) == []

        asyncio.run(main())


def test_a_run_that_has_come_to_another_end_since_the_listing_is_not_touched() -> None:
    bench = Bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "acquire" and call.run_id == "a":
            bench.store.delete_whole_run("a")
            asyncio.run(recreate())
        return perform()

    async def recreate() -> None:
        async with Engine(bench.stores, clock=bench.clock) as engine:
            assert (await engine.run(fails, run_id="a")).status == "error"

    async def main() -> None:
        await bench.prepare()
        bench.watched.around = around
        report = await bench.retain(RetentionPolicy(older_than=0, statuses=("ok",)))
        assert list(report.kept) == ["a"]
        assert "b" in bench.left(), "the policy takes no failed run, whenever it failed"
        assert bench.store.load("a")

    asyncio.run(main())


@pytest.mark.parametrize("hidden", [(), ("delete_whole_run",)], ids=["whole", "call by call"])
def test_a_stale_retention_takes_nothing_of_its_successors_at_any_store_call(
    hidden: tuple[str, ...],
) -> None:
    """The successor deletes, recreates and works, just before the n-th call about its run."""

    async def overtaken_at(at: int) -> bool:
        bench = Bench()
        await bench.prepare()
        bench.watched = WatchedStores(bench.stores, without=hidden)
        owned = False
        calls = 0
        after: dict[str, object] | None = None

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            nonlocal owned, calls, after
            if call.run_id != "a" or not owned:
                owned = owned or (call.method, call.run_id) == ("acquire", "a")
                return perform()
            calls += 1
            if calls == at:
                lease = bench.store.seize("a", "successor")
                bench.store.delete_whole_run("a", lease=lease)
                asyncio.run(recreate(bench))
                bench.store.acquire("a", "successor")
                after = of_run_a(bench)
            return perform()

        bench.watched.around = around
        report = await bench.retain(RetentionPolicy(older_than=3 * DAY_S))
        if after is None:
            assert report.deleted == ["a", "d"], "nobody came between"
            return False
        assert of_run_a(bench) == after, f"call {at}"
        # Whether it was taken before: only a lost release follows a deletion that has landed.
        assert ("a" in report.kept) != ("a" in report.deleted)
        assert "d" in report.deleted, "the others are none of its business"
        return True

    async def recreate(bench: Bench) -> None:
        async with Engine(bench.stores, clock=bench.clock, owner="successor") as engine:
            await engine.run(fine, run_id="a")
        bench.stores.transcripts.put("a/ckpt/1", b"the successor's")

    at = 1
    while asyncio.run(overtaken_at(at)):
        at += 1
    assert at > (4 if hidden else 3)  # meta, load, and the calls of the deletion


def of_run_a(bench: Bench) -> dict[str, object]:
    snapshot = bench.store.snapshot()
    places: tuple[Mapping[str, object], ...] = (
        snapshot.journals,
        snapshot.rows,
        snapshot.leases,
        snapshot.blobs,
        snapshot.epochs,
    )
    return {
        f"{number}:{key}": value
        for number, place in enumerate(places)
        for key, value in place.items()
        if key.split("/")[0] == "a"
    }


def test_a_parent_stays_while_somebody_works_on_its_child() -> None:
    bench = Bench()

    @workflow
    async def parent(ctx: Context) -> object:
        return await ctx.child("c", fails)

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(parent, run_id="p")).status == "error"
            [child_id] = [m.run_id for m in bench.store.list_runs() if m.parent_run_id == "p"]
            held = bench.store.acquire(child_id, "somebody who retries it")
            policy = RetentionPolicy(older_than=0, statuses=("error",))
            report = await engine.apply_retention(policy)
            assert report.deleted == []
            assert f"the child {child_id!r}" in report.kept["p"]
            assert "held by" in report.kept[child_id]
            bench.store.release(held)
            assert (await engine.apply_retention(policy)).deleted == ["p", child_id]

    asyncio.run(main())


def test_the_newest_are_spared_even_when_they_settle_while_the_listing_goes_on() -> None:
    bench = Bench()
    listings = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal listings
        listings += call.method == "list_runs"
        if call.method == "list_runs" and listings == 2:
            asyncio.run(settle())
        return perform()

    async def settle() -> None:
        async with Engine(bench.stores, clock=bench.clock) as engine:
            await engine.run(fine, run_id="newest")

    async def main() -> None:
        await bench.prepare()
        bench.watched.around = around
        report = await bench.retain(RetentionPolicy(older_than=0, keep_last=1))
        assert report.deleted == ["a", "d"]
        assert "newest" in bench.left()

    asyncio.run(main())


def test_runs_that_cannot_be_judged_are_kept_with_the_reason() -> None:
    bench = Bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "load" and call.run_id == "a":
            message = "an undecodable record"
            raise StoreCorruptError(message, run_id="a", position=1)
        return perform()

    async def main() -> None:
        await bench.prepare()
        bench.store.acquire("d", "somebody")
        alien = JournalEntry(seq=99, kind="note", status="ok", hash_version=99)
        bench.store.append("e", JournalRecord(seq=99, payload=encode_entry(alien)))
        row = bench.store.get_meta("f")
        assert row is not None
        bench.store.put_meta(replace(row, status="cancelled"))
        bench.watched.around = around
        before = bench.store.snapshot()
        foreseen = await bench.retain(RetentionPolicy(older_than=0), dry_run=True)
        report = await bench.retain(RetentionPolicy(older_than=0))
        assert bench.watched.changes() == [], "of none of them a lease was taken"
        assert (foreseen.deleted, foreseen.kept) == (report.deleted, report.kept)
        assert report.deleted == []
        assert report.kept.keys() == {"a", "d", "e", "f"}
        assert "StoreCorruptError" in report.kept["a"]
        assert "'somebody'" in report.kept["d"]
        assert "JournalCompatibilityError" in report.kept["e"]
        assert "audit" in report.kept["f"]
        after = bench.store.snapshot()
        assert (after.journals, after.rows, after.blobs) == (
            before.journals,
            before.rows,
            before.blobs,
        )

    asyncio.run(main())


def test_a_run_that_the_store_does_not_let_go_has_failed_and_hides_no_other() -> None:
    bench = Bench()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method in {"delete", "delete_whole_run"} and call.run_id == "a":
            message = "no room"
            raise StoreFullError(message)
        return perform()

    async def main() -> None:
        await bench.prepare()
        bench.watched.around = around
        report = await bench.retain(RetentionPolicy(older_than=3 * DAY_S))
        assert (report.deleted, report.kept) == (["d"], {})
        assert report.failed == {"a": "StoreFullError: no room"}
        assert bench.store.list_leases(None, 9) == []
        bench.watched.around = lambda _call, perform: perform()
        assert (await bench.retain(RetentionPolicy(older_than=3 * DAY_S))).deleted == ["a"]

    asyncio.run(main())


def test_a_child_is_kept_while_its_parent_may_need_its_outcome() -> None:
    bench = Bench()

    @workflow
    async def parent(ctx: Context) -> object:
        result = await ctx.child("c", fine)
        return [result, await ctx.await_external("ok")]

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(parent, run_id="p")).status == "suspended"
            policy = RetentionPolicy(older_than=0)
            bench.watched.calls.clear()
            foreseen = await engine.apply_retention(policy, dry_run=True)
            report = await engine.apply_retention(policy)
            assert bench.watched.changes() == []
            assert (foreseen.deleted, foreseen.kept) == (report.deleted, report.kept)
            [child_id] = report.kept
            assert "parent 'p' is at work" in report.kept[child_id]
            await engine.cancel("p")
            assert (await engine.apply_retention(policy)).deleted == ["p", child_id]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_retention_interrupted_at_any_store_call_is_finished_by_a_second(landed: bool) -> None:
    async def interrupted_at(at: int) -> bool:
        bench = Bench()
        await bench.prepare()
        bench.watched = WatchedStores(bench.stores, without={"delete_whole_run"})
        calls = 0

        def around(_call: StoreCall, perform: Callable[[], object]) -> object:
            nonlocal calls
            calls += 1
            if calls == at and landed:
                perform()
            if calls >= at:
                message = "the disk is gone"
                raise StoreFullError(message)
            return perform()

        bench.watched.around = around
        policy = RetentionPolicy(older_than=2 * DAY_S)
        with contextlib.suppress(StoreFullError):
            await bench.retain(policy)
        bench.watched.around = lambda _call, perform: perform()
        bench.clock.advance(bench.store.lease_ttl_ms)
        await bench.retain(policy)
        assert bench.left() == ["b", "c", "f"]
        assert {ref[0] for ref in bench.store.snapshot().blobs} == {"b", "c", "f"}
        return calls >= at

    at = 1
    while asyncio.run(interrupted_at(at)):
        at += 1
    assert at > 15


def test_a_worker_applies_its_policy_and_counts() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.prepare()
        async with bench.engine() as engine:
            policy = RetentionPolicy(older_than=2 * DAY_S)
            worker = Worker(engine, poll_interval=0.005, retention=policy)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
        assert report.retained == 3
        assert bench.left() == ["b", "c", "f"]

    asyncio.run(main())


# --- a changed body ---------------------------------------------------------------------------


def test_a_changed_body_is_warned_of_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    @workflow(name="waits")
    async def changed(ctx: Context) -> object:
        return [await ctx.await_external("ok"), "changed"]

    async def main() -> None:
        async with bench.engine() as engine:
            await engine.run(waits, run_id="r")
            await engine.resume("r")
            assert "a different version" not in caplog.text
            await engine.resolve("r", "ok", 1)
        before = bench.store.snapshot()
        strict = Engine(bench.stores, [changed], clock=bench.clock, on_source_change="refuse")
        async with strict as engine:
            with pytest.raises(ConfigError, match="a different version of workflow 'waits'"):
                await engine.resume("r")
        after = bench.store.snapshot()
        assert (after.journals, after.rows) == (before.journals, before.rows)
        assert after.leases == {}
        async with Engine(bench.stores, [changed], clock=bench.clock) as engine:
            assert (await engine.resume("r")).value == [1, "changed"]
        assert "a different version of workflow 'waits'" in caplog.text
        # A run that is over executes nothing: its body does not matter any more.
        over = Engine(bench.stores, [waits], clock=bench.clock, on_source_change="refuse")
        async with over as engine:
            assert (await engine.resume("r")).value == [1, "changed"]
        with pytest.raises(ConfigError, match="on_source_change must be one of"):
            Engine(bench.stores, on_source_change="ignore")  # type: ignore[arg-type]

    asyncio.run(main())
