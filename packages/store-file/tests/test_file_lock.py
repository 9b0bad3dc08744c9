"""One writer, whoever else tries: processes that race, die, stop, fork and forget."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import StoreClosedError, StoreForkedError, StoreInUseError
from rulvar.core.records import JournalRecord
from rulvar.core.testing import ManualClock
from rulvar.core.wire import format_time
from rulvar.stores.file import FileJournalStore, FileStores
from rulvar.stores.file.filesystem import READ
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

RECORD = JournalRecord(seq=0, payload=b'{"seq":0}')

CHILD = """
import os, sys, time
from rulvar.core.errors import StoreInUseError
from rulvar.core.records import JournalRecord
from rulvar.stores.file import FileJournalStore

store = None
for line in sys.stdin:
    order, *rest = line.split()
    if order == "open":
        root, moment = rest
        while time.monotonic() < float(moment):
            pass
        try:
            store = FileJournalStore(root, durability="normal")
            print("won", flush=True)
        except StoreInUseError as error:
            print("lost", error.holder, flush=True)
    elif order == "append":
        store.append("run", JournalRecord(seq=int(rest[0]), payload=b'{"seq":%d}' % int(rest[0])))
        print("appended", flush=True)
    elif order == "fork":
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, b"up")
            time.sleep(600)
            os._exit(0)
        os.read(read, 2)
        print(pid, flush=True)
    elif order == "close":
        if store is not None:
            store.close()
        store = None
        print("closed", flush=True)
"""


class Process:
    """Another process, which does as it is told and answers in a line."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._child.pid

    def tell(self, *order: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join(map(str, order)) + "\n")
        self._child.stdin.flush()

    def answer(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def ask(self, *order: object) -> str:
        self.tell(*order)
        return self.answer()

    def open(self, root: Path) -> str:
        return self.ask("open", root, 0)

    def kill(self) -> None:
        self._child.kill()
        self.end()

    def end(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()
        self._child.wait()


@contextmanager
def processes(count: int) -> Iterator[list[Process]]:
    children = [Process() for _ in range(count)]
    try:
        yield children
    finally:
        for child in children:
            child.end()


def race(folder: Path, rounds: int) -> None:
    with processes(2) as children:
        for number in range(rounds):
            # Half of the races are for a folder that is not there yet.
            root = folder / (f"new-{number}" if number % 2 else "old")
            moment = time.monotonic() + 0.003
            for child in children:
                child.tell("open", root, moment)
            answers = [child.answer() for child in children]
            winner = 0 if answers[0] == "won" else 1
            assert answers[winner] == "won"
            assert (
                f"process {children[winner].pid} on {socket.gethostname()}" in answers[1 - winner]
            )
            assert answers[1 - winner].startswith("lost ")
            assert [child.ask("close") for child in children] == ["closed"] * 2


def test_two_processes_race_for_the_folder(tmp_path: Path) -> None:
    race(tmp_path, 40)


@pytest.mark.storm
def test_two_processes_race_for_the_folder_two_hundred_times(tmp_path: Path) -> None:
    race(tmp_path, 200)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every name below the root with its bytes and its time of change."""
    return {
        str(each.relative_to(root)): (
            each.read_bytes() if each.is_file() else b"",
            each.stat().st_mtime_ns,
        )
        for each in [root, *root.rglob("*")]
    }


def test_a_second_writer_is_refused_by_name_before_anything_is_touched(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with processes(1) as [holder]:
        assert holder.open(root) == "won"
        assert holder.ask("append", 0) == "appended"
        torn = root / "journals" / "torn.jsonl"
        torn.write_bytes(b'{"seq":0')
        (root / "temporary" / "left").write_bytes(b"over")
        before = tree(root)
        with pytest.raises(StoreInUseError) as caught:
            FileStores(root)
        assert tree(root) == before
        since = json.loads((root / "writer.json").read_bytes())["since"]
        holder_name = f"process {holder.pid} on {socket.gethostname()}, since {since}"
        assert caught.value.holder == holder_name
        assert holder_name in str(caught.value)
        assert holder.ask("append", 1) == "appended"


def test_another_handle_in_the_same_process_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with FileStores(tmp_path / "store", clock=clock) as stores:
        since = format_time(clock.now_ms())
        clock.advance(60_000)
        stores.journal.append("run", RECORD)
        with pytest.raises(StoreInUseError, match=f"process {os.getpid()} .* since {since}"):
            FileStores(tmp_path / "store")
        with pytest.raises(StoreInUseError):
            FileStores(tmp_path / "store" / ".." / "store")
    with FileStores(tmp_path / "store") as stores:
        assert stores.journal.load("run") == [RECORD]


def test_a_killed_holder_frees_the_folder_at_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    holder = Process()
    assert holder.open(root) == "won"
    assert holder.ask("append", 0) == "appended"
    with pytest.raises(StoreInUseError):
        FileStores(root)
    holder.kill()
    with FileStores(root) as stores:
        assert stores.journal.load("run") == [RECORD]


def test_a_killed_holder_frees_the_folder_though_its_forked_child_lives(tmp_path: Path) -> None:
    root = tmp_path / "store"
    holder = Process()
    assert holder.open(root) == "won"
    orphan = int(holder.ask("fork"))
    try:
        with pytest.raises(StoreInUseError):
            FileStores(root)
        holder.kill()
        FileStores(root).close()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_stopped_holder_holds(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with processes(1) as [holder]:
        assert holder.open(root) == "won"
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreInUseError, match=f"process {holder.pid} "):
                FileStores(root)
        finally:
            os.kill(holder.pid, signal.SIGCONT)


def claim_of(pid: int) -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": pid, "since": "now"}).encode()


NOBODY = 2**31 - 1


@pytest.mark.parametrize(
    "claim",
    [claim_of(1), claim_of(os.getpid()), claim_of(NOBODY), b"", b"no json", b"[]"],
    ids=["init", "this process", "no process", "empty", "no JSON", "no object"],
)
def test_what_is_written_about_the_holder_decides_nothing(tmp_path: Path, claim: bytes) -> None:
    root = tmp_path / "store"
    FileStores(root).close()
    (root / "writer.json").write_bytes(claim)
    with FileStores(root):
        (root / "writer.json").write_bytes(claim)
        with pytest.raises(StoreInUseError):
            FileStores(root)


def test_a_store_that_is_forgotten_gives_the_folder_back(tmp_path: Path) -> None:
    stores: FileStores | None = FileStores(tmp_path / "store")
    assert stores is not None
    del stores
    gc.collect()
    FileStores(tmp_path / "store").close()


def test_an_opening_that_fails_gives_the_folder_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    FileStores(root).close()
    (root / "store.json").write_bytes(b"{}")
    for _ in range(2):
        with pytest.raises(Exception, match="is not what a file store writes"):
            FileStores(root)
    (root / "store.json").unlink()
    FileStores(root).close()


def test_a_forked_child_has_no_part_in_the_store(tmp_path: Path) -> None:
    store = FileJournalStore(tmp_path / "store")
    store.append("run", RECORD)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answers = []
        for call in (
            lambda: store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}')),
            lambda: store.load("run"),
            store.list_runs,
            lambda: store.transcripts().get("run/x"),
            store.close,
        ):
            try:
                call()
                answers.append("done")
            except StoreForkedError:
                answers.append("forked")
        # The child goes as processes go, finalisers and all, and takes no lock with it.
        del store
        gc.collect()
        os.write(write, " ".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"forked forked forked forked forked"
    os.close(read)
    os.close(write)
    with pytest.raises(StoreInUseError):
        FileStores(tmp_path / "store")
    store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
    store.close()
    with pytest.raises(StoreClosedError):
        store.load("run")


class ReadingOnly(FaultyFileSystem):
    """Fails a test that writes."""

    def open(self, path: str, flags: int, /) -> int:
        assert flags == READ
        return super().open(path, flags)

    def _fails(self, kind: str) -> bool:
        assert kind == "open"
        return False


def test_a_reader_beside_a_live_writer_never_writes_a_byte(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with processes(1) as [writer]:
        assert writer.open(root) == "won"
        with FileStores(root, read_only=True, filesystem=ReadingOnly()) as stores:
            assert stores.journal.load("run") == []
            for seq in range(5):
                assert writer.ask("append", seq) == "appended"
                assert [record.seq for record in stores.journal.load("run")] == list(range(seq + 1))
            (root / "journals" / "torn.jsonl").write_bytes(b'{"seq":0}\n{"seq":1')
            (root / "temporary" / "left").write_bytes(b"over")
            before = tree(root)
            assert stores.journal.load("torn") == [RECORD]
            assert stores.journal.list_runs() == []
            assert stores.journal.list_run_ids(None, 9) == ["run", "torn"]  # type: ignore[attr-defined]
            assert stores.transcripts.list_refs("run") == []
            assert tree(root) == before
        assert tree(root) == before


WRITER = """
import sys
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore

store = FileJournalStore(sys.argv[1])
seq = int(sys.argv[2])
# The one before may have died between its append there and the deletion.
store.delete("other")
while True:
    store.append("run", JournalRecord(seq=seq, payload=b'{"seq":%d,"v":"%s"}' % (seq, b"x" * 3000)))
    print(seq, flush=True)
    store.put_meta(RunMeta(run_id="other", status="ok", updated_at="now"))
    store.append("other", JournalRecord(seq=0, payload=b'{"seq":0}'))
    store.delete("other")
    seq += 1
"""


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    seq = 0
    for number in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(seq)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(3 + number):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.stdout.close()
        writer.wait()
        with FileJournalStore(root) as store:
            found = [record.seq for record in store.load("run")]
            assert found in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))
            row, journal = store.get_meta("other"), store.load("other")
            # Both or neither, but for the row that is written first.
            assert not (row is None and journal)
        seq = len(found)
