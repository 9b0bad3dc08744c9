"""What the body saw counts: a call that it gave up stays given up, in every life."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal import GIVEN_UP
from rulvar.core.stores import Stores
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context
    from rulvar.core.testing import StoreCall

    Body = Callable[[Context], Awaitable[object]]

LIMIT = 0.05


async def at_last(ctx: Context, value: object) -> object:
    await ctx.await_external("go")
    return value


def by_timeout(bench: ReplayBench) -> Body:
    async def body(ctx: Context) -> object:
        try:
            async with asyncio.timeout(LIMIT):
                got = await ctx.step("slow", never)
        except TimeoutError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        return await at_last(ctx, got)

    return body


def by_wait_for(bench: ReplayBench) -> Body:
    async def body(ctx: Context) -> object:
        try:
            got = await asyncio.wait_for(ctx.step("slow", never), LIMIT)
        except TimeoutError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        return await at_last(ctx, got)

    return body


def by_cancel(bench: ReplayBench) -> Body:
    async def body(ctx: Context) -> object:
        task = asyncio.ensure_future(ctx.step("slow", never))
        await asyncio.sleep(LIMIT)
        task.cancel()
        try:
            got = await task
        except asyncio.CancelledError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        return await at_last(ctx, got)

    return body


def by_parallel(bench: ReplayBench) -> Body:
    async def body(ctx: Context) -> object:
        async def branch(inner: Context) -> object:
            await inner.step("quick", bench.pay_later, "quick")
            return await inner.step("slow", never)

        try:
            async with asyncio.timeout(LIMIT):
                got: object = await ctx.parallel("fan", [branch, branch])
        except TimeoutError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        return await at_last(ctx, got)

    return body


async def never() -> object:
    return await asyncio.Event().wait()


@pytest.mark.parametrize("make", [by_timeout, by_wait_for, by_cancel, by_parallel])
def test_a_call_that_was_given_up_is_given_up_in_every_life(
    make: Callable[[ReplayBench], Body],
) -> None:
    bench = ReplayBench()
    body = make(bench)
    assert bench.life(body).status == "suspended"
    paid, journal = dict(bench.ran), [r.payload for r in bench.store.load("r")]
    assert any(e.kind == GIVEN_UP for e in bench.entries())
    again = bench.life(body)
    assert (again.status, dict(bench.ran)) == ("suspended", paid)
    calls = [p for p in (r.payload for r in bench.store.load("r")) if b'"decision"' not in p]
    assert calls == [p for p in journal if b'"decision"' not in p], "nothing is journalled again"
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, dict(bench.ran)) == ("fallback", paid)


@pytest.mark.parametrize("moment", ["opening", "answer"])
def test_a_call_that_is_given_up_while_it_is_journalled_stays_given_up(moment: str) -> None:
    """The answer lands; the body never saw it: that it gave the call up outranks it."""
    bench = ReplayBench()
    reached, go_on = threading.Event(), threading.Event()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        of_slow = call.method == "append" and b'"key":"slow"' in call.payload
        is_answer = b'"ref"' in call.payload
        is_it = of_slow and is_answer == (moment == "answer") and b"given_up" not in call.payload
        if is_it and not reached.is_set():
            reached.set()
            assert go_on.wait(10)
        return perform()

    async def body(ctx: Context) -> object:
        async def watched() -> object:
            return await ctx.step("slow", bench.pay_later, "slow")

        task = asyncio.ensure_future(watched())
        if not reached.is_set():
            await asyncio.to_thread(reached.wait, 10)
            task.cancel()
            go_on.set()
        else:
            await asyncio.sleep(LIMIT)
            task.cancel()
        try:
            got = await task
        except asyncio.CancelledError:
            got = await ctx.step("fallback", bench.pay, "fallback")
        return await at_last(ctx, got)

    pair = Stores(bench.store, bench.store.transcripts())
    assert bench.life(body, stores=WatchedStores(pair, around=around)).status == "suspended"
    assert bench.ran["fallback"] == 1
    paid = dict(bench.ran)
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, dict(bench.ran)) == ("fallback", paid)


def test_a_call_given_up_before_its_opening_was_written_is_in_the_journal_all_the_same() -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        async def holds(inner: Context) -> object:
            return await inner.step("holds", bench.pay, "holds")

        async def gives_up(inner: Context) -> object:
            task = asyncio.ensure_future(inner.step("early", never))
            await asyncio.sleep(0)  # it has begun, and waits for its turn to be journalled
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return await inner.step("next", bench.pay, "next")
            return "?"

        return await at_last(ctx, await ctx.parallel("fan", [holds, gives_up]))

    assert bench.life(body).status == "suspended"
    early = [(e.kind, e.ref is not None) for e in bench.entries() if e.key == "early"]
    assert early == [("step", False), (GIVEN_UP, True)]
    paid = dict(bench.ran)
    outcome = bench.life(body, before=lambda engine: engine.resolve("r", "go"))
    assert (outcome.value, dict(bench.ran)) == (["holds", "next"], paid)


def test_what_is_given_up_last_is_journalled_before_the_run_settles() -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        try:
            async with asyncio.timeout(LIMIT):
                await ctx.step("slow", never)
        except TimeoutError:
            return "in vain"
        return "?"

    assert bench.life(body).value == "in vain"
    kinds = [e.kind for e in bench.entries()]
    assert kinds[-2:] == [GIVEN_UP, "decision"]


@pytest.mark.slow
def test_a_call_that_is_not_given_up_again_blocks_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rulvar.core.engine.segment.frames._WAIT_LONGER_MS", 50)
    bench = ReplayBench()
    patient = [False]

    async def body(ctx: Context) -> object:
        try:
            async with asyncio.timeout(None if patient[0] else LIMIT):
                await ctx.step("slow", never)
        except TimeoutError:
            return await ctx.await_external("go")
        return "?"

    assert bench.life(body).status == "suspended"
    patient[0] = True
    with pytest.raises(NonDeterminismError, match="'slow' was given up by the body after"):
        bench.life(body)
    assert bench.row.blocked is not None


# --- suspensions under a timeout of the body's own -----------------------------------------------


def test_a_wait_under_a_timeout_of_the_bodys_own_is_given_up_and_never_stuck() -> None:
    bench = ReplayBench(suspend_after=0)

    async def body(ctx: Context) -> object:
        try:
            async with asyncio.timeout(LIMIT):
                return await ctx.await_external("answer")
        except TimeoutError:
            return await ctx.step("fallback", bench.pay, "fallback")

    outcome = bench.life(body)
    assert (outcome.status, outcome.value) == ("ok", "fallback")
    assert [e.kind for e in bench.entries() if e.key == "answer"] == ["external", GIVEN_UP]


@pytest.mark.parametrize("how", ["wait", "group", "task"])
@pytest.mark.parametrize("what", ["external", "sleep"])
def test_a_suspension_in_another_task_is_refused_with_the_remedy(how: str, what: str) -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        waits = ctx.await_external("k") if what == "external" else ctx.sleep(1)
        if how == "group":
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(waits)
            except ExceptionGroup as error:
                raise error.exceptions[0] from None
            return None
        task = asyncio.ensure_future(waits)
        if how == "wait":
            done, _ = await asyncio.wait({task}, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        return await task

    outcome = bench.life(body)
    assert outcome.status == "error"
    assert outcome.error is not None
    assert "give the call a timeout=, use ctx.timeout" in outcome.error.message
    assert bench.calls() == []
