"""One life of a run in a process of its own, by the code of one deploy.

``python replay_process.py DATABASE CASE DEPLOY [--retry] [--answer]`` executes a segment and
prints what came of it as one JSON line. Effects are lines of the file ``paid`` beside the
database. A life that waits says so and stays until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.core import Engine, StepFailedError, open_stores, workflow
from rulvar.core.errors import NonDeterminismError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core import Context

DATABASE = Path(sys.argv[1])
CASE, DEPLOY = sys.argv[2], sys.argv[3]
NEW = DEPLOY == "new"


def pay(what: str) -> str:
    """Do what costs money, and leave a durable trace of it."""
    with (DATABASE.parent / "paid").open("a") as file:
        file.write(f"{what}\n")
    return what


def risky(what: str) -> str:
    pay(what)
    if not NEW:
        message = "not well"
        raise RuntimeError(message)
    return what


async def never() -> object:
    return await asyncio.Event().wait()


async def stay(ctx: Context) -> object:
    """Say that the body has come here, and wait for the answer, or for the kill."""
    return await ctx.await_external("go")


async def timed_out(ctx: Context) -> object:
    try:
        async with asyncio.timeout(0.05):
            got = await ctx.step("slow", never)
    except TimeoutError:
        got = await ctx.step("fallback", pay, "fallback")
    await stay(ctx)
    return got


async def waited_for(ctx: Context) -> object:
    try:
        got = await asyncio.wait_for(ctx.step("slow", never), 0.05)
    except TimeoutError:
        got = await ctx.step("fallback", pay, "fallback")
    await stay(ctx)
    return got


async def block(ctx: Context) -> object:
    try:
        async with ctx.timeout(0.05):
            got = await ctx.step("slow", never)
    except TimeoutError:
        got = await ctx.step("fallback", pay, "fallback")
    await stay(ctx)
    return got


async def renamed(ctx: Context) -> object:
    name = "rates" if NEW else "prices"
    got = await ctx.step(name, pay, name)
    await stay(ctx)
    return {name: got}


async def inserted(ctx: Context) -> object:
    urls = ["u0", "u1", "u2"] if NEW else ["u1", "u2"]
    got = [await ctx.step("fetch", pay, url) for url in urls]
    await stay(ctx)
    return got


async def bad_deploy(ctx: Context) -> object:
    await ctx.step("charge", pay, "charge")
    if NEW:
        return undefined  # type: ignore[name-defined] # noqa: F821 - the bad deploy
    return await stay(ctx)


async def refunds(ctx: Context) -> object:
    try:
        await ctx.step("reserve" if NEW else "charge", pay, "charge")
    except Exception:  # noqa: BLE001 - what the body's handler does with whatever comes
        await ctx.step("refund", pay, "refund")
    return await stay(ctx)


async def patched(ctx: Context) -> object:
    await ctx.step("charge", pay, "charge")
    if NEW and await ctx.patched("check"):
        await ctx.step("check", pay, "check")
    return await stay(ctx)


async def compensates(ctx: Context) -> object:
    await ctx.step("seat", pay, "seat")
    try:
        return await ctx.step("ticket", risky, "ticket")
    except StepFailedError:
        await ctx.step("give back", pay, "give back")
        raise


@workflow(name="child")
async def child(ctx: Context) -> object:
    await ctx.step("first", pay, "first")
    return await ctx.step("second", risky, "second")


async def parent(ctx: Context) -> object:
    return await ctx.child("c", child)


async def told_apart(ctx: Context) -> object:
    try:
        await ctx.step("fails", risky, "fails")
    except StepFailedError as error:
        branch = "cause" if isinstance(error.__cause__, RuntimeError) else "type"
        await ctx.step(branch, pay, branch)
    return await stay(ctx)


CASES: dict[str, Callable[[Context], Awaitable[object]]] = {
    each.__name__: each
    for each in (
        timed_out,
        waited_for,
        block,
        renamed,
        inserted,
        bad_deploy,
        refunds,
        patched,
        compensates,
        parent,
        told_apart,
    )
}


async def main() -> dict[str, object]:
    flow = workflow(name="flow")(CASES[CASE])
    with open_stores(f"sqlite:///{DATABASE}?lease_ttl_ms=2000") as stores:
        async with Engine(stores, [flow, child], suspend_after=0) as engine:
            try:
                if "--answer" in sys.argv:
                    await engine.resolve("r", "go")
                known = any(row.run_id == "r" for row in stores.journal.list_runs())
                if "--retry" in sys.argv:
                    outcome = await engine.retry("r")
                elif known:
                    outcome = await engine.resume("r")
                else:
                    outcome = await engine.run(flow, run_id="r")
            except NonDeterminismError as error:
                return {"status": "blocked", "why": str(error)}
            return {"status": outcome.status, "value": outcome.value}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())) + "\n")
    sys.stdout.flush()
    if "--die" in sys.argv:
        os.kill(os.getpid(), 9)
