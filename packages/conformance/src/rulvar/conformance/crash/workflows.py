"""The bodies of the workloads: small, each about one thing, with an exact result.

Whatever they execute is noted through the stage, under names that no other body of the same
workload has. What a body reads from the world (a token,
the time) it keeps in a step, too: a replay that sees another one has another result.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
from typing import TYPE_CHECKING

from rulvar.core.engine import Compaction, Continue, Done, workflow
from rulvar.core.errors import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from rulvar.conformance.crash.harness import Harness
    from rulvar.core.engine import Context, Workflow

__all__ = [
    "MARKS_OF_TURNS",
    "RESULT_OF_TURNS",
    "branches",
    "calls_off",
    "fails",
    "flaky",
    "forks",
    "handed_over",
    "make_repo",
    "parent",
    "plain",
    "rests",
    "slow",
    "slow_child",
    "turns",
    "waits",
    "waits_with_child",
    "worktree",
]

RESULT_OF_TURNS: list[object] = [9, 5, 2, "LAST"]
"""What `turns` comes to, begun with ``[1, 2]``."""
MARKS_OF_TURNS = [
    *("turn:0", "summary:1", "turn:1", "turn:2", "summary:3", "turn:3", "turn:4"),
    "step:last",
]
"""What `turns` executes, begun with ``[1, 2]``."""

_PREFIX = "kill-points-"
_WITHIN_S = 20.0


def plain(harness: Harness) -> Workflow:
    """Run plain and async steps, one that fails, and record what the world says once."""

    @workflow(name=f"{_PREFIX}plain")
    async def body(ctx: Context, args: dict[str, int]) -> object:
        first = await ctx.step("first", harness.do, "first")
        token = str(await ctx.uuid())
        kept = await ctx.step("kept", harness.keep, "kept", token)
        chance = await ctx.random()
        try:
            await ctx.step("fails", harness.fail, "fails")
        except StepFailedError as error:
            failure = error.error_type
        same = await ctx.step("same", harness.keep, "same", chance)
        last = await ctx.step("last", harness.do_async, "last")
        return [first, kept == token, same == chance, failure, last, args["n"]]

    return body


def handed_over(harness: Harness, hand_over: Callable[[], None]) -> Workflow:
    """Run three steps, each of which has the run handed over behind it."""

    async def work(name: str) -> str:
        hand_over()
        return harness.do(name)

    @workflow(name=f"{_PREFIX}handed-over")
    async def body(ctx: Context) -> list[str]:
        return [await ctx.step(name, work, name) for name in ("one", "two", "three")]

    return body


def branches(harness: Harness) -> Workflow:
    """Run three branches, two of them at a time, with two steps each."""

    @workflow(name=f"{_PREFIX}branches")
    async def body(ctx: Context, args: list[str]) -> object:
        def branch(name: str) -> Callable[[Context], Awaitable[str]]:
            async def one(inner: Context) -> str:
                first = await inner.step(f"{name}1", harness.do, f"{name}1")
                second = await inner.step(f"{name}2", harness.do_async, f"{name}2")
                return first + second

            return one

        names = await ctx.parallel("all", [branch(name) for name in args], limit=2)
        return [*names, await ctx.step("last", harness.do, "last")]

    return body


def turns(harness: Harness) -> Workflow:
    """Loop for five turns, and make the state shorter twice."""

    def turn(state: list[int], number: int) -> object:
        harness.log.ran(f"turn:{number}")
        return Done(sum(state)) if number == 4 else Continue([*state, number])  # noqa: PLR2004

    def make(state: list[int], count: int) -> list[int]:
        harness.log.ran(f"summary:{count}")
        return [sum(state)]

    compaction = Compaction(when=lambda state, _: len(state) > 2, make=make)  # noqa: PLR2004

    @workflow(name=f"{_PREFIX}turns")
    async def body(ctx: Context, args: list[int]) -> object:
        done = await ctx.turns("loop", turn, args, compact=compaction)
        last = await ctx.step("last", harness.do, "last")
        return [done.result, done.count, len(done.summaries), last]

    return body


def worktree(harness: Harness) -> Workflow:
    """Change a worktree of a real repository while a step beside it is journalled."""
    repo = str(harness.folder / "repo")
    entered, journalled = threading.Event(), threading.Event()

    def change(path: Path) -> str:
        harness.log.ran("worktree:change")
        (path / "kept.txt").write_text("two\n", encoding="utf-8")
        (path / "new.txt").write_text("new\n", encoding="utf-8")
        entered.set()
        return "changed" if journalled.wait(_WITHIN_S) else "alone"

    def beside() -> str:
        # So that there are store calls to die at while the worktree is there.
        return harness.do("beside") if entered.wait(_WITHIN_S) else "alone"

    @workflow(name=f"{_PREFIX}worktree")
    async def body(ctx: Context) -> object:
        async def in_tree(inner: Context) -> object:
            done = await inner.worktree("change", repo, change)
            entered.set()
            lines = done.patch.decode("utf-8").splitlines()
            changes = [line for line in lines if re.match(r"[+-]\w", line)]
            return [done.value, list(done.files), changes]

        async def on_its_own(inner: Context) -> object:
            answer = await inner.step("beside", beside)
            journalled.set()
            return answer

        both = await ctx.parallel("both", [in_tree, on_its_own])
        return [*both, await ctx.step("last", harness.do, "last")]

    return body


def make_repo(harness: Harness) -> None:
    """Make the repository that `worktree` changes."""
    repo = harness.folder / "repo"
    repo.mkdir()
    (repo / "kept.txt").write_text("one\n", encoding="utf-8")
    who = ("-c", "user.name=rulvar", "-c", "user.email=rulvar@example.org")
    for command in (
        ("init", "--quiet"),
        ("add", "--all"),
        (*who, "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "one"),
    ):
        subprocess.run(["git", "-C", str(repo), *command], check=True, capture_output=True)  # noqa: S603, S607


def waits(harness: Harness) -> Workflow:
    """Ask a question between two steps, which is answered from outside."""

    @workflow(name=f"{_PREFIX}waits")
    async def body(ctx: Context) -> object:
        first = await ctx.step("first", harness.do, "first")
        answer = await ctx.await_external("allow")
        return [first, answer, await ctx.step("last", harness.do, "last")]

    return body


def rests(harness: Harness) -> Workflow:
    """Sleep, and ask a question that nobody answers before its deadline."""

    @workflow(name=f"{_PREFIX}rests")
    async def body(ctx: Context) -> object:
        first = await ctx.step("tired", harness.do, "tired")
        await ctx.sleep(50)
        answer = await ctx.await_external("nobody", timeout=50, default="late")
        return [first, answer, await ctx.step("awake", harness.do, "awake")]

    return body


def parent(harness: Harness) -> Workflow:
    """Wait for a child run between two steps."""

    @workflow(name=f"{_PREFIX}child")
    async def child(ctx: Context, args: str) -> object:
        one = await ctx.step("one", harness.do, "one")
        return [one, await ctx.step("two", harness.do_async, "two"), args]

    @workflow(name=f"{_PREFIX}parent")
    async def body(ctx: Context) -> object:
        first = await ctx.step("first", harness.do, "first")
        answer = await ctx.child("child", child, "given")
        return [first, answer, await ctx.step("last", harness.do, "last")]

    return body


def fails(harness: Harness) -> Workflow:
    """Fail, after a step that works."""

    @workflow(name=f"{_PREFIX}fails")
    async def body(ctx: Context) -> object:
        await ctx.step("first", harness.do, "first")
        message = "as it should"
        raise ValueError(message)

    return body


def flaky(harness: Harness) -> Workflow:
    """Have a step that fails until its cause is mended, and one after it."""

    def work() -> str:
        if (harness.folder / "mended").exists():
            return harness.do("flaky")
        harness.fail("flaky")
        return ""

    @workflow(name=f"{_PREFIX}flaky")
    async def body(ctx: Context) -> object:
        first = await ctx.step("first", harness.do, "first")
        return [first, await ctx.step("flaky", work), await ctx.step("last", harness.do, "last")]

    return body


def calls_off(harness: Harness) -> Workflow:
    """Have a step cancel the run that it is part of, and with it a child that is at work."""
    at_work, failed = threading.Event(), threading.Event()

    @workflow(name=f"{_PREFIX}called-off")
    async def child(ctx: Context) -> object:
        await ctx.step("one", harness.do, "one")
        at_work.set()
        return await ctx.await_external("inner")

    async def cancel(run_id: str) -> None:
        await asyncio.to_thread(at_work.wait, _WITHIN_S)
        harness.do("cancel")
        if not failed.is_set():
            await harness.cancel(run_id)

    @workflow(name=f"{_PREFIX}calls-off")
    async def body(ctx: Context) -> object:
        async def waiting(inner: Context) -> object:
            try:
                return await inner.child("child", child)
            except StepFailedError:
                failed.set()  # cancelled without its parent: that one goes on
                at_work.set()
                raise

        async def cancelling(inner: Context) -> object:
            return await inner.step("cancel", cancel, ctx.run_id)

        await ctx.step("first", harness.do, "first")
        await ctx.parallel("both", [waiting, cancelling])
        return await ctx.step("never", harness.do, "never")

    return body


def waits_with_child(harness: Harness) -> Workflow:
    """Wait with a child run for what never comes."""

    @workflow(name=f"{_PREFIX}waiting-child")
    async def child(ctx: Context) -> object:
        await ctx.step("one", harness.do, "one")
        return await ctx.await_external("inner")

    @workflow(name=f"{_PREFIX}waiting-parent")
    async def body(ctx: Context) -> object:
        await ctx.step("first", harness.do, "first")
        return await ctx.child("child", child)

    return body


def slow(harness: Harness) -> Workflow:
    """Have a step last until the lease has been renewed while it works."""

    def work() -> str:
        done = harness.do("slow")
        if not harness.log.wait_for(_WITHIN_S, renew=1):
            message = f"the lease was not renewed within {_WITHIN_S} s"
            raise TimeoutError(message)
        return done

    @workflow(name=f"{_PREFIX}slow")
    async def body(ctx: Context) -> object:
        return [await ctx.step("slow", work)]

    return body


def slow_child(harness: Harness) -> Workflow:
    """Have the step of a child last until both leases have been renewed."""

    def work() -> str:
        done = harness.do("slow")
        if not harness.log.wait_for(_WITHIN_S, renew_all=1, renew=2):
            message = f"the leases were not renewed within {_WITHIN_S} s"
            raise TimeoutError(message)
        return done

    @workflow(name=f"{_PREFIX}slow-child")
    async def child(ctx: Context) -> object:
        return [await ctx.step("slow", work)]

    @workflow(name=f"{_PREFIX}slow-parent")
    async def body(ctx: Context) -> object:
        return await ctx.child("child", child)

    return body


def forks(harness: Harness) -> Workflow:
    """Have a step fork the process, between two others."""

    @workflow(name=f"{_PREFIX}forks")
    async def body(ctx: Context) -> object:
        first = await ctx.step("first", harness.do, "first")
        forked = await ctx.step("fork", harness.fork, "fork")
        return [first, forked, await ctx.step("last", harness.do, "last")]

    return body
