"""What it costs to compare a database's names with what is open, before and after each commit.

Two stores on the same disk, one of which does not look; passes alternate, and each ratio is
taken within its own pair of passes. What is compared is the processor's time, which other work
on the machine disturbs least; waiting for the disk is not in it. Prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.sqlite.open_files import OpenFiles
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.core.records import Lease

    Work = Callable[[SqliteStore, Lease, int], object]
    Durability = Literal["full", "normal"]

PAYLOAD = '{"seq":%d,"kind":"step","status":"ok","key":"count","value":"' + "x" * 330 + '"}'
WHEN = "2026-01-01T00:00:00.000Z"


def append(store: SqliteStore, lease: Lease, at: int) -> None:
    """Append one leased entry."""
    store.append("run", JournalRecord(seq=at, payload=(PAYLOAD % at).encode()), lease=lease)


def get_meta(store: SqliteStore, lease: Lease, at: int) -> None:  # noqa: ARG001 - as `append`
    """Read one row."""
    store.get_meta("run")


@contextmanager
def looking(wanted: bool) -> Iterator[None]:
    """Let stores look at the names, or not."""
    if wanted:
        yield
        return
    nothing = lambda _: None  # noqa: E731 - one for both
    with patch.multiple(OpenFiles, check=nothing, check_landing=nothing):
        yield


def seconds_per_call(
    work: Work,
    durability: Durability,
    count: int,
    *,
    look: bool,
) -> float:
    """Return how long one call takes in a fresh store."""
    with tempfile.TemporaryDirectory() as folder, looking(look):
        store = SqliteStore(Path(folder) / "runs.db", durability=durability)
        lease = store.acquire("run", "bench")
        store.put_meta(RunMeta(run_id="run", status="running", updated_at=WHEN), lease=lease)
        store.get_meta("run")
        begun = time.process_time()
        for at in range(count):
            work(store, lease, at)
        spent = time.process_time() - begun
        store.close()
    return spent / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--count", type=int, default=3_000)
    arguments = parser.parse_args()
    cases: list[tuple[str, Work, Durability]] = [
        ("append", append, "full"),
        ("append", append, "normal"),
        ("get_meta", get_meta, "full"),
    ]
    for name, work, durability in cases:
        ratios, with_us, without_us = [], [], []
        for at in range(arguments.passes):
            order = (True, False) if at % 2 else (False, True)
            took = {
                look: seconds_per_call(work, durability, arguments.count, look=look)
                for look in order
            }
            ratios.append(took[True] / took[False])
            with_us.append(took[True] * 1e6)
            without_us.append(took[False] * 1e6)
        print(
            f"{name:8} {durability:6}  {statistics.median(without_us):7.1f} us without, "
            f"{statistics.median(with_us):7.1f} us with: {statistics.median(ratios):.3f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
