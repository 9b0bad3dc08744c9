"""A body that takes another way than its journal is blocked, before anything new is paid."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from replay_bench import ReplayBench

from rulvar.core.errors import ConfigError, NonDeterminismError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context

    Body = Callable[[Context], Awaitable[object]]


def steps(bench: ReplayBench, *names: str, wait: bool = True) -> Body:
    """Return a body that makes these steps, then waits."""

    async def body(ctx: Context) -> object:
        for name in names:
            await ctx.step(name, bench.pay, name)
        return await ctx.await_external("go") if wait else list(names)

    return body


def blocked(bench: ReplayBench, body: Body) -> NonDeterminismError:
    """Replay by a body that cannot: nothing is paid, opened or settled; the row says why."""
    paid, journal = dict(bench.ran), bench.store.load("r")
    with pytest.raises(NonDeterminismError) as caught:
        bench.life(body)
    assert dict(bench.ran) == paid
    assert bench.store.load("r") == journal
    row = bench.row
    assert row.blocked is not None
    assert row.blocked.reason == str(caught.value)
    assert row.stopped == row.segments
    assert bench.store.get_lease("r") is None
    return caught.value


CHANGES = {
    "renamed": ("a", "b2", "c"),
    "inserted": ("a", "new", "b", "c"),
    "inserted first": ("new", "a", "b", "c"),
    "removed": ("a", "c"),
    "removed last": ("a", "b"),
    "swapped": ("b", "a", "c"),
    "all gone": (),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_body_is_blocked_and_the_old_one_goes_on(change: str) -> None:
    bench = ReplayBench()
    old = steps(bench, "a", "b", "c")
    assert bench.life(old).status == "suspended"
    blocked(bench, steps(bench, *CHANGES[change]))
    outcome = bench.life(old, before=lambda engine: engine.resolve("r", "go", "went"))
    assert (outcome.status, outcome.value) == ("ok", "went")
    assert bench.ran == {"a": 1, "b": 1, "c": 1}
    assert bench.row.blocked is None


def test_a_body_that_ends_early_or_raises_early_is_blocked_not_over() -> None:
    """One bad deploy (a changed body, a NameError) must not end what waits."""
    bench = ReplayBench()
    assert bench.life(steps(bench, "a", "b")).status == "suspended"

    async def returns(_ctx: Context) -> object:
        return "done"

    async def raises(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        return undefined  # type: ignore[name-defined] # noqa: F821 - the bad deploy

    assert "ended without step 'a'" in str(blocked(bench, returns))
    assert "ended without step 'b'" in str(blocked(bench, raises))
    assert bench.row.status == "suspended", "as it was"
    assert bench.row.stopped == bench.row.segments, "and no death"


def test_a_blocked_run_that_waits_is_due_when_it_was() -> None:
    """For another code: the row keeps its status, and when it is to be woken."""
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        return await ctx.await_external("go", timeout=3600, default="late")

    assert bench.life(body).status == "suspended"
    due = bench.row.wake_at
    assert due is not None
    blocked(bench, steps(bench, "b"))
    assert (bench.row.status, bench.row.wake_at) == ("suspended", due)
    bench.clock.advance(3_600_000)  # type: ignore[attr-defined] # a clock that tests move
    assert bench.life(body).value == "late"


def test_an_error_at_the_end_of_the_journal_is_the_runs_error() -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        message = "the body's own"
        raise ValueError(message)

    outcome = bench.life(body)
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.error_type == "ValueError"


def test_no_handler_of_the_body_sees_that_it_took_another_way() -> None:
    bench = ReplayBench()
    assert bench.life(steps(bench, "charge", "ship")).status == "suspended"

    async def careful(ctx: Context) -> object:
        try:
            await ctx.step("reserve", bench.pay, "reserve")
        except Exception:  # noqa: BLE001 - what the attack does
            await ctx.step("refund", bench.pay, "refund")
        return await ctx.await_external("go")

    blocked(bench, careful)
    assert "refund" not in bench.ran


def test_a_call_that_has_begun_may_still_answer_when_another_branch_is_blocked() -> None:
    bench = ReplayBench()
    name = ["a"]

    async def body(ctx: Context) -> object:
        begun, release = asyncio.Event(), asyncio.Event()

        async def first(inner: Context) -> object:
            async def slow() -> str:
                begun.set()
                await release.wait()
                return bench.pay("slow")

            return await inner.step("slow", slow)

        async def second(inner: Context) -> object:
            await begun.wait()
            asyncio.get_running_loop().call_later(0.05, release.set)
            return await inner.step(name[0], bench.pay, name[0])

        await ctx.parallel("fan", [first, second])
        return await ctx.await_external("never")

    assert bench.life(body).status == "suspended"
    answers = [e.seq for e in bench.entries() if e.ref is not None]
    bench.keep(answers[1])  # the answer of the slow step is lost
    name[0] = "b"
    with pytest.raises(NonDeterminismError):
        bench.life(body)
    assert bench.row.blocked is not None
    assert bench.ran == {"slow": 2, "a": 1}
    assert bench.calls()[-1] == ("step", "slow", True), "it had begun, and its answer is kept"


def test_a_loop_over_items_is_blocked_when_one_is_inserted() -> None:
    bench = ReplayBench()
    urls = ["u1", "u2"]

    async def body(ctx: Context) -> object:
        got = [await ctx.step("fetch", bench.pay, url) for url in urls]
        await ctx.await_external("go")
        return got

    assert bench.life(body).status == "suspended"
    urls.insert(0, "u0")
    assert "another order" in str(blocked(bench, body))


def test_keys_tell_the_calls_of_a_loop_apart() -> None:
    bench = ReplayBench()
    urls = ["u1", "u2"]

    async def body(ctx: Context) -> object:
        got = [await ctx.step("fetch", bench.pay, url, key=url) for url in urls]
        await ctx.await_external("go")
        return got

    assert bench.life(body).status == "suspended"
    urls[:] = ["u3", "u4"]
    assert "has the key 'u3' now, and had 'u1'" in str(blocked(bench, body))


def test_other_arguments_are_told_and_the_answer_stands(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplayBench()
    rate = [1]

    async def body(ctx: Context) -> object:
        got = await ctx.step("price", lambda at: at * 10, rate[0])
        await ctx.await_external("go")
        return got

    assert bench.life(body).status == "suspended"
    rate[0] = 2
    assert bench.life(body, before=lambda e: e.resolve("r", "go", 0)).value == 10
    assert "step 'price' has other arguments now" in caplog.text


def test_other_arguments_are_refused_by_setting() -> None:
    bench = ReplayBench(on_changed_args="refuse")
    rate = [1]

    async def body(ctx: Context) -> object:
        await ctx.step("price", lambda at: at * 10, rate[0])
        return await ctx.await_external("go")

    assert bench.life(body).status == "suspended"
    rate[0] = 2
    assert "other arguments" in str(blocked(bench, body))


@pytest.mark.parametrize("where", ["in a branch", "a branch more", "a branch that ends early"])
def test_branches_are_compared_like_the_body(where: str) -> None:
    bench = ReplayBench()
    changed = [False]

    async def body(ctx: Context) -> object:
        def branch(index: int) -> Body:
            async def run(inner: Context) -> object:
                if changed[0] and where == "a branch that ends early":
                    return None
                name = f"{'b' if changed[0] and where == 'in a branch' else 'a'}{index}"
                return await inner.step(name, bench.pay, name)

            return run

        more = 1 if changed[0] and where == "a branch more" else 0
        await ctx.parallel("fan", [branch(i) for i in range(2 + more)])
        return await ctx.await_external("go")

    assert bench.life(body).status == "suspended"
    changed[0] = True
    blocked(bench, body)


def test_a_call_more_in_a_branch_that_was_complete_is_blocked() -> None:
    bench = ReplayBench()
    names = ["a"]

    async def body(ctx: Context) -> object:
        async def branch(inner: Context) -> None:
            for name in names:
                await inner.step(name, bench.pay, name)

        await ctx.parallel("fan", [branch])
        return await ctx.await_external("go")

    assert bench.life(body).status == "suspended"
    names.append("b")
    assert "was complete when seq" in str(blocked(bench, body))


# --- patched ------------------------------------------------------------------------------------


def patched_body(bench: ReplayBench) -> Body:
    async def body(ctx: Context) -> object:
        await ctx.step("a", bench.pay, "a")
        if await ctx.patched("with-b"):
            await ctx.step("b", bench.pay, "b")
        return await ctx.await_external("go")

    return body


def test_a_run_from_before_the_change_keeps_the_old_way_for_ever() -> None:
    bench = ReplayBench()
    assert bench.life(steps(bench, "a")).status == "suspended"
    for _ in range(2):
        assert bench.life(patched_body(bench)).status == "suspended"
    bench.life(patched_body(bench), before=lambda engine: engine.resolve("r", "go", 1))
    assert bench.ran == {"a": 1}


def test_a_run_from_after_the_change_takes_the_new_way_also_without_the_question() -> None:
    bench = ReplayBench()
    assert bench.life(patched_body(bench)).status == "suspended"
    assert bench.ran == {"a": 1, "b": 1}
    assert bench.life(steps(bench, "a", "b")).status == "suspended", "the question was taken out"
    assert bench.life(patched_body(bench)).status == "suspended"
    assert bench.ran == {"a": 1, "b": 1}


def test_patched_in_a_loop_is_decided_once() -> None:
    bench = ReplayBench()
    new: list[bool] = []

    async def before(ctx: Context) -> object:
        for index in range(2):
            await ctx.step("round", bench.pay, f"{index}")
        return await ctx.await_external("go")

    async def after(ctx: Context) -> object:
        new.clear()
        for index in range(4):
            new.append(await ctx.patched("p"))
            await ctx.step("round", bench.pay, f"{index}")
        return "over"

    assert bench.life(before).status == "suspended"
    # It waits where the new code makes a third round: that is another way.
    with pytest.raises(NonDeterminismError):
        bench.life(after)
    assert new == [False, False, False]


@pytest.mark.parametrize("how", ["if", "next call", "end"])
def test_a_forgotten_await_is_told(how: str) -> None:
    bench = ReplayBench()

    async def body(ctx: Context) -> object:
        asked = ctx.patched("p")
        if how == "if" and bool(asked):
            return "new"
        if how == "next call":
            await ctx.step("a", bench.pay, "a")
        return "old"

    outcome = bench.life(body)
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.error_type == f"{ConfigError.__module__}.ConfigError"
    assert "write await ctx.patched('p')" in outcome.error.message
    assert bench.ran == {}
