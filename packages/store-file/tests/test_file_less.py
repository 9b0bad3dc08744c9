"""A journal that is less than its live writer left there: nothing goes behind what is missing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import OutcomeUnknownError, StoreCorruptError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore
from rulvar.stores.file.lines import encode_line
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def record(seq: int, rest: str = "") -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d%s}' % (seq, rest.encode()))


TEN = [record(seq) for seq in range(10)]


def whole(records: list[JournalRecord]) -> bytes:
    return b"".join(map(encode_line, records))


def replace(path: Path, data: bytes) -> None:
    other = path.with_suffix(".copy")
    other.write_bytes(data)
    other.replace(path)


HANDS: dict[str, Callable[[Path], None]] = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: os.truncate(path, 0),
    "cut between two lines": lambda path: os.truncate(path, len(whole(TEN[:5]))),
    "the last line cut": lambda path: os.truncate(path, len(whole(TEN[:9]))),
    "cut inside a line": lambda path: os.truncate(path, len(whole(TEN)) - 3),
    "an older copy moved over it": lambda path: replace(path, whole(TEN[:5])),
    "an older copy written over it": lambda path: void(path.write_bytes(whole(TEN[:5]))),
    "another of the same length": lambda path: replace(
        path, whole(TEN).replace(b'{"seq":9}', b'{"seq":8}')
    ),
    "another that is longer": lambda path: replace(
        path, whole([record(seq, ',"v":"other"') for seq in range(10)])
    ),
    "the same bytes turned to NUL": lambda path: void(path.write_bytes(bytes(len(whole(TEN))))),
}


def void(_: object) -> None:
    """Return nothing, for a table of one kind of function."""


@pytest.mark.parametrize("hand", HANDS)
@pytest.mark.parametrize("knows", ["wrote", "read"])
def test_nothing_follows_less_than_the_writer_knows(tmp_path: Path, hand: str, knows: str) -> None:
    root = tmp_path / "store"
    path = root / "journals" / "run.jsonl"
    store = FileJournalStore(root, durability="normal")
    for each in TEN:
        store.append("run", each)
    store.append("other", record(0))
    if knows == "read":
        store.close()
        store = FileJournalStore(root, durability="normal")
        assert store.load("run") == TEN
    with store:
        HANDS[hand](path)
        left = path.read_bytes() if path.exists() else None
        calls: list[Callable[[], object]] = [
            lambda: store.append("run", record(10)),
            lambda: store.append("run", record(0)),
            lambda: store.load("run"),
            lambda: store.load_after("run", 3, 10),
        ]
        for call in (*calls, *calls):
            with pytest.raises(StoreCorruptError, match="open the store again") as caught:
                call()
            assert caught.value.run_id == "run"
            assert "'run'" in str(caught.value)
            if left is not None and len(left) < len(whole(TEN)):
                shorter = f"has {len(left)} bytes, where this store left {len(whole(TEN))}"
                assert shorter in str(caught.value)
        assert (path.read_bytes() if path.exists() else None) == left
        # Other runs are what they were, and so is this one once its file is back.
        store.append("other", record(1))
        path.write_bytes(whole(TEN))
        store.append("run", record(10))
        assert store.load("run") == [*TEN, record(10)]


def test_a_deletion_ends_what_the_writer_knew(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with FileJournalStore(root, durability="normal") as store:
        store.append("run", record(5))
        (root / "journals" / "run.jsonl").unlink()
        with pytest.raises(StoreCorruptError):
            store.append("run", record(6))
        store.delete("run")
        store.append("run", record(0))
        assert store.load("run") == [record(0)]
        store.delete_whole_run("run")
        assert store.load("run") == []
    with FileJournalStore(root, durability="normal") as store:
        # Another opening takes what is there for what there is.
        (root / "journals" / "run.jsonl").unlink(missing_ok=True)
        store.append("run", record(0))


class NoRoom(FaultyFileSystem):
    """No new file fits, so that a deletion cannot be decided."""

    full = False

    def open(self, path: str, flags: int, /) -> int:
        if self.full and flags & os.O_CREAT:
            raise OSError(28, "injected")
        return super().open(path, flags)


def test_a_deletion_that_did_not_happen_forgets_nothing(tmp_path: Path) -> None:
    root, files = tmp_path / "store", NoRoom()
    with FileJournalStore(root, durability="normal", filesystem=files) as store:
        store.append("run", record(5))
        files.full = True
        with pytest.raises(Exception, match="no room"):
            store.delete("run")
        files.full = False
        (root / "journals" / "run.jsonl").unlink()
        with pytest.raises(StoreCorruptError):
            store.append("run", record(0))


class Between(FaultyFileSystem):
    """Lets another hand at the journal between the look at it and the write."""

    hand: Callable[[], None] | None = None

    def write(self, descriptor: int, data: memoryview, /) -> int:
        if self.hand is not None:
            hand, self.hand = self.hand, None
            hand()
        return super().write(descriptor, data)


@pytest.mark.parametrize("hand", ["removed", "emptied", "the last line cut"])
def test_an_append_that_met_another_hand_is_not_answered(tmp_path: Path, hand: str) -> None:
    root, files = tmp_path / "store", Between()
    path = root / "journals" / "run.jsonl"
    with FileJournalStore(root, filesystem=files) as store:
        for each in TEN:
            store.append("run", each)
        files.hand = lambda: HANDS[hand](path)
        with pytest.raises(StoreCorruptError, match="during the append"):
            store.append("run", record(10))
        assert b'"seq":10' not in (path.read_bytes() if path.exists() else b"")
        with pytest.raises(StoreCorruptError):
            store.append("run", record(10))


class NoCut(FaultyFileSystem):
    """Writes by halves and cannot take it back."""

    failing = False

    def write(self, descriptor: int, data: memoryview, /) -> int:
        if self.failing:
            super().write(descriptor, data[:5])
            raise OSError(5, "injected")
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size: int, /) -> None:
        if self.failing:
            raise OSError(5, "injected")
        super().truncate(descriptor, size)


@pytest.mark.parametrize("hand", [name for name in HANDS if name != "cut inside a line"])
def test_an_append_in_doubt_is_not_settled_in_another_file(tmp_path: Path, hand: str) -> None:
    root, files = tmp_path / "store", NoCut()
    path = root / "journals" / "run.jsonl"
    with FileJournalStore(root, filesystem=files) as store:
        for each in TEN:
            store.append("run", each)
        files.failing = True
        with pytest.raises(OutcomeUnknownError):
            store.append("run", record(10))
        files.failing = False
        HANDS[hand](path)
        left = path.read_bytes() if path.exists() else None
        with pytest.raises(StoreCorruptError):
            store.load("run")
        with pytest.raises(StoreCorruptError):
            store.append("run", record(10))
        assert (path.read_bytes() if path.exists() else None) == left


@pytest.mark.parametrize("folder", ["journals", "rows", "blobs"])
def test_a_folder_that_was_restored_under_the_writer_is_not_taken_for_its_own(
    tmp_path: Path, folder: str
) -> None:
    root = tmp_path / "store"
    with FileJournalStore(root) as store:
        store.append("run", record(0))
        store.put_meta(RunMeta(run_id="run", status="running", updated_at="2024-01-01T00:00:00Z"))
        shutil.copytree(root / folder, tmp_path / "backup")
        store.append("run", record(1))
        (root / folder).rename(tmp_path / "away")
        (tmp_path / "backup").rename(root / folder)
        for call in (
            lambda: store.append("new", record(0)),
            lambda: store.load("run"),
            store.list_runs,
            lambda: store.transcripts().get("run/x"),
        ):
            with pytest.raises(StoreCorruptError, match="is not the folder that this store opened"):
                call()
        assert not (root / "journals" / "new.jsonl").exists()
        shutil.rmtree(root / folder)
        (tmp_path / "away").rename(root / folder)
        store.append("run", record(2))
        assert store.load("run") == [record(0), record(1), record(2)]


def test_a_touched_or_restored_equal_file_is_the_one_that_was_left(tmp_path: Path) -> None:
    path = tmp_path / "store" / "journals" / "run.jsonl"
    with FileJournalStore(tmp_path / "store") as store:
        for each in TEN:
            store.append("run", each)
        os.utime(path)
        store.append("run", record(10))
        replace(path, path.read_bytes())
        store.append("run", record(11))
        assert store.load("run") == [*TEN, record(10), record(11)]
