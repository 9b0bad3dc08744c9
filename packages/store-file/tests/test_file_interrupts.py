"""Ctrl-C at every point of every call: what the store remembers stays true of its files.

The store keeps the end of each journal, the list of runs and which folders are durable in
memory. Each call here is interrupted at its first point, then at its second, until it completes
untouched. Afterwards every read is answered, twice alike, the run can be written, and
a store that is opened anew finds the same.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from rulvar.conformance.harness.interrupts import Interrupted
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STUCK_S = 20


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


def state_of(store: FileJournalStore) -> State:
    twin = store.transcripts()
    return State(
        list(store.load("run")),
        store.get_meta("run"),
        [(ref, twin.get(ref)) for ref in twin.list_refs("run")],
        list(store.list_run_ids(None, 10)),
        list(store.list_runs()),
    )


def nothing(_: FileJournalStore) -> None:
    pass


def filled(store: FileJournalStore) -> None:
    for seq in range(3):
        store.append("run", record(seq))
    store.put_meta(meta("before"))
    store.transcripts().put("run/turn", b"before")
    store.append("zero", record(0))
    store.list_runs()


def unlisted(store: FileJournalStore) -> None:
    store.list_runs()
    store.append("a run before the others", record(0))
    store.append("run", record(0))


def deleted(store: FileJournalStore) -> None:
    filled(store)
    store.delete_whole_run("run")


def append_stale(store: FileJournalStore) -> None:
    with pytest.raises(JournalOrderViolation):
        store.append("run", record(2))


CALLS: dict[
    str, tuple[Callable[[FileJournalStore], None], Callable[[FileJournalStore], object]]
] = {
    "the first append": (nothing, lambda store: store.append("run", record(0))),
    "an append": (filled, lambda store: store.append("run", record(3))),
    "an append that is refused": (filled, append_stale),
    "the first put_meta": (nothing, lambda store: store.put_meta(meta("after"))),
    "put_meta": (filled, lambda store: store.put_meta(meta("after"))),
    "delete": (filled, lambda store: store.delete("run")),
    "delete of what is not there": (deleted, lambda store: store.delete("run")),
    "delete_whole_run": (filled, lambda store: store.delete_whole_run("run")),
    "the first put": (nothing, lambda store: store.transcripts().put("run/turn", b"after")),
    "put over a blob": (filled, lambda store: store.transcripts().put("run/turn", b"after")),
    "put beside a blob": (filled, lambda store: store.transcripts().put("run/other", b"after")),
    "delete of a blob": (filled, lambda store: store.transcripts().delete("run/turn")),
    "load": (filled, lambda store: store.load("run")),
    "load_after": (filled, lambda store: store.load_after("run", 1, 10)),
    "get": (filled, lambda store: store.transcripts().get("run/turn")),
    "list_runs": (filled, lambda store: store.list_runs()),
    "list_run_ids with new runs": (unlisted, lambda store: store.list_run_ids(None, 10)),
    "close": (filled, lambda store: store.close()),
    "list_run_ids with a run less": (deleted, lambda store: store.list_run_ids(None, 10)),
}


# Where the store changes more than one thing that it remembers; the rest runs with the storms.
_OFTEN = {"an append", "delete", "list_run_ids with new runs"}
_CASES = [
    pytest.param(name, marks=pytest.mark.slow if name in _OFTEN else pytest.mark.storm)
    for name in CALLS
]


# What had just been opened, and has no name yet, Python itself closes.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", _CASES)
def test_what_the_store_remembers_is_right_after_an_interrupt_anywhere(
    name: str, tmp_path: Path
) -> None:
    prepare, call = CALLS[name]
    before, whole = expected(prepare, call, tmp_path / "expected")
    found: list[State] = []
    interrupted = True
    while interrupted:
        at = len(found) + 1
        root = tmp_path / str(at)
        store = FileJournalStore(root, filesystem=FaultyFileSystem())
        prepare(store)
        interrupt = Interrupted(partial(call, store), at=at)
        assert interrupt.run(_STUCK_S), interrupt.where
        assert interrupt.outcome == ("KeyboardInterrupt" if interrupt.hit else "returned")
        if name == "close":
            store.close()
            store = FileJournalStore(root, filesystem=FaultyFileSystem())
        now = soon(partial(goes_on, store, root), f"point {at}, {interrupt.where}")
        assert now in (before, whole), interrupt.where
        found.append(now)
        interrupted = interrupt.hit
    assert len(found) > 20
    assert found[-1] == whole


def expected(
    prepare: Callable[[FileJournalStore], None],
    call: Callable[[FileJournalStore], object],
    root: Path,
) -> tuple[State, State]:
    """Return what is there before the call and after it, seen by a store that knows nothing."""
    seen: list[State] = []
    for act in (prepare, call):
        with FileJournalStore(root, filesystem=FaultyFileSystem()) as store:
            act(store)
        with FileJournalStore(root, filesystem=FaultyFileSystem()) as store:
            seen.append(state_of(store))
    return seen[0], seen[1]


def goes_on(store: FileJournalStore, root: Path) -> State:
    """Read twice, write, and open anew; return what was read first."""
    now = state_of(store)
    assert state_of(store) == now
    seq = now.records[-1].seq + 1 if now.records else 0
    store.append("run", record(seq))
    later = state_of(store)
    assert later.records == [*now.records, record(seq)]
    store.close()
    with FileJournalStore(root, filesystem=FaultyFileSystem()) as again:
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
