"""Do the leases of many live runs outlive a slow disk: renewed one by one, and many in one unit.

    python benchmarks/bench_renewals.py [--runs N] [--ttl MS] [--commit MS] [--ttls N]

Starts so many runs that wait, over a SQLite store whose every commit takes ``--commit``
milliseconds longer, and watches them for some times to live: how often a lease had run out
before it was renewed (and was taken again), and the longest time between two renewals of one
run. First with eight threads that renew one lease each, then with one unit for all.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from rulvar.core import Engine, Stores, workflow
from rulvar.core.testing import WatchedStores
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.group_commit import Committer

if TYPE_CHECKING:
    from rulvar.core import Context, Event

__all__: list[str] = []

_COMMIT = Committer._commit  # noqa: SLF001 - what is made slow


class Bench:
    """One crowd of waiting runs, and what their renewals were like."""

    def __init__(self, runs: int, ttl_ms: int, commit_ms: float) -> None:
        self.runs = runs
        self.ttl_ms = ttl_ms
        self.commit_s = commit_ms / 1000
        self.slow = False
        self.events: Counter[str] = Counter()
        self.renewed_at: dict[str, float] = {}
        self.longest_s = 0.0

    def commit(self, committer: Committer) -> None:
        """Commit as ever, and then wait as for a slow disk: callers share a commit."""
        _COMMIT(committer)
        if self.slow:
            time.sleep(self.commit_s)

    def observe(self, event: Event) -> None:
        self.events[event.kind] += 1
        if event.kind in {"lease.granted", "lease.renewed", "lease.reacquired"}:
            now = time.monotonic()
            before = self.renewed_at.get(event.run_id, now)
            self.renewed_at[event.run_id] = now
            if self.slow:
                self.longest_s = max(self.longest_s, now - before)

    def play(self, folder: Path, ttls: float, *, together: bool) -> str:
        """Watch the crowd for so many times to live; return a line of the table."""

        @workflow
        async def waits(ctx: Context) -> None:
            await ctx.step("wait", asyncio.sleep, 3_600)

        async def main(stores: Stores) -> tuple[int, float]:
            without = () if together else ("renew_all",)
            watched = WatchedStores(stores, without=without)
            async with Engine(watched, [waits], observer=self.observe) as engine:
                handles = [engine.start(waits, run_id=f"r{n}") for n in range(self.runs)]
                for handle in handles:
                    await handle.began()
                self.slow = True
                self.events.clear()
                await asyncio.sleep(ttls * self.ttl_ms / 1000)
                lost = sum(handle.done for handle in handles)
                self.slow = False
                taken_again = self.events["lease.reacquired"]
                return lost + taken_again, self.longest_s

        name = "together" if together else "apart"
        path = folder / f"{name}.db"

        def commit(committer: Committer) -> None:
            self.commit(committer)

        slow = patch.object(Committer, "_commit", commit)
        with slow, SqliteStore(path, lease_ttl_ms=self.ttl_ms, durability="normal") as store:
            late, longest_s = asyncio.run(main(Stores(store, store.transcripts())))
        renewals = self.events["lease.renewed"]
        return f"{name:<10} {renewals:>9} {late:>14} {longest_s:>16.2f}"


def main() -> None:
    """Print both lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1_500)
    parser.add_argument("--ttl", type=int, default=6_000, help="time to live in milliseconds")
    parser.add_argument("--commit", type=float, default=10.0, help="milliseconds of a commit")
    parser.add_argument("--ttls", type=float, default=3.0, help="how long to watch")
    options = parser.parse_args()
    print(f"{options.runs} runs, ttl {options.ttl} ms, {options.commit} ms for a commit")
    print(f"{'renewed':<10} {'renewals':>9} {'ran out before':>14} {'longest wait (s)':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for together in (False, True):
            bench = Bench(options.runs, options.ttl, options.commit)
            print(bench.play(Path(folder), options.ttls, together=together), flush=True)


if __name__ == "__main__":
    main()
