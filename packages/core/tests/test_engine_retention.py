"""Retention and pruning: judged under the lease, exact, and nothing more than was asked for."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.audit import audit_run
from rulvar.core.engine import Engine, RetentionPolicy, Worker, workflow
from rulvar.core.engine.turns import Compaction, Done, GoOn
from rulvar.core.errors import (
    ConfigError,
    JournalCompatibilityError,
    StoreCorruptError,
    StoreFullError,
)
from rulvar.core.journal import JournalEntry, encode_entry, read_journal
from rulvar.core.records import JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, PruneReport, RetentionReport
    from rulvar.core.testing import StoreCall

DAY_MS = 24 * 3600 * 1000


@workflow
async def fine(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


@workflow
async def other(ctx: Context) -> object:
    return await ctx.step("one", lambda: 1)


@workflow
async def fails(ctx: Context) -> object:
    return await ctx.step("none", lambda: 1 // 0)


@workflow
async def waits(ctx: Context) -> object:
    return await ctx.await_external("ok")


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = Stores(self.store, self.store.transcripts())
        self.watched = WatchedStores(self.stores)

    def engine(self) -> Engine:
        known = [fine, other, fails, waits]
        return Engine(self.watched, known, clock=self.clock, linger_ms=0)

    async def prepare(self) -> None:
        """Leave one run of each kind, a day between one and the next."""
        async with self.engine() as engine:
            for run_id, body in (("a", fine), ("b", fails), ("c", waits), ("d", fine), ("e", fine)):
                await engine.run(body, run_id=run_id)
                self.clock.advance(DAY_MS)
            await engine.run(other, run_id="f")
            self.clock.advance(DAY_MS)
        self.watched.calls.clear()

    async def retain(self, policy: RetentionPolicy, *, dry_run: bool = False) -> RetentionReport:
        async with self.engine() as engine:
            return await engine.apply_retention(policy, dry_run=dry_run)

    def left(self) -> list[str]:
        return list(self.store.list_run_ids(None, 99))


# --- the policy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        (RetentionPolicy(older_than_ms=0), ["a", "d", "e", "f"]),
        (RetentionPolicy(older_than_ms=2 * DAY_MS), ["a", "d", "e"]),
        (RetentionPolicy(older_than_ms=2 * DAY_MS + 1), ["a", "d"]),
        (RetentionPolicy(older_than_ms=0, keep_last=1), ["a", "d"]),
        (RetentionPolicy(older_than_ms=0, keep_last=2), ["a"]),
        (RetentionPolicy(older_than_ms=0, statuses=("error",)), ["b"]),
        (RetentionPolicy(older_than_ms=9 * DAY_MS), []),
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
        lambda: RetentionPolicy(older_than_ms=-1),
        lambda: RetentionPolicy(older_than_ms=0, keep_last=-1),
        lambda: RetentionPolicy(older_than_ms=0, statuses=("running",)),
        lambda: RetentionPolicy(older_than_ms=0, statuses=("suspended", "ok")),
        lambda: RetentionPolicy(older_than_ms=0, statuses=()),
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
            async with Engine(bench.stores, clock=bench.clock, linger_ms=0) as engine:
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
            report = await bench.retain(RetentionPolicy(older_than_ms=3 * DAY_MS))
            assert report.deleted == ["d"], how
            assert list(report.kept) == ["a"], how
            if how != "gone":
                assert bench.store.load("a"), how
                assert bench.stores.transcripts.list_refs("a"), how
            assert bench.store.list_leases(None, 9) == []

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
        report = await bench.retain(RetentionPolicy(older_than_ms=0, keep_last=1))
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
        report = await bench.retain(RetentionPolicy(older_than_ms=0))
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


def test_a_child_is_kept_while_its_parent_may_need_its_outcome() -> None:
    bench = Bench()

    @workflow
    async def parent(ctx: Context) -> object:
        result = await ctx.child("c", fine)
        return [result, await ctx.await_external("ok")]

    async def main() -> None:
        async with bench.engine() as engine:
            assert (await engine.run(parent, run_id="p")).status == "suspended"
            policy = RetentionPolicy(older_than_ms=0)
            report = await engine.apply_retention(policy)
            [child_id] = report.kept
            assert "parent 'p' is at work" in report.kept[child_id]
            await engine.cancel("p")
            assert (await engine.apply_retention(policy)).deleted == ["p", child_id]

    asyncio.run(main())


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
        policy = RetentionPolicy(older_than_ms=2 * DAY_MS)
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
            policy = RetentionPolicy(older_than_ms=2 * DAY_MS)
            worker = Worker(engine, poll_interval_ms=5, retention=policy)
            report = await asyncio.wait_for(worker.run(until_idle=True), 20)
        assert report.retained == 3
        assert bench.left() == ["b", "c", "f"]

    asyncio.run(main())


# --- pruning ----------------------------------------------------------------------------------


def turn(state: object, number: int) -> GoOn[object] | Done[object]:
    return Done("over") if number == 3 else GoOn([state, number])


def breaks(state: object, number: int) -> GoOn[object]:
    if number == 2:
        message = "it breaks"
        raise ValueError(message)
    return GoOn(state)


@workflow
async def loops(ctx: Context) -> object:
    compact = Compaction(when=lambda _state, count: count == 2, make=lambda _s, _c: "short")
    ended = await ctx.turns("done", turn, [], compact=compact)
    with contextlib.suppress(Exception):
        await ctx.turns("broken", breaks, [])
    await ctx.await_external("ok")
    return ended.result


async def looped(bench: Bench, *run_ids: str) -> None:
    async with Engine(bench.watched, [loops], clock=bench.clock, linger_ms=0) as engine:
        for run_id in run_ids:
            assert (await engine.run(loops, run_id=run_id)).status == "suspended"


def test_pruning_deletes_exactly_what_completed_turns_left() -> None:
    bench = Bench()

    async def main() -> None:
        await looped(bench, "r", "r.", "r0", "rr")
        before = bench.store.snapshot().blobs
        seqs = {e.key: e.seq for e in entries(bench) if e.kind == "turns" and e.ref is None}
        bench.stores.transcripts.put(f"r/ckpt/{seqs['done']}0", b"another's")
        async with bench.engine() as engine:
            report = await engine.prune_run("r")
            gone = {f"r/ckpt/{seqs['done']}", f"r/summary/{seqs['done']}/2"}
            assert set(report.deleted) == gone
            assert f"r/ckpt/{seqs['broken']}" in bench.store.snapshot().blobs
            expected = {ref: blob for ref, blob in before.items() if ref not in gone}
            expected[f"r/ckpt/{seqs['done']}0"] = b"another's"
            assert bench.store.snapshot().blobs == expected
            assert (await engine.prune_run("r")).deleted == ()
            with pytest.raises(ConfigError, match="never began"):
                await engine.prune_run("unknown")
        async with Engine(bench.watched, [loops], clock=bench.clock, linger_ms=0) as engine:
            await engine.resolve("r", "ok")
            assert (await engine.resume("r")).value == "over"

    asyncio.run(main())


@pytest.mark.parametrize("thread", [False, True], ids=["task", "thread"])
def test_a_run_prunes_itself_under_its_own_lease(thread: bool) -> None:
    bench = Bench()
    reports: list[PruneReport] = []

    async def pruned() -> None:
        reports.append(await engine.prune_run("r"))

    def in_a_thread() -> None:
        asyncio.run(pruned())

    @workflow
    async def prunes(ctx: Context) -> object:
        ended = await ctx.turns("done", turn, [])
        await ctx.step("prune", in_a_thread if thread else pruned)
        return ended.result

    engine: Engine

    async def main() -> None:
        nonlocal engine
        async with Engine(bench.watched, [prunes], clock=bench.clock) as engine:
            assert (await engine.run(prunes, run_id="r")).value == "over"

    asyncio.run(main())
    [report] = reports
    [seq] = [e.seq for e in entries(bench) if e.kind == "turns" and e.ref is None]
    assert report.deleted == (f"r/ckpt/{seq}",)
    changes = bench.watched.changes()
    assert [call.method for call in changes].count("acquire") == 1
    deletions = [call for call in changes if call.method == "delete"]
    [lease] = {call.lease for call in changes if call.method == "append"}
    assert [call.lease for call in deletions] == [lease]


def test_what_a_failed_try_left_is_pruned_once_its_retry_is_complete() -> None:
    bench = Bench()
    broken = True

    def fails(state: object, number: int) -> GoOn[object] | Done[object]:
        if number == 4 and broken:
            message = "it breaks"
            raise ValueError(message)
        return Done("over") if number == 5 else GoOn([state, number])

    @workflow
    async def retried(ctx: Context) -> object:
        compact = Compaction(when=lambda _state, count: count == 2, make=lambda _s, _c: "short")
        return (await ctx.turns("loop", fails, [], compact=compact)).result

    async def main() -> None:
        nonlocal broken
        async with Engine(bench.watched, [retried], clock=bench.clock) as engine:
            assert (await engine.run(retried, run_id="r")).status == "error"
            assert (await engine.prune_run("r")).deleted == ()
            broken = False
            assert (await engine.resume("r", retry_failed=True)).value == "over"
            first, second = (e.seq for e in entries(bench) if e.kind == "turns" and e.ref is None)
            there = {ref for ref in bench.store.snapshot().blobs if "/source" not in ref}
            assert there >= {f"r/ckpt/{first}", f"r/ckpt/{second}", f"r/summary/{first}/2"}
            audited = audit_run(bench.stores, "r")
            assert (audited.verdict, audited.blobs) == ("consistent", ())
            assert set((await engine.prune_run("r")).deleted) == there

    asyncio.run(main())


def entries(bench: Bench) -> list[JournalEntry]:
    return read_journal("r", bench.store.load("r"))


def test_pruning_refuses_a_journal_of_another_generation() -> None:
    bench = Bench()

    async def main() -> None:
        await looped(bench, "r")
        alien = JournalEntry(seq=99, kind="note", status="ok", hash_version=99)
        bench.store.append("r", JournalRecord(seq=99, payload=encode_entry(alien)))
        before = bench.store.snapshot().blobs
        async with bench.engine() as engine:
            with pytest.raises(JournalCompatibilityError):
                await engine.prune_run("r")
        assert bench.store.snapshot().blobs == before
        assert bench.store.list_leases(None, 9) == []

    asyncio.run(main())


def test_pruning_under_a_stale_owner_deletes_nothing_after_the_takeover() -> None:
    async def overtaken_at(at: int) -> bool:
        bench = Bench()
        await looped(bench, "r")
        lease = bench.store.acquire("r", "mine")
        calls, after = 0, None

        def around(_call: StoreCall, perform: Callable[[], object]) -> object:
            nonlocal calls, after
            calls += 1
            if calls == at:
                bench.store.seize("r", "successor")
                after = bench.store.snapshot()
            return perform()

        bench.watched.around = around
        async with bench.engine() as engine:
            with contextlib.suppress(Exception):
                await engine.prune_run("r", lease=lease)
        if after is None:
            assert bench.store.get_lease("r") is not None, "a borrowed lease is not released"
            return False
        assert bench.store.snapshot() == after
        return True

    at = 1
    while asyncio.run(overtaken_at(at)):
        at += 1
    assert at > 4


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
            assert "another text" not in caplog.text
            await engine.resolve("r", "ok", 1)
        before = bench.store.snapshot()
        strict = Engine(bench.stores, [changed], clock=bench.clock, on_changed_body="refuse")
        async with strict as engine:
            with pytest.raises(ConfigError, match="another text of workflow 'waits'"):
                await engine.resume("r")
        after = bench.store.snapshot()
        assert (after.journals, after.rows) == (before.journals, before.rows)
        assert after.leases == {}
        async with Engine(bench.stores, [changed], clock=bench.clock) as engine:
            assert (await engine.resume("r")).value == [1, "changed"]
        assert "another text of workflow 'waits'" in caplog.text
        # A run that is over executes nothing: its body does not matter any more.
        over = Engine(bench.stores, [waits], clock=bench.clock, on_changed_body="refuse")
        async with over as engine:
            assert (await engine.resume("r")).value == [1, "changed"]
        with pytest.raises(ConfigError, match="on_changed_body must be one of"):
            Engine(bench.stores, on_changed_body="ignore")  # type: ignore[arg-type]

    asyncio.run(main())
