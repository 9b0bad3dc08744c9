"""One worker process of the takeover tests: does one role, and reports in JSON lines.

It reports ``ready`` and waits for a byte before it begins, so that a test chooses the moment.
A step that is to be caught in the middle reports ``paused`` and waits for one more byte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rulvar.core import (
    Engine,
    LeaseHeldError,
    RulvarError,
    SupersededError,
    Worker,
    assert_fenced_writes,
    open_stores,
    workflow,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core import (
        Context,
        FencedStores,
        RunOutcome,
        WorkerResult,
    )

__all__ = ["ROLES", "errands", "sleeper", "storm_run"]

PAUSE_IN: list[str] = []
"""The names of the errands that stop in the middle, in this process."""


def report(kind: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    os.read(sys.stdin.fileno(), 1)


def note(log: str, what: str) -> None:
    """Leave a trace of a side effect that no crash takes back, one line in one write."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{what}\n".encode())
    finally:
        os.close(descriptor)


def errand(log: str, name: str) -> str:
    note(log, f"begin {name}")
    if name in PAUSE_IN:
        report("paused", name=name)
        wait_for_go()
    note(log, f"done {name}")
    return name.upper()


@workflow
async def errands(ctx: Context, args: dict[str, Any]) -> list[str]:
    return [await ctx.step(name, errand, args["log"], name) for name in args["names"]]


async def blocks_the_loop(log: str, seconds: float) -> None:
    note(log, "begin")
    time.sleep(seconds)  # noqa: ASYNC251 - on the loop's thread, which is the point
    note(log, "done")


def blocks_its_thread(log: str, seconds: float) -> None:
    note(log, "begin")
    time.sleep(seconds)
    note(log, "done")


@workflow
async def sleeper(ctx: Context, args: dict[str, Any]) -> None:
    function: Callable[[str, float], object] = blocks_its_thread
    if args["on_the_loop"]:
        await ctx.step("sleep", blocks_the_loop, args["log"], args["seconds"])
    else:
        await ctx.step("sleep", function, args["log"], args["seconds"])


def add_up(left: int, right: int) -> int:
    return left + right


@workflow
async def storm_run(ctx: Context, number: int) -> int:
    first = await ctx.step("first", add_up, number, 1)

    async def branch(inner: Context) -> int:
        return await inner.step("branch", add_up, first, 1)

    return sum(await ctx.parallel("branches", [branch, branch]))


WORKFLOWS = [errands, sleeper, storm_run]


def tell_end(outcome: RunOutcome | None, error: BaseException | None = None) -> None:
    facts: dict[str, object] = {}
    if outcome is not None:
        facts = {
            "status": outcome.status,
            "value": outcome.value,
            "epoch": outcome.epoch,
            "segment": outcome.segment,
            "executed": outcome.executed,
            "replayed": outcome.replayed,
        }
    if isinstance(error, SupersededError | LeaseHeldError):
        facts = {"reason": error.reason, "epoch": error.epoch, "holder": error.holder}
    name = None if error is None else type(error).__name__
    report("ended", error=name, message=str(error), **facts)


async def run_once(engine: Engine, options: argparse.Namespace) -> None:
    """Run the run, whatever comes of it."""
    try:
        outcome = await engine.run(options.workflow, options.args, run_id=options.run)
    except RulvarError as error:
        tell_end(None, error)
    else:
        tell_end(outcome)


async def insist(engine: Engine, options: argparse.Namespace) -> None:
    """Try to run the run until nobody else has it."""
    refused = 0
    while True:
        try:
            outcome = await engine.run(options.workflow, options.args, run_id=options.run)
        except LeaseHeldError as error:
            if refused == 0:
                report("refused", reason=error.reason, holder=error.holder, epoch=error.epoch)
            refused += 1
            await asyncio.sleep(0.02)
        else:
            report("refusals", count=refused)
            tell_end(outcome)
            return


async def sweep(engine: Engine, options: argparse.Namespace) -> None:
    """Be a worker until the run has an outcome."""

    def done(result: WorkerResult) -> None:
        if result.run_id == options.run and not isinstance(result.error, LeaseHeldError):
            tell_end(result.outcome, result.error)
            worker.stop()

    worker = Worker(engine, poll_interval=0.02, on_result=done)
    await worker.run()


async def storm(engine: Engine, options: argparse.Namespace) -> None:
    """Start many runs, sixteen at a time, and report how each ended."""
    gate = asyncio.Semaphore(16)
    ended: dict[str, int] = {}

    async def one(number: int) -> None:
        async with gate:
            try:
                run_id = f"{options.run}-{number}"
                outcome = await engine.run(storm_run, number, run_id=run_id)
            except RulvarError as error:
                how = f"{type(error).__name__}: {error}"
            else:
                how = outcome.status if outcome.value == 2 * number + 4 else "wrong result"
            ended[how] = ended.get(how, 0) + 1

    await asyncio.gather(*(one(number) for number in range(options.args)))
    report("stormed", ended=ended)


ROLES: dict[str, Callable[[Engine, argparse.Namespace], Awaitable[None]]] = {
    "run": run_once,
    "insist": insist,
    "sweep": sweep,
    "storm": storm,
}


async def play(stores: FencedStores, options: argparse.Namespace) -> None:
    async with Engine(stores, WORKFLOWS, owner=options.owner) as engine:
        report("ready")
        wait_for_go()
        await ROLES[options.role](engine, options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=list(ROLES))
    parser.add_argument("--store", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--workflow", default="errands")
    parser.add_argument("--args", type=json.loads, default={})
    parser.add_argument("--pause-in", action="append", default=[])
    options = parser.parse_args()
    PAUSE_IN.extend(options.pause_in)
    with open_stores(options.store) as opened:
        asyncio.run(play(assert_fenced_writes(opened), options))


if __name__ == "__main__":
    main()
