"""One process of the deletion tests: deletes, prunes or retains, and kills itself on the way.

It dies by SIGKILL at its n-th store call, before it or just after it; it ends by itself, with
status 0, when it makes fewer calls than that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import TYPE_CHECKING

from rulvar.core import Engine, RetentionPolicy, assert_fenced_writes, open_stores
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall


async def act(stores: StorePair, role: str) -> None:
    async with Engine(stores) as engine:
        if role == "delete":
            await engine.delete_run("r")
        elif role == "prune":
            await engine.prune_run("r")
        else:
            await engine.apply_retention(RetentionPolicy(older_than=0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["delete", "prune", "retain"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--at", type=int, required=True)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--hide", action="append", default=[])
    options = parser.parse_args()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.number == options.at and not options.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = perform()
        if call.number == options.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    with open_stores(options.store) as opened:
        watched = WatchedStores(assert_fenced_writes(opened), around=around, without=options.hide)
        asyncio.run(act(watched, options.role))


if __name__ == "__main__":
    main()
