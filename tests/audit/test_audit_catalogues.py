"""Large catalogues and long journals are audited in bounded memory; every trace is found."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core import Stores
from rulvar.core.audit import audit_runs
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = 1_000
"""Entries of a long journal."""

FILL = """
import json, sys
import apsw

path, runs, long_runs, long = sys.argv[1], *map(int, sys.argv[2:])
connection = apsw.Connection(path)
connection.execute("PRAGMA synchronous = OFF").fetchall()

def entry(seq, kind, status, **facts):
    members = {"hashVersion": 102, "seq": seq, "kind": kind, "status": status, "epoch": 1}
    return json.dumps(members | facts)

def journal(number, entries):
    start = {"decisionType": "run_start", "workflow": "w", "genesis": "g"}
    yield entry(0, "decision", "ok", value=start)
    for seq in range(1, entries - 1, 2):
        yield entry(seq, "step", "running", key=f"s{seq}")
        yield entry(seq + 1, "step", "ok", key=f"s{seq}", ref=seq, value="x" * 100)
    settle = {"decisionType": "run_settle", "runStatus": "ok", "segment": 1}
    at = "2026-01-02T03:04:05.000Z"
    yield entry(seq + 2, "decision", "ok", value=settle, endedAt=at)

def everything():
    for number in range(runs):
        entries = long if number < long_runs else 3
        for payload in journal(number, entries):
            yield f"run-{number:07}", payload

rows = (
    (f"run-{number:07}", json.dumps({
        "runId": f"run-{number:07}",
        "status": "running" if number % 1000 == 0 else "ok",
        "updatedAt": "2026-01-02T03:04:05.000Z", "segments": 1, "genesis": "g",
    }))
    for number in range(runs)
)
with connection:
    connection.executemany("INSERT INTO entries (run_id, payload) VALUES (?, ?)", everything())
    connection.executemany("INSERT INTO meta (run_id, payload) VALUES (?, ?)", rows)
"""

AUDIT = """
import collections, json, resource, sys, time
from rulvar.core import open_stores
from rulvar.core.audit import audit_runs, count_runs

def peak_kib():
    if sys.platform == "linux":
        # The other figure is inherited from whoever started this process.
        status = open("/proc/self/status").read()
        return int(status.partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with open_stores(sys.argv[1]) as stores:
    # Everything is imported and opened once before the measure is taken.
    first = next(audit_runs(stores, run_ids=["run-0000000"])).verdict
    before, began = peak_kib(), time.monotonic()
    counted = count_runs(stores)
    verdicts = collections.Counter(audit.verdict for audit in audit_runs(stores))
print(json.dumps({
    "first": first, "counted": counted, "verdicts": verdicts,
    "before_kib": before, "grown_kib": peak_kib() - before, "seconds": time.monotonic() - began,
}))
"""


def fill(path: Path, runs: int, long_runs: int) -> None:
    SqliteStore(path).close()  # makes the layout
    numbers = [str(runs), str(long_runs), str(LONG)]
    subprocess.run([sys.executable, "-c", FILL, str(path), *numbers], check=True, timeout=300)


def audit_in_a_process(path: Path) -> dict[str, object]:
    command = [sys.executable, "-c", AUDIT, f"sqlite:///{path}?read_only=true"]
    done = subprocess.run(command, check=True, timeout=900, capture_output=True)
    return cast("dict[str, object]", json.loads(done.stdout))


@contextmanager
def opened(path: Path) -> Iterator[Stores]:
    with SqliteStore(path, read_only=True) as store:
        yield Stores(store, store.transcripts())


def peak_of_an_audit(path: Path) -> tuple[int, int]:
    """Return how many runs were audited, and the most bytes that were in use at once."""
    with opened(path) as stores:
        list(audit_runs(stores, run_ids=["run-0000000"]))
        tracemalloc.start()
        try:
            count = sum(1 for _ in audit_runs(stores))
            return count, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.storm
def test_two_thousand_runs_take_no_more_memory_than_five_hundred(tmp_path: Path) -> None:
    fill(tmp_path / "few.db", 500, 0)
    fill(tmp_path / "many.db", 2_000, 0)
    few, many = peak_of_an_audit(tmp_path / "few.db"), peak_of_an_audit(tmp_path / "many.db")
    assert (few[0], many[0]) == (500, 2_000)
    assert many[1] < few[1] * 1.5, (few, many)


@pytest.mark.storm
def test_journals_of_a_thousand_entries_are_in_memory_one_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path / "one.db", 2, 1)
    fill(tmp_path / "twenty.db", 21, 20)
    one, twenty = peak_of_an_audit(tmp_path / "one.db"), peak_of_an_audit(tmp_path / "twenty.db")
    assert twenty[1] < one[1] * 2, (one, twenty)


@pytest.mark.storm
@pytest.mark.timeout(1_200)
def test_a_hundred_thousand_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    fill(path, 100_000, 20)
    told = audit_in_a_process(path)
    assert told["counted"] == 100_000
    assert told["verdicts"] == {"consistent": 99_900, "meta-behind": 100}
    assert told["first"] == "meta-behind"
    assert cast("int", told["grown_kib"]) < 32 * 1024, told
