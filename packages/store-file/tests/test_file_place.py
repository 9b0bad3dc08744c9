"""The folder while it is open: one that was replaced or led elsewhere is not written to or read."""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import OutcomeUnknownError, StoreCorruptError, StoreError, StoreInUseError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore, FileStores
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOLDERS = ("journals", "rows", "blobs", "names", "deleting", "temporary", "backups", "quarantine")


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def opened(root: Path, *, read_only: bool = False) -> FileJournalStore:
    return FileJournalStore(root, read_only=read_only, filesystem=FaultyFileSystem())


def filled(root: Path) -> FileJournalStore:
    store = opened(root)
    store.append("run", record(0))
    store.put_meta(RunMeta(run_id="run", status="ok", updated_at="now"))
    store.transcripts().put("run/x", b"blob")
    return store


def reads(store: FileJournalStore) -> list[Callable[[], object]]:
    twin = store.transcripts()
    return [
        lambda: store.load("run"),
        lambda: store.load_after("run", -1, 9),
        lambda: store.get_meta("run"),
        store.list_runs,
        lambda: store.list_run_ids(None, 9),
        lambda: twin.get("run/x"),
        lambda: twin.list_refs("run"),
        lambda: twin.blob_info("run/x"),
    ]


def writes(store: FileJournalStore) -> list[Callable[[], object]]:
    twin = store.transcripts()
    return [
        lambda: store.append("run", record(1)),
        lambda: store.append("new", record(1)),
        lambda: store.append("long" * 50, record(1)),
        lambda: store.put_meta(RunMeta(run_id="run", status="error", updated_at="now")),
        lambda: twin.put("run/x", b"newer"),
        lambda: twin.put("run/y", b"new"),
        lambda: twin.delete("run/x"),
        lambda: store.delete("run"),
        lambda: store.delete_whole_run("run"),
    ]


def refused(calls: list[Callable[[], object]], error: type[StoreError], words: str) -> None:
    for call in calls:
        with pytest.raises(error, match=words):
            call()


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(root)): each.read_bytes() if each.is_file() else b""
        for each in root.rglob("*")
    }


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    with filled(root) as store, opened(root, read_only=True) as reader:
        (root / name).rename(outside)
        (root / name).symlink_to(outside)
        before = tree(outside)
        refused([*reads(store), *writes(store), *reads(reader)], StoreCorruptError, "not followed")
        assert tree(outside) == before
        (root / name).unlink()
        outside.rename(root / name)
        store.append("run", record(1))
        assert reader.load("run") == [record(0), record(1)]


class Swapping(FaultyFileSystem):
    """Puts a link in the place of a folder at the n-th call, as late as can be."""

    def __init__(self, root: Path, name: str, outside: Path, at: int) -> None:
        super().__init__()
        self.folder, self.outside, self.at = root / name, outside, at
        self.meets = 0

    def _fails(self, kind: str) -> bool:
        del kind
        self.meets += 1
        if self.meets == self.at and self.folder.is_dir():
            shutil.copytree(self.folder, self.outside)
            self.folder.rename(self.outside.with_name("moved"))
            self.folder.symlink_to(self.outside)
            self.before = tree(self.outside)
            self.fired = True
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a link may be met there between the look and the call")
@pytest.mark.parametrize("name", [*FOLDERS[:6], "blobs/run"])
def test_a_link_that_comes_between_the_look_and_the_call_leads_nowhere(
    tmp_path: Path, name: str
) -> None:
    at = fired = 0
    files = None
    while files is None or files.meets >= at:
        at += 1
        root, outside = tmp_path / f"{at}" / "store", tmp_path / f"{at}" / "outside"
        root.parent.mkdir()
        filled(root).close()
        files = Swapping(root, name, outside, at=0)
        with FileJournalStore(root, filesystem=files) as store:
            files.meets, files.at = 0, at
            for call in [*writes(store), *reads(store)]:
                with suppress(StoreError):  # refused or not: what counts is where it went
                    call()
        if files.fired:
            fired += 1
            assert tree(outside) == files.before, at
    assert fired > 5


def test_a_folder_that_is_gone_is_not_taken_for_empty(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with filled(root) as store, opened(root, read_only=True) as reader:
        shutil.rmtree(root)
        refused([*reads(store), *writes(store), *reads(reader)], StoreError, "No such file")
    assert not root.exists()


def test_a_writer_does_not_go_on_in_a_folder_that_took_the_place_of_its_own(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    with filled(root) as store:
        root.rename(tmp_path / "moved")
        with opened(root) as other:
            other.append("run", record(7))
            before = tree(root)
            refused([*reads(store), *writes(store)], StoreInUseError, "is not the file that this")
            assert tree(root) == before
            assert other.load("run") == [record(7)]
        shutil.rmtree(root)
        (tmp_path / "moved").rename(root)
        store.append("run", record(1))
        assert store.load("run") == [record(0), record(1)]


def test_a_writer_whose_lock_was_removed_does_not_go_on_beside_the_next(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with filled(root) as store:
        (root / "writer.lock").unlink()
        refused([*reads(store), *writes(store)], StoreInUseError, "its lock was")
        with opened(root) as other:
            other.append("run", record(1))
            refused([*reads(store), *writes(store)], StoreInUseError, "its lock was")
    with opened(root) as store:
        assert store.load("run") == [record(0), record(1)]


class NoCut(FaultyFileSystem):
    """Cannot undo what it wrote by halves."""

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


def test_a_change_in_doubt_is_not_settled_in_somebody_else_s_folder(tmp_path: Path) -> None:
    root, files = tmp_path / "store", NoCut()
    with FileJournalStore(root, filesystem=files) as store:
        store.append("run", record(0))
        files.failing = True
        with pytest.raises(OutcomeUnknownError):
            store.append("run", record(1))
        files.failing = False
        root.rename(tmp_path / "moved")
        with opened(root) as other:
            other.append("run", record(7))
            other.append("run", record(8))
        before = tree(root)
    assert tree(root) == before
    with opened(tmp_path / "moved") as again:
        assert again.load("run") == [record(0)]


class Looking(FaultyFileSystem):
    """Counts how often a name is looked at."""

    looks = 0

    def look(self, path: str, /) -> os.stat_result:
        self.looks += 1
        return super().look(path)


@pytest.mark.skipif(os.name == "nt", reason="a folder has no time of change there")
def test_one_look_is_enough_until_a_name_in_the_root_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    files = Looking()
    with FileJournalStore(root, filesystem=files) as store:
        store.append("run", record(0))

        def looks() -> int:
            before = files.looks
            store.load("nothing of that name")
            return files.looks - before

        # As long as the last change is so young that another one could bear the same time.
        careful = looks()
        assert looks() == careful
        later = time.time_ns() + 3_600_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: later)
        looks()
        assert looks() < careful - len(FOLDERS)
        seen = root.lstat().st_ctime_ns
        (root / "journals").rename(outside)
        (root / "journals").symlink_to(outside)
        while root.lstat().st_ctime_ns == seen:
            (root / "tick").write_bytes(b"")
            (root / "tick").unlink()
        with pytest.raises(StoreCorruptError, match="not followed"):
            store.append("run", record(1))


def test_what_stands_in_the_place_of_a_lock_is_not_followed_or_waited_for(tmp_path: Path) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    FileStores(root).close()
    outside.write_bytes(b"precious")
    for name in ("opening.lock", "writer.lock", "writer.json", "store.json"):
        kept = (root / name).read_bytes()
        (root / name).unlink()
        (root / name).symlink_to(outside)
        with pytest.raises(StoreCorruptError, match="symbolic link"):
            FileStores(root)
        (root / name).unlink()
        if hasattr(os, "mkfifo"):
            os.mkfifo(root / name)
            with pytest.raises(StoreCorruptError, match="is not a regular file"):
                FileStores(root)
            (root / name).unlink()
        (root / name).write_bytes(kept)
    assert outside.read_bytes() == b"precious"
    FileStores(root).close()


def test_nothing_of_a_longer_name_is_left_behind_the_holder_s(tmp_path: Path) -> None:
    root = tmp_path / "store"
    FileStores(root).close()
    size = (root / "writer.json").stat().st_size
    (root / "writer.json").write_bytes(b"x" * 500)
    FileStores(root).close()
    assert (root / "writer.json").stat().st_size == size


class Unreadable(FaultyFileSystem):
    """A root in a folder that this user may pass through and not read."""

    def __init__(self, parent: Path) -> None:
        super().__init__()
        self.parent = str(parent)

    def sync_folder(self, path: str, /) -> None:
        if path == self.parent:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        super().sync_folder(path)


def test_a_root_that_was_made_where_this_user_may_not_read_is_opened(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with FileJournalStore(tmp_path / "store", filesystem=Unreadable(tmp_path)) as store:
        store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
        assert store.list_run_ids(None, 9) == ["run"]


class Away(FaultyFileSystem):
    """Moves the store away for the length of the n-th call, and back."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self.meets, self.at = root, 0, 0

    @contextmanager
    def moved(self) -> Iterator[None]:
        self.meets += 1
        if self.meets != self.at:
            yield
            return
        away = self.root.with_name("away")
        self.root.rename(away)
        try:
            yield
        finally:
            away.rename(self.root)

    def open(self, path: str, flags: int, /) -> int:
        with self.moved():
            return super().open(path, flags)

    def look(self, path: str, /) -> os.stat_result:
        with self.moved():
            return super().look(path)

    def scan(self, path: str, /) -> list[os.DirEntry[str]]:
        with self.moved():
            return super().scan(path)

    def rename(self, source: str, target: str, /) -> None:
        with self.moved():
            super().rename(source, target)

    def unlink(self, path: str, /) -> None:
        with self.moved():
            super().unlink(path)


CALLS: dict[str, tuple[Callable[[FileJournalStore], object], object]] = {
    "append": (lambda store: store.append("run", record(1)), None),
    "delete": (lambda store: store.delete("run"), None),
    "delete a blob": (lambda store: store.transcripts().delete("run/x"), None),
    "load": (lambda store: len(store.load("run")), 1),
    "the tail": (lambda store: len(store.load_after("run", -1, 9)), 1),
    "the row": (lambda store: store.get_meta("run") is None, False),
    "a blob": (lambda store: store.transcripts().get("run/x"), b"blob"),
    "its size": (lambda store: store.transcripts().blob_info("run/x") is None, False),
    "refs": (lambda store: store.transcripts().list_refs("run"), ["run/x"]),
    "ids": (lambda store: "run" in store.list_run_ids(None, 9), True),
}


@pytest.mark.skipif(os.name == "nt", reason="a folder with an open file stays where it is there")
@pytest.mark.parametrize("call", CALLS)
def test_a_folder_that_is_away_for_one_call_is_not_taken_for_empty(
    tmp_path: Path, call: str
) -> None:
    act, expected = CALLS[call]
    at = meets = 0
    while meets >= at:
        at += 1
        root = tmp_path / f"{at}" / "store"
        root.parent.mkdir()
        files = Away(root)
        filled(root).close()
        with FileJournalStore(root, filesystem=files) as store:
            files.meets, files.at = 0, at
            try:
                done = act(store) == expected
                assert done, at
            except StoreError:
                done = False
            meets, files.at = files.meets, 0
            there = [each.seq for each in store.load("run")]
            if call == "delete":
                assert there == [] if done else there in ([], [0])
            else:
                assert there == ([0, 1] if done and call == "append" else [0]), at
            blob = store.transcripts().get("run/x")
            assert blob == b"blob" or call == "delete a blob"
            assert blob is None or not (done and call == "delete a blob")
    assert at > 2
