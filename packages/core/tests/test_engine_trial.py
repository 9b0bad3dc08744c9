"""A trial tells whether the present code replays a journal, and performs nothing at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.engine import Engine, workflow
from rulvar.core.engine.trial import Trial, try_run
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context

    Body = Callable[[Context], Awaitable[object]]


class Looked:
    """A bench whose store is compared before and after each trial."""

    def __init__(self) -> None:
        self.bench = ReplayBench()

    def everything(self) -> object:
        store = self.bench.store
        blobs = store.transcripts()
        refs = blobs.list_refs("r")
        return (
            dict(self.bench.ran),
            store.load("r"),
            store.list_runs(),
            store.get_lease("r"),
            [(ref, blobs.get(ref)) for ref in refs],
        )

    def trial(self, body: Body, *, seconds: float = 20) -> Trial:
        flow, before = workflow(name="w")(body), self.everything()
        found = asyncio.run(try_run(self.bench.stores(), [flow], "r", seconds=seconds))
        assert self.everything() == before
        return found


def test_what_replays_is_ok_up_to_the_first_call_that_would_be_made() -> None:
    looked = Looked()
    bench = looked.bench

    async def old(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        await ctx.now()
        return await ctx.await_external("go")

    async def longer(ctx: Context) -> object:
        await old(ctx)
        return await ctx.step("b", bench.pay, "b")

    assert bench.life(old).status == "suspended"
    found = looked.trial(longer)
    assert found == Trial(run_id="r", status="ok", replayed=2, then="external 'go'")
    asyncio.run(_resolved(bench))
    assert looked.trial(longer).then == "step 'b'"
    assert looked.trial(old).then == "ends as ok"


async def _resolved(bench: ReplayBench) -> None:
    async with Engine(bench.stores(), clock=bench.clock) as engine:
        await engine.resolve("r", "go", 1)


def test_another_way_is_blocked_in_the_words_of_a_real_segment() -> None:
    looked = Looked()
    bench = looked.bench

    async def old(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        return await ctx.await_external("go")

    async def renamed(ctx: Context) -> object:
        try:
            await ctx.step("b", bench.pay, "b")
        except Exception:  # noqa: BLE001 - what the attack does
            await ctx.step("refund", bench.pay, "refund")
        return await ctx.await_external("go")

    async def short(_ctx: Context) -> object:
        return "done"

    assert bench.life(old).status == "suspended"
    found = looked.trial(renamed)
    assert found.status == "blocked"
    assert "step 'b' stands where the journal has step 'a'" in (found.reason or "")
    assert "ended without step 'a'" in (looked.trial(short).reason or "")


def test_every_branch_is_tried_though_the_first_one_waits() -> None:
    looked = Looked()
    bench = looked.bench

    def body(last: str) -> Body:
        async def waits(ctx: Context) -> object:
            return await ctx.await_external("go")

        async def works(ctx: Context) -> object:
            await ctx.step("one", bench.pay, "one")
            await ctx.step(last, bench.pay, last)
            return await ctx.await_external("too")

        async def flow(ctx: Context) -> object:
            async with ctx.timeout(3600):
                return await ctx.parallel("both", [waits, works])

        return flow

    assert bench.life(body("two")).status == "suspended"
    assert looked.trial(body("two")).status == "ok"
    assert "'other'" in (looked.trial(body("other")).reason or "")


@pytest.mark.parametrize("kind", ["step", "turns", "child"])
def test_a_call_that_was_begun_and_never_ended_is_not_made_again(kind: str) -> None:
    looked = Looked()
    bench = looked.bench

    async def inner(ctx: Context) -> object:
        return await ctx.step("inner", bench.pay, "inner")

    async def body(ctx: Context) -> object:
        if kind == "step":
            return await ctx.step("x", bench.pay, "x")
        if kind == "turns":
            return await ctx.turns("x", lambda state, _n: bench.pay(state), "x", max_turns=3)
        return await ctx.child("x", workflow(name="inner")(inner))

    bench.life(body)
    opening = next(entry for entry in bench.entries() if entry.key == "x")
    bench.keep(opening.seq + 1)
    found = looked.trial(body)
    assert (found.status, found.then, found.untried) == ("ok", f"{kind} 'x'", None)


@pytest.mark.parametrize("failing", [False, True])
def test_the_journal_of_a_run_that_is_over_is_tried_too(failing: bool) -> None:
    looked = Looked()
    bench = looked.bench

    async def body(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        if failing:
            message = "the body's own"
            raise ValueError(message)
        return "done"

    async def renamed(ctx: Context) -> object:
        return await ctx.step("b", bench.pay, "b")

    assert bench.life(body).status == ("error" if failing else "ok")
    found = looked.trial(body)
    assert found.status == "ok"
    assert (found.then or "").startswith("ends as error: Val" if failing else "ends as ok")
    assert looked.trial(renamed).status == "blocked"


def test_deadlines_do_not_come_in_a_trial() -> None:
    looked = Looked()
    bench = looked.bench

    async def body(ctx: Context) -> object:
        async with ctx.timeout(5):
            await ctx.step("a", bench.pay, "a")
            await ctx.sleep(60)
        return await ctx.step("b", bench.pay, "b")

    assert bench.life(body).status == "suspended"
    found = looked.trial(body)  # the bench's clock is years behind
    assert (found.status, found.then) == ("ok", "timer '$sleep'")


@pytest.mark.slow
def test_a_call_that_is_given_up_no_more_ends_the_trial_soon() -> None:
    looked = Looked()
    bench = looked.bench

    def body(*, patient: bool) -> Body:
        async def flow(ctx: Context) -> object:
            try:
                async with asyncio.timeout(None if patient else 0.05):
                    await ctx.step("slow", asyncio.sleep, 3600)
            except TimeoutError:
                await ctx.step("fallback", bench.pay, "fallback")
            return await ctx.await_external("go")

        return flow

    assert bench.life(body(patient=False)).status == "suspended"
    assert looked.trial(body(patient=False)).then == "external 'go'"
    found = looked.trial(body(patient=True))
    fallback = next(entry for entry in bench.entries() if entry.key == "fallback")
    assert (found.status, found.then, found.untried) == ("ok", "step 'slow'", fallback.seq)


def test_a_call_that_the_body_leaves_in_a_trial_blocks_nothing() -> None:
    looked = Looked()
    bench = looked.bench

    def body(seconds: float) -> Body:
        async def hasty(ctx: Context) -> object:
            try:
                async with asyncio.timeout(seconds):
                    return await ctx.step("x", bench.pay, "x")
            except TimeoutError:
                return await ctx.step("y", bench.pay, "y")

        async def slow(ctx: Context) -> object:
            await asyncio.sleep(0.3)
            return await ctx.await_external("too")

        async def flow(ctx: Context) -> object:
            return await ctx.parallel("both", [hasty, slow])

        return flow

    assert bench.life(body(60)).status == "suspended"
    opening = next(entry for entry in bench.entries() if entry.key == "x")
    bench.keep(opening.seq + 1)
    found = looked.trial(body(0.05))
    assert (found.status, found.then) == ("ok", "step 'x'")


def test_a_body_that_waits_for_something_else_is_blocked_in_the_end() -> None:
    looked = Looked()
    bench = looked.bench

    def body(seconds: float) -> Body:
        async def flow(ctx: Context) -> object:
            await asyncio.sleep(seconds)
            await ctx.step("a", bench.pay, "a")
            return await ctx.await_external("go")

        return flow

    assert bench.life(body(0)).status == "suspended"
    found = looked.trial(body(3600), seconds=0.1)
    assert found.status == "blocked"
    assert "has not come to step 'a'" in (found.reason or "")


def test_changed_arguments_are_told() -> None:
    looked = Looked()
    bench = looked.bench

    def body(what: str) -> Body:
        async def flow(ctx: Context) -> object:
            await ctx.step("a", bench.pay, what)
            return await ctx.await_external("go")

        return flow

    assert bench.life(body("one")).status == "suspended"
    found = looked.trial(body("two"))
    assert (found.status, found.changed_args) == ("ok", ("a",))


def test_a_patch_is_asked_for_and_journalled_nowhere() -> None:
    looked = Looked()
    bench = looked.bench

    async def old(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        return await ctx.await_external("go")

    async def patched(ctx: Context) -> object:
        if await ctx.patched("first"):
            await ctx.step("new", bench.pay, "new")
        return await old(ctx)

    async def at_the_end(ctx: Context) -> object:
        return [await old(ctx), await ctx.patched("last")]

    assert bench.life(old).status == "suspended"
    assert looked.trial(patched).then == "external 'go'"
    asyncio.run(_resolved(bench))
    assert looked.trial(at_the_end).then == "ends as ok"


def test_what_cannot_be_tried_says_so() -> None:
    looked = Looked()
    bench = looked.bench

    async def body(ctx: Context) -> object:
        return await ctx.await_external("go")

    with pytest.raises(ConfigError, match="not in this store"):
        looked.trial(body)
    bench.life(body)
    other = workflow(name="other")(body)
    with pytest.raises(ConfigError, match="of workflow 'w'"):
        asyncio.run(try_run(bench.stores(), [other], "r"))
    records = bench.store.load("r")
    damaged = ReplayBench()
    damaged.store.put_meta(replace(bench.row, status="suspended"))
    for record in records:
        payload = b'{"seq":%d,"kind":7}' % record.seq if record is records[-1] else record.payload
        damaged.store.append("r", JournalRecord(seq=record.seq, payload=payload))
    with pytest.raises(StoreCorruptError):
        asyncio.run(try_run(damaged.stores(), [workflow(name="w")(body)], "r"))
