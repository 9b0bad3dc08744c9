"""Ctrl-C at every point of every call: what a store and its process remember stays true.

A store remembers its connections and which files they have open; the process remembers that for
all of its stores, and refuses to open a file whose log was taken away. Each call is interrupted
at its first point, then at its second, until it completes untouched. Afterwards the store
answers, twice alike, and writes, and the same file can be opened again beside it and after it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from rulvar.conformance.harness.interrupts import Interrupted
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.core.records import LeaseInfo

_STUCK_S = 20
_TTL_MS = 60_000
LEASE = Lease(run_id="run", owner="worker", epoch=1)


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def meta(name: str) -> RunMeta:
    return RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z", name=name)


class State(NamedTuple):
    """Everything that the store answers."""

    records: list[JournalRecord]
    row: RunMeta | None
    blobs: list[tuple[str, bytes | None]]
    run_ids: list[str]
    rows: list[RunMeta]
    leases: list[LeaseInfo]


def state_of(store: SqliteStore) -> State:
    twin = store.transcripts()
    return State(
        list(store.load("run")),
        store.get_meta("run"),
        [(ref, twin.get(ref)) for ref in twin.list_refs("run")],
        list(store.list_run_ids(None, 10)),
        list(store.list_runs()),
        list(store.list_leases(None, 10)),
    )


def opened(path: Path | str, clock: ManualClock) -> SqliteStore:
    return SqliteStore(path, clock=clock, lease_ttl_ms=_TTL_MS)


def filled(path: Path | str, clock: ManualClock) -> SqliteStore:
    store = opened(path, clock)
    store.append("run", record(0))
    store.put_meta(meta("before"))
    store.transcripts().put("run/turn", b"before")
    assert store.acquire("run", "worker") == LEASE
    return store


CALLS: dict[str, Callable[[SqliteStore], object]] = {
    "append": lambda store: store.append("run", record(1), lease=LEASE),
    "put_meta": lambda store: store.put_meta(meta("after"), lease=LEASE),
    "delete": lambda store: store.delete("run", lease=LEASE),
    "delete_whole_run": lambda store: store.delete_whole_run("run", lease=LEASE),
    "put": lambda store: store.transcripts().put("run/turn", b"after", lease=LEASE),
    "delete of a blob": lambda store: store.transcripts().delete("run/turn", lease=LEASE),
    "acquire": lambda store: store.acquire("other", "worker"),
    "renew": lambda store: store.renew(LEASE),
    "release": lambda store: store.release(LEASE),
    "seize": lambda store: store.seize("run", "operator"),
    "raise_epoch": lambda store: store.raise_epoch("run", 9),
    "the first read of a connection": lambda store: store.load("run"),
    "close, made again": lambda store: store.close(),
    "close, left at that": lambda store: store.close(),
    "opening beside it": lambda store: SqliteStore(store.path).close(),
}
_READS = {
    "the first read of a connection",
    "close, made again",
    "close, left at that",
    "opening beside it",
    "renew",
}
_STORMY = {"opening beside it"}
_CASES = [
    pytest.param(n, marks=pytest.mark.storm if n in _STORMY else pytest.mark.slow) for n in CALLS
]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", _CASES)
def test_what_is_remembered_is_right_after_an_interrupt_anywhere(name: str, tmp_path: Path) -> None:
    call = CALLS[name]
    found: list[State] = []
    interrupted = True
    while interrupted:
        at = len(found) + 1
        path, clock = tmp_path / f"{at}.db", ManualClock()
        store = filled(path, clock)
        interrupt = Interrupted(partial(call, store), at=at)
        assert interrupt.run(_STUCK_S), interrupt.where
        assert interrupt.outcome == ("KeyboardInterrupt" if interrupt.hit else "returned")
        if name == "close, made again":
            store.close()
            assert list(store._database.connections()) == []
        closed = store  # what it still has open counts
        if name.startswith("close"):
            store = opened(path, clock)
        found.append(soon(partial(goes_on, store, clock), f"point {at}, {interrupt.where}"))
        interrupted = interrupt.hit
        closed.close()
    assert len(found) > 15
    # Whole or not at all; and what has landed at one point has landed at each later one.
    before, whole = found[0], found[-1]
    assert (before == whole) is (name in _READS)
    assert found == [before] * found.count(before) + [whole] * (len(found) - found.count(before))


def goes_on(store: SqliteStore, clock: ManualClock) -> State:
    """Read twice, write, open the file beside the store and after it; return what was read."""
    now = state_of(store)
    assert state_of(store) == now
    with opened(store.path, clock) as beside:
        assert state_of(beside) == now
    seq = now.records[-1].seq + 1 if now.records else 0
    store.append("run", record(seq))
    store.acquire("neighbour", "worker")
    later = state_of(store)
    assert later.records == [*now.records, record(seq)]
    store.close()
    with opened(store.path, clock) as again:
        assert state_of(again) == later
    return now


def soon(call: Callable[[], State], where: str) -> State:
    """Make a call on another thread, which must end: nothing waits for what was interrupted."""
    with ThreadPoolExecutor(1) as threads:
        try:
            return threads.submit(call).result(_STUCK_S)
        except Exception as error:
            error.add_note(f"after an interrupt at {where}")
            raise
