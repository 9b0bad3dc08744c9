"""One process of the audit tests: runs a workflow over a file, and dies or stops on the way.

It reports in JSON lines. Where it is to stop, it reports ``paused`` and waits for a byte on
standard input; where it is to die, it kills itself as nothing can be caught.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from rulvar.core import Engine, RulvarError, open_stores, workflow
from rulvar.core.spi import RunMeta
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core import Context
    from rulvar.core.testing import StoreCall

AT: dict[str, str] = {}
"""What to do where: ``kill`` or ``pause``."""


def report(kind: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def reached(place: str) -> None:
    what = AT.get(place)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "pause":
        report("paused", at=place)
        os.read(sys.stdin.fileno(), 1)


def do(name: str) -> str:
    report("executed", step=name)
    reached(name)
    if name == "fails" and AT.get("fails") != "mended":
        message = "as it should"
        raise ValueError(message)
    return name


@workflow
async def errands(ctx: Context, names: list[str]) -> list[str]:
    done = []
    for name in names:
        done.append(await ctx.step(name, do, name))
        if name == "asks":
            done.append(str(await ctx.await_external("answer")))
    return done


def around(call: StoreCall, perform: Callable[[], object]) -> object:
    """Come between the settle and the row, and between the row and the journal of a start."""
    row = call.arguments[0] if call.method == "put_meta" else None
    if isinstance(row, RunMeta) and row.status != "running":
        reached("before-the-settled-row")
    if call.method == "append" and b'"run_start"' in call.payload:
        reached("before-the-start")
    if call.method == "append" and b'"run_settle"' in call.payload:
        reached("before-the-settle")
    return perform()


async def play(options: argparse.Namespace) -> None:
    with open_stores(options.store) as opened:
        without = {"fenced_writes"} if options.unfenced else set[str]()
        stores = WatchedStores(opened, around=around, without=without)
        async with Engine(stores, [errands]) as engine:
            try:
                if options.retry:
                    outcome = await engine.retry(options.run)
                else:
                    outcome = await engine.run(errands, options.names, run_id=options.run)
            except RulvarError as error:
                report("ended", error=type(error).__name__)
            else:
                report("ended", status=outcome.status, executed=outcome.executed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--store", required=True)
    parser.add_argument("--run", default="r")
    parser.add_argument("--kill", action="append", default=[])
    parser.add_argument("--pause", action="append", default=[])
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--unfenced", action="store_true")
    options = parser.parse_args()
    AT.update(dict.fromkeys(options.kill, "kill"))
    AT.update(dict.fromkeys(options.pause, "pause"))
    if options.mended:
        AT["fails"] = "mended"
    asyncio.run(play(options))


if __name__ == "__main__":
    main()
