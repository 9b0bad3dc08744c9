"""Pruning: exact refs of what is complete, under the lease, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from engine_retention_bench import Bench

from rulvar.core.audit import audit_run
from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.calls.turns import Compaction, Continue, Done
from rulvar.core.errors import (
    ConfigError,
    JournalCompatibilityError,
)
from rulvar.core.journal import JournalEntry, encode_entry, read_journal
from rulvar.core.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, PruneReport
    from rulvar.core.testing import StoreCall


def turn(state: object, number: int) -> Continue[object] | Done[object]:
    return Done("over") if number == 3 else Continue([state, number])


def breaks(state: object, number: int) -> Continue[object]:
    if number == 2:
        message = "it breaks"
        raise ValueError(message)
    return Continue(state)


@workflow
async def loops(ctx: Context) -> object:
    compact = Compaction(when=lambda _state, count: count == 2, make=lambda _s, _c: "short")
    ended = await ctx.turns("done", turn, [], compact=compact)
    with contextlib.suppress(Exception):
        await ctx.turns("broken", breaks, [])
    await ctx.await_external("ok")
    return ended.result


async def looped(bench: Bench, *run_ids: str) -> None:
    async with Engine(bench.watched, [loops], clock=bench.clock, suspend_after=0) as engine:
        for run_id in run_ids:
            assert (await engine.run(loops, run_id=run_id)).status == "suspended"


def test_pruning_deletes_exactly_what_completed_turns_left() -> None:
    bench = Bench()

    async def main() -> None:
        await looped(bench, "r", "r.", "r0", "rr")
        before = bench.store.snapshot().blobs
        seqs = {e.key: e.seq for e in entries(bench) if e.kind == "turns" and e.ref is None}
        bench.stores.transcripts.put(f"r/ckpt/{seqs['done']}0", b"another's")
        # Made before the loop started over: its answer does not name it.
        bench.stores.transcripts.put(f"r/summary/{seqs['done']}/1", b"another try's")
        async with bench.engine() as engine:
            report = await engine.prune_run("r")
            gone = {f"r/ckpt/{seqs['done']}", f"r/summary/{seqs['done']}/2"}
            gone.add(f"r/summary/{seqs['done']}/1")
            assert set(report.deleted) == gone
            assert f"r/ckpt/{seqs['broken']}" in bench.store.snapshot().blobs
            expected = {ref: blob for ref, blob in before.items() if ref not in gone}
            expected[f"r/ckpt/{seqs['done']}0"] = b"another's"
            assert bench.store.snapshot().blobs == expected
            assert (await engine.prune_run("r")).deleted == ()
            with pytest.raises(ConfigError, match="never began"):
                await engine.prune_run("unknown")
        async with Engine(bench.watched, [loops], clock=bench.clock, suspend_after=0) as engine:
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

    def fails(state: object, number: int) -> Continue[object] | Done[object]:
        if number == 4 and broken:
            message = "it breaks"
            raise ValueError(message)
        return Done("over") if number == 5 else Continue([state, number])

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
            assert (await engine.retry("r")).value == "over"
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
