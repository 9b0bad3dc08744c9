"""Leased appends through the store against raw autocommit inserts, as ratios.

Raw is one apsw connection that inserts into the same layout at the same pragmas, one
autocommit transaction each, on one thread. Passes of all contenders are interleaved on the
same disk, so that a slow minute hits them alike; each figure is a median over passes, and a
ratio compares within its own pass.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import apsw

from rulvar.core.engine.io.bridge import Bridge
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.records import Lease


Durability = Literal["full", "normal"]

TARGETS = {("full", "1 thread"): 0.75, ("full", "64 threads"): 2.5, ("full", "64 tasks"): 1.8}
PAYLOAD_BYTES = 400


@dataclass
class Pass:
    """How fast one pass was, and how long its calls took."""

    per_second: float
    latencies_ms: list[float] = field(default_factory=list)

    def p99_ms(self) -> float:
        """Return the 99th percentile of the calls' times."""
        ordered = sorted(self.latencies_ms)
        return ordered[int(len(ordered) * 0.99)] if ordered else 0.0


def payload(seq: int) -> bytes:
    """Return a typical entry of `PAYLOAD_BYTES` bytes."""
    head = f'{{"seq":{seq},"kind":"step","status":"ok","key":"count","value":"'
    return f'{head}{"x" * (PAYLOAD_BYTES - len(head) - 2)}"}}'.encode()


def raw(folder: Path, durability: Durability, count: int) -> Pass:
    """Insert with one autocommit statement each, on the layout that the store makes."""
    path = str(folder / "raw.db")
    SqliteStore(path, durability=durability).close()
    connection = apsw.Connection(path)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(f"PRAGMA synchronous = {durability}").fetchall()
    texts = [payload(seq).decode() for seq in range(count)]
    statement = "INSERT INTO entries (run_id, payload) VALUES (?, ?)"
    latencies: list[float] = []
    started = time.perf_counter()
    for text in texts:
        begun = time.perf_counter()
        connection.execute(statement, ("run", text))
        latencies.append((time.perf_counter() - begun) * 1000)
    seconds = time.perf_counter() - started
    connection.close()
    return Pass(count / seconds, latencies)


def threads(folder: Path, durability: Durability, count: int, callers: int) -> Pass:
    """Append under a lease from ``callers`` threads of one store object, a run for each."""
    store = SqliteStore(folder / f"threads-{callers}.db", durability=durability)
    each = max(1, count // callers)
    records = [JournalRecord(seq=seq, payload=payload(seq)) for seq in range(each)]
    leases = [store.acquire(f"run-{number}", "bench") for number in range(callers)]
    barrier = threading.Barrier(callers + 1)
    latencies: list[list[float]] = [[] for _ in range(callers)]

    def work(lease: Lease, mine: list[float]) -> None:
        barrier.wait()
        for record in records:
            begun = time.perf_counter()
            store.append(lease.run_id, record, lease=lease)
            mine.append((time.perf_counter() - begun) * 1000)

    crowd = [
        threading.Thread(target=work, args=pair) for pair in zip(leases, latencies, strict=True)
    ]
    for thread in crowd:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in crowd:
        thread.join()
    seconds = time.perf_counter() - started
    store.close()
    return Pass(each * callers / seconds, [one for mine in latencies for one in mine])


def tasks(folder: Path, durability: Durability, count: int, callers: int) -> Pass:
    """Append under a lease from asyncio tasks, through the bridge that an engine uses."""
    store = SqliteStore(folder / f"tasks-{callers}.db", durability=durability)
    bridge = Bridge(threads=callers)
    each = max(1, count // callers)
    records = [JournalRecord(seq=seq, payload=payload(seq)) for seq in range(each)]
    leases = [store.acquire(f"run-{number}", "bench") for number in range(callers)]
    latencies: list[float] = []

    async def work(lease: Lease) -> None:
        for record in records:
            begun = time.perf_counter()
            append = partial(store.append, lease.run_id, record, lease=lease)
            await bridge.call(append)
            latencies.append((time.perf_counter() - begun) * 1000)

    async def crowd() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(work(lease) for lease in leases))
        return time.perf_counter() - started

    seconds = asyncio.run(crowd())
    bridge.close()
    store.close()
    return Pass(each * callers / seconds, latencies)


Contender = tuple[str, "Callable[[Path, Durability, int], Pass]"]


def contenders() -> list[Contender]:
    """Return who is measured, besides raw."""
    return [
        *((f"{n} thread" + "s" * (n > 1), partial(threads, callers=n)) for n in (1, 8, 64)),
        *((f"{n} task" + "s" * (n > 1), partial(tasks, callers=n)) for n in (1, 8, 64)),
    ]


def measure(durability: Durability, passes: int, count: int, *, judged: bool) -> bool:
    """Print one table, with verdicts if ``judged``; return whether every target was met."""
    results: dict[str, list[Pass]] = {}
    raws: list[Pass] = []
    for _ in range(passes):
        with tempfile.TemporaryDirectory() as folder:
            raws.append(raw(Path(folder), durability, count))
            for name, run in contenders():
                results.setdefault(name, []).append(run(Path(folder), durability, count))
    base = statistics.median(one.per_second for one in raws)
    print(f"\nsynchronous={durability}, {passes} passes, {count} appends of {PAYLOAD_BYTES} bytes")
    print(f"{'raw autocommit':<16}{base:>10,.0f}/s")
    met = True
    for name, found in results.items():
        ratios = [one.per_second / r.per_second for one, r in zip(found, raws, strict=True)]
        rate = statistics.median(one.per_second for one in found)
        p99 = statistics.median(one.p99_ms() for one in found)
        ratio = statistics.median(ratios)
        target = TARGETS.get((durability, name))
        told = "" if not judged else ": met" if target is None or ratio >= target else ": MISSED"
        verdict = "" if target is None else f"  target {target}{told}"
        met = met and (target is None or ratio >= target)
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{name:<16}{rate:>10,.0f}/s  x{ratio:.2f} ({spread})  p99 {p99:.2f} ms{verdict}")
    return met


def main() -> int:
    """Measure; exit 1 when a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/bench_append.py --quick --durability full",
    )
    parser.add_argument("--quick", action="store_true", help="few passes: a look, no verdict")
    parser.add_argument("--passes", type=int, default=None)
    parser.add_argument("--count", type=int, default=None, help="appends in each pass")
    parser.add_argument("--durability", choices=("full", "normal"), default=None)
    given = parser.parse_args()
    passes = given.passes or (3 if given.quick else 7)
    count = given.count or (1_500 if given.quick else 6_400)
    wanted: tuple[Durability, ...] = ("full", "normal")
    met = [
        measure(durability, passes, count, judged=not given.quick)
        for durability in wanted
        if given.durability in {None, durability}
    ]
    return 0 if all(met) or given.quick else 1


if __name__ == "__main__":
    sys.exit(main())
