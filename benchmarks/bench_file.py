"""The file store beside the SQLite store and beside a bare write-and-sync loop, as ratios.

The bare loop writes the same lines to one open file and syncs after each: what the disk
allows. Passes of all contenders are interleaved on the same disk, so that a slow minute hits
them alike; each figure is a median over passes, and a ratio compares within its own pass.
Listing measures runs that nobody has listed before, and then again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rulvar.core.records import JournalRecord, RunFilter, RunMeta
from rulvar.stores.file.store import FileJournalStore
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.spi import JournalStore

Durability = Literal["full", "normal"]
PAYLOAD_BYTES = 400


def record(seq: int) -> JournalRecord:
    """Return a typical entry of `PAYLOAD_BYTES` bytes."""
    head = f'{{"seq":{seq},"kind":"step","status":"ok","key":"count","value":"'
    payload = f'{head}{"x" * (PAYLOAD_BYTES - len(head) - 2)}"}}'
    return JournalRecord(seq=seq, payload=payload.encode())


def bare(folder: Path, durability: Durability, count: int) -> float:
    """Return how many lines a second an open file takes."""
    lines = [record(seq).payload + b"\n" for seq in range(count)]
    descriptor = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started = time.perf_counter()
    for line in lines:
        os.write(descriptor, line)
        if durability == "full":
            os.fsync(descriptor)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return count / seconds


def open_file(folder: Path, durability: Durability) -> FileJournalStore:
    """Open the file store."""
    return FileJournalStore(folder / "store", durability=durability)


def open_sqlite(folder: Path, durability: Durability) -> SqliteStore:
    """Open the SQLite store."""
    return SqliteStore(folder / "runs.db", durability=durability)


def appends(store: JournalStore, count: int, callers: int) -> float:
    """Return the appends a second of ``callers`` threads, a run for each."""
    each = max(1, count // callers)
    records = [record(seq) for seq in range(each)]
    barrier = threading.Barrier(callers + 1)

    def work(run_id: str) -> None:
        barrier.wait()
        for entry in records:
            store.append(run_id, entry)

    crowd = [threading.Thread(target=work, args=(f"run-{number}",)) for number in range(callers)]
    for thread in crowd:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in crowd:
        thread.join()
    return each * callers / (time.perf_counter() - started)


def loads(store: JournalStore, count: int) -> float:
    """Return the records a second of loading one journal."""
    for entry in map(record, range(count)):
        store.append("long", entry)
    started = time.perf_counter()
    found = store.load("long")
    seconds = time.perf_counter() - started
    if len(found) != count:
        raise AssertionError(len(found))
    return count / seconds


def show(name: str, rates: list[float], against: dict[str, list[float]]) -> None:
    """Print one line: the median rate, and its ratio to each of the others."""
    ratios = "  ".join(
        f"x{statistics.median(a / b for a, b in zip(rates, others, strict=True)):.2f} of {other}"
        for other, others in against.items()
    )
    print(f"{name:<28}{statistics.median(rates):>12,.0f}/s  {ratios}")


def measure(durability: Durability, passes: int, count: int) -> None:
    """Print the table of one durability."""
    found: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        found.setdefault(name, []).append(rate)

    openers: dict[str, Callable[[Path, Durability], FileJournalStore | SqliteStore]] = {
        "file": open_file,
        "sqlite": open_sqlite,
    }

    def store(kind: str, callers: int, folder: Path) -> None:
        with openers[kind](folder, durability) as opened:
            note(f"{kind} {callers}", appends(opened, count, callers))
            if callers == 1:
                note(f"{kind} load", loads(opened, count))

    contenders: list[Callable[[Path], None]] = [
        lambda folder: note("bare", bare(folder, durability, count)),
        *(partial(store, kind, callers) for kind in openers for callers in (1, 8)),
    ]
    for number in range(passes):
        # Each takes each place in turn: a disk is not as fast behind another's work.
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            with tempfile.TemporaryDirectory() as name:
                contender(Path(name))
    print(f"\ndurability={durability}, {passes} passes, {count} appends of {PAYLOAD_BYTES} bytes")
    print(f"{'bare write and sync':<28}{statistics.median(found['bare']):>12,.0f}/s")
    for callers in (1, 8):
        others = {"bare": found["bare"], "sqlite": found[f"sqlite {callers}"]}
        show(f"file, {callers} threads", found[f"file {callers}"], others)
        show(f"sqlite, {callers} threads", found[f"sqlite {callers}"], {"bare": found["bare"]})
    show("file, load (records)", found["file load"], {"sqlite": found["sqlite load"]})


def listing(runs: int) -> None:
    """Print how long a listing of many runs takes, cold, warm, by page and read-only."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "store"
        FileJournalStore(root).close()
        for number in range(runs):
            run_id = f"run-{number:06d}"
            text = f'{{"runId":"{run_id}","status":"running","updatedAt":"now","name":"n"}}\n'
            (root / "rows" / f"{run_id}.json").write_text(text)
            # A journal that cannot be read: a listing that looked into it would fail.
            (root / "journals" / f"{run_id}.jsonl").write_bytes(b"never read\n")

        def timed(what: str, call: Callable[[], object]) -> None:
            started = time.perf_counter()
            call()
            print(f"{what:<44}{(time.perf_counter() - started) * 1000:>10,.1f} ms")

        print(f"\nlisting {runs:,} runs")
        with FileJournalStore(root) as store:
            timed("first list_runs of a writer", store.list_runs)
            timed("the next", store.list_runs)
            page = RunFilter(limit=100, after_run_id=f"run-{runs // 2:06d}")
            timed("a page of 100 in the middle", lambda: store.list_runs(page))
            row = RunMeta(run_id="run-000007", status="ok", updated_at="now")
            store.put_meta(row)
            timed("a page behind a changed row", lambda: store.list_runs(page))
            timed("a page of 100 run ids", lambda: store.list_run_ids(None, 100))
        with FileJournalStore(root, read_only=True) as reader:
            timed("first list_runs of a reader", reader.list_runs)
            timed("the next", reader.list_runs)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python benchmarks/bench_file.py --quick"
    )
    parser.add_argument("--quick", action="store_true", help="few passes: a look, no verdict")
    parser.add_argument("--passes", type=int, default=None)
    parser.add_argument("--count", type=int, default=None, help="appends in each pass")
    parser.add_argument("--runs", type=int, default=None, help="runs in the listing")
    given = parser.parse_args()
    passes = given.passes or (2 if given.quick else 7)
    count = given.count or (400 if given.quick else 2_000)
    durabilities: tuple[Durability, ...] = ("full", "normal")
    for durability in durabilities:
        measure(durability, passes, count)
    listing(given.runs or (5_000 if given.quick else 100_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
