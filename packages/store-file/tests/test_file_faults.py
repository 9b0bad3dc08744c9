"""Every call to the disk fails once, then for ever: nothing acknowledged is lost, nothing lies.

The same work is done over a disk that fails the first call of a kind, then the second, and
so on until the work passes without meeting the fault. What the store answered decides what
must be found: an acknowledged change is there, a refused one is not, and one of unknown
outcome is one or the other, for good, as soon as the next read is answered.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import OutcomeUnknownError, StoreError, StoreFullError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore
from rulvar.stores.file.errors import translate
from rulvar.stores.file.testing import FAULT_KINDS, FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.stores.file.testing import FaultKind

LONG = "Z" * 150


@dataclass(frozen=True)
class State:
    """What a store holds, as a value."""

    journals: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)


RUNS = ("a", "b", LONG)
Step = tuple["Callable[[FileJournalStore], None]", "Callable[[State], State]"]


def append(run_id: str, seq: int) -> Step:
    record = JournalRecord(seq=seq, payload=b'{"seq":%d,"v":"%s"}' % (seq, b"x" * 50))

    def after(state: State) -> State:
        known = state.journals.get(run_id, ())
        return replace(state, journals={**state.journals, run_id: (*known, seq)})

    return lambda store: store.append(run_id, record), after


def put_meta(run_id: str, status: str) -> Step:
    meta = RunMeta(run_id=run_id, status=status, updated_at="now")
    return (
        lambda store: store.put_meta(meta),
        lambda state: replace(state, rows={**state.rows, run_id: status}),
    )


def put_blob(ref: str, blob: bytes) -> Step:
    return (
        lambda store: store.transcripts().put(ref, blob),
        lambda state: replace(state, blobs={**state.blobs, ref: blob}),
    )


def delete_blob(ref: str) -> Step:
    def after(state: State) -> State:
        return replace(state, blobs={k: v for k, v in state.blobs.items() if k != ref})

    return lambda store: store.transcripts().delete(ref), after


def delete(run_id: str, *, whole: bool) -> Step:
    def after(state: State) -> State:
        return State(
            {k: v for k, v in state.journals.items() if k != run_id},
            {k: v for k, v in state.rows.items() if k != run_id},
            {k: v for k, v in state.blobs.items() if not whole or k.partition("/")[0] != run_id},
        )

    if whole:
        return lambda store: store.delete_whole_run(run_id), after
    return lambda store: store.delete(run_id), after


STEPS: list[Step] = [
    put_meta("a", "running"),
    append("a", 0),
    append("a", 1),
    put_blob("a/turn/1", b"one"),
    put_blob("a/turn/1", b"two"),
    append("b", 0),
    put_meta("b", "running"),
    put_blob("b/x", b"x"),
    append("a", 2),
    delete("b", whole=False),
    append("b", 7),
    delete_blob("b/x"),
    append(LONG, 0),
    put_blob(f"{LONG}/{LONG}", b"y"),
    put_meta(LONG, "ok"),
    delete(LONG, whole=True),
    append(LONG, 3),
    put_meta("a", "ok"),
    append("a", 5),
]


AFTER_A_CRASH: list[Step] = [
    append("a", 2),
    append("a", 3),
    append("b", 0),
    put_meta("b", "ok"),
    append(LONG, 6),
]


def crashed(root: Path) -> State:
    """Leave a folder as a crash does: a torn end, two records joined, a deletion half done."""
    with FileJournalStore(root, filesystem=FaultyFileSystem()) as store:
        for step, _ in (append("a", 0), append("a", 1), append("b", 5), append(LONG, 4)):
            step(store)
        put_meta("b", "running")[0](store)
        layout = store._directory.layout
    with open(layout.journal("a"), "ab") as file:  # noqa: PTH123
        file.write(b'{"seq":2,"v":"xx')
    with open(layout.journal(LONG), "ab") as file:  # noqa: PTH123
        file.write(b'{"seq":5}{"seq":6,')
    with open(layout.deletion("b", blobs=False), "xb") as file:  # noqa: PTH123
        file.write(b"{}\n")
    with open(f"{layout.temporary}/0", "xb") as file:  # noqa: PTH123
        file.write(b'{"se')
    return State(journals={"a": (0, 1), LONG: (4, 5)})


def state_of(store: FileJournalStore) -> State:
    """Read everything, and hold the listings against it."""
    journals = {
        run_id: tuple(record.seq for record in records)
        for run_id in RUNS
        if (records := store.load(run_id))
    }
    rows = {run_id: row.status for run_id in RUNS if (row := store.get_meta(run_id)) is not None}
    blobs = {
        ref: blob
        for run_id in RUNS
        for ref in store.transcripts().list_refs(run_id)
        if (blob := store.transcripts().get(ref)) is not None
    }
    assert {row.run_id: row.status for row in store.list_runs()} == rows
    traces = {*journals, *rows, *(ref.partition("/")[0] for ref in blobs)}
    assert set(store.list_run_ids(None, 10)) == traces
    return State(journals, rows, blobs)


def open_store(root: Path, files: FaultyFileSystem) -> FileJournalStore | None:
    try:
        return FileJournalStore(root, filesystem=files)
    except StoreError:
        return None


class Work:
    """One pass of the work, and every state that the store may be in by what it answered."""

    def __init__(self, root: Path, files: FaultyFileSystem) -> None:
        self.root = root
        self.files = files
        self.possible = [State()]
        self.steps = STEPS

    def run(self) -> None:
        store = open_store(self.root, self.files)
        if store is None and not self.files.for_ever:
            store = FileJournalStore(self.root, filesystem=self.files)
        if store is None:
            return
        for step in self.steps:
            self._do(store, step)
        store.close()

    def _do(self, store: FileJournalStore, step: Step) -> None:
        """Do a step; where the fault is gone again, do it again until it has landed."""
        act, after = step
        landed = [after(state) for state in self.possible]
        try:
            act(store)
        except OutcomeUnknownError:
            self.possible += landed
            self._read(store)
            if not self.files.for_ever and self.possible != landed:
                act(store)
                self.possible = landed
        except StoreError:
            self._read(store)
            if not self.files.for_ever:
                act(store)
                self.possible = landed
        else:
            self.possible = landed

    def _read(self, store: FileJournalStore) -> None:
        """An answered read settles what was open; one that fails too settles nothing."""
        try:
            found = state_of(store)
        except StoreError:
            assert self.files.for_ever
            return
        assert found in self.possible
        self.possible = [found]


@pytest.mark.slow
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("start", ["fresh", "after a crash"])
def test_the_nth_call_fails(tmp_path: Path, start: str, kind: FaultKind, for_ever: bool) -> None:
    at = 0
    while True:
        at += 1
        root = tmp_path / str(at)
        files = FaultyFileSystem(kind, at=at, for_ever=for_ever)
        work = Work(root, files)
        if start != "fresh":
            work.possible = [crashed(root)]
            work.steps = AFTER_A_CRASH
        begun = work.possible[0]
        work.run()
        with FileJournalStore(root, filesystem=FaultyFileSystem()) as store:
            found = state_of(store)
        assert found in work.possible, f"{kind} call {at}"
        with FileJournalStore(root, read_only=True) as store:
            assert state_of(store) == found
        if not files.fired:
            break
        if not for_ever:
            assert len(work.possible) == 1
    for _, after in work.steps:
        begun = after(begun)
    assert found == work.possible[0] == begun
    # Only what puts an end right cuts, and only a fresh folder makes folders.
    met = {"truncate": start != "fresh", "folder": start == "fresh"}.get(kind, True)
    assert at > (2 if met else 0)


class InterruptingFileSystem(FaultyFileSystem):
    """Interrupts before the n-th call of any kind, as Ctrl-C may."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def _fails(self, kind: FaultKind) -> bool:
        del kind
        self.calls += 1
        if self.calls == self.at:
            self.fired = True
            raise KeyboardInterrupt
        return False


@pytest.mark.slow
def test_an_interrupt_at_every_call_leaves_a_store_that_goes_on(tmp_path: Path) -> None:
    at, files = 0, None
    while files is None or files.fired:
        at += 1
        files = InterruptingFileSystem(at)
        try:
            store = FileJournalStore(tmp_path / str(at), filesystem=files)
        except KeyboardInterrupt:
            store = FileJournalStore(tmp_path / str(at), filesystem=files)
        state = State()
        for act, then in STEPS:
            try:
                act(store)
            except KeyboardInterrupt:
                found = state_of(store)
                assert found in (state, then(state)), at
                if found == state:
                    act(store)
            state = then(state)
        try:
            store.close()
        except KeyboardInterrupt:
            store.close()
        with FileJournalStore(tmp_path / str(at), filesystem=FaultyFileSystem()) as store:
            assert state_of(store) == state
    assert at > 120


class TwoFaults(FaultyFileSystem):
    """Fails a write, and then the first cut that would undo it."""

    cuts_to_fail = 1

    def truncate(self, descriptor: int, size: int, /) -> None:
        if self.fired and self.cuts_to_fail:
            self.cuts_to_fail -= 1
            raise OSError(5, "injected")
        super().truncate(descriptor, size)


def test_an_undo_that_fails_is_finished_before_the_next_read(tmp_path: Path) -> None:
    files = TwoFaults("write", at=0)
    record = JournalRecord(seq=0, payload=b'{"seq":0}')
    second = JournalRecord(seq=1, payload=b'{"seq":1}')
    with FileJournalStore(tmp_path / "store", filesystem=files) as store:
        store.append("run", record)
        files.at = 1
        with pytest.raises(OutcomeUnknownError):
            store.append("run", second)
        path = tmp_path / "store" / "journals" / "run.jsonl"
        assert path.read_bytes() == b'{"seq":0}\n{"seq'
        assert store.load("run") == [record]
        assert path.read_bytes() == b'{"seq":0}\n'
        store.append("run", second)
        assert store.load("run") == [record, second]


def test_a_full_disk_is_told_undone_and_no_end(tmp_path: Path) -> None:
    files = FaultyFileSystem("write")
    path = tmp_path / "store" / "journals" / "run.jsonl"
    records = [JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq) for seq in range(3)]
    with FileJournalStore(tmp_path / "store", filesystem=files) as store:
        store.append("run", records[0])
        files.at, files.for_ever = 1, True
        for _ in range(3):
            with pytest.raises(StoreFullError) as caught:
                store.append("run", records[1])
            assert caught.value.run_id == "run"
            assert path.read_bytes() == b'{"seq":0}\n'
            with pytest.raises(StoreFullError):
                store.append("new", records[0])
            with pytest.raises(StoreFullError):
                store.put_meta(RunMeta(run_id="run", status="ok", updated_at="now"))
            with pytest.raises(StoreFullError):
                store.transcripts().put("run/x", b"blob")
            assert store.load("run") == records[:1]
            assert list((tmp_path / "store" / "temporary").iterdir()) == []
        files.for_ever = False
        store.append("run", records[1])
        assert store.load("run") == records[:2]


class NoDecisions(FaultyFileSystem):
    """Cannot make the names in one folder durable."""

    def sync_folder(self, path: str, /) -> None:
        if self.fired and path.endswith("deleting"):
            raise OSError(5, "injected", path)
        super().sync_folder(path)


def test_a_deletion_that_is_not_durable_is_not_called_one(tmp_path: Path) -> None:
    files = NoDecisions()
    with FileJournalStore(tmp_path / "store", filesystem=files) as store:
        store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
        files.fired = True
        with pytest.raises(OutcomeUnknownError):
            store.delete("run")
        files.fired = False
        assert store.load("run") == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EIO, "see to the disk"),
        (errno.EACCES, "give this user the right"),
        (errno.EROFS, "read_only"),
        (errno.EMFILE, "raise the limit"),
        (errno.ENOENT, "moved or removed"),
    ],
)
def test_trouble_is_told_with_what_helps_against_it(number: int, remedy: str) -> None:
    told = translate(OSError(number, os.strerror(number), "/runs/rows"), path="/runs", run_id="a")
    assert str(told).startswith(f"/runs/rows: {os.strerror(number)}: ")
    assert remedy in str(told)
    assert str(told).endswith(", then try again")
    assert (type(told), told.run_id) == (StoreError, "a")
