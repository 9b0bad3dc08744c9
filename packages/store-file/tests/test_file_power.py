"""Power loss at every call: what was acknowledged is on the medium, and nothing is half there.

`Medium` does the work on a real folder and keeps beside it what a disk would still have if
the power went: the bytes of a file as of its last sync, the names in a folder as of that
folder's last sync. The folder is built anew from that after every call, in several ways, and
opened.
"""

from __future__ import annotations

import gc
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.errors import StoreError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileJournalStore, FileSystem
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

Loss = Literal["synced", "half", "nul", "kept"]
LOSSES: tuple[Loss, ...] = ("synced", "half", "nul", "kept")


@dataclass
class Item:
    """A file or a folder, whatever its number on the real disk is used for later."""

    number: int
    synced: bytes = b""
    names: dict[str, Item] | None = None


@dataclass
class Medium(FileSystem):
    """The real calls, and what survives each."""

    root: Path
    images: list[tuple[int, dict[str, Item], dict[int, bytes]]] = field(default_factory=list)
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.count = 0
        self.top = self._item(self.root.parent)
        self.top.names = {}

    def _item(self, path: Path) -> Item:
        number = path.lstat().st_ino
        if number not in self.items:
            self._fresh(number)
        return self.items[number]

    def _fresh(self, number: int) -> None:
        self.count += 1
        self.items[number] = Item(self.count)

    def _took_a_step(self) -> None:
        """Remember what the medium has, and what the system has and the medium may get."""
        pending = {
            self._item(path).number: path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }
        self.images.append((self.acknowledged, copied(self.top).names or {}, pending))

    def open(self, path: str, flags: int, /) -> int:
        descriptor = super().open(path, flags)
        if flags & os.O_EXCL:
            self._fresh(os.fstat(descriptor).st_ino)
            self._took_a_step()
        return descriptor

    def write(self, descriptor: int, data: memoryview, /) -> int:
        written = super().write(descriptor, data)
        self._took_a_step()
        return written

    def truncate(self, descriptor: int, size: int, /) -> None:
        super().truncate(descriptor, size)
        self._took_a_step()

    def sync(self, descriptor: int, /) -> None:
        now = os.fstat(descriptor)
        if now.st_ino in self.items:
            self.items[now.st_ino].synced = os.pread(descriptor, now.st_size, 0)
        self._took_a_step()

    def sync_folder(self, path: str, /) -> None:
        folder = self._item(Path(path)) if Path(path) != self.root.parent else self.top
        folder.names = {
            each.name: self._item(Path(each.path))
            for each in os.scandir(path)
            if stat.S_ISDIR(each.stat().st_mode) or each.is_file()
        }
        self._took_a_step()

    def rename(self, source: str, target: str, /) -> None:
        super().rename(source, target)
        self._took_a_step()

    def unlink(self, path: str, /) -> None:
        super().unlink(path)
        self._took_a_step()

    def make_folder(self, path: str, /) -> None:
        super().make_folder(path)
        self._fresh(Path(path).lstat().st_ino)
        self._item(Path(path)).names = {}
        self._took_a_step()


def copied(item: Item) -> Item:
    names = item.names
    return Item(
        item.number,
        item.synced,
        None if names is None else {name: copied(each) for name, each in names.items()},
    )


def build(folder: Path, names: dict[str, Item], pending: dict[int, bytes], loss: Loss) -> None:
    for name, item in names.items():
        path = folder / name
        if item.names is not None:
            path.mkdir()
            build(path, item.names, pending, loss)
            continue
        later = pending.get(item.number, item.synced)
        unsynced = later[len(item.synced) :] if later.startswith(item.synced) else b""
        if loss == "half":
            unsynced = unsynced[: len(unsynced) // 2]
        elif loss == "nul":
            unsynced = b"\0" * len(unsynced)
        path.write_bytes(item.synced if loss == "synced" else item.synced + unsynced)


def work(store: FileJournalStore, medium: Medium) -> list[dict[str, object]]:
    """Do the work, and return what the store holds after each acknowledged step."""
    states: list[dict[str, object]] = [state_of(store)]
    twin = store.transcripts()

    def acknowledged() -> None:
        states.append(state_of(store))
        medium.acknowledged += 1

    for seq in range(3):
        store.append("a", JournalRecord(seq=seq, payload=b'{"seq":%d,"v":"text"}' % seq))
        acknowledged()
    for status in ("running", "ok"):
        store.put_meta(RunMeta(run_id="a", status=status, updated_at="now"))
        acknowledged()
    for blob in (b"one", b"twotwo"):
        twin.put("a/turn/1", blob)
        acknowledged()
    twin.put("b" * 150 + "/x", b"long")
    acknowledged()
    twin.put("a/turn/2", b"three")
    acknowledged()
    twin.delete("b" * 150 + "/x")
    acknowledged()
    store.delete("a")
    acknowledged()
    store.append("a", JournalRecord(seq=0, payload=b'{"seq":0}'))
    acknowledged()
    store.delete_whole_run("a")
    acknowledged()
    store.append("a", JournalRecord(seq=9, payload=b'{"seq":9}'))
    acknowledged()
    return states


def state_of(store: FileJournalStore, runs: Sequence[str] | None = None, /) -> dict[str, object]:
    twin = store.transcripts()
    runs = list(store.list_run_ids(None, 10)) if runs is None else runs
    return {
        run_id: (
            tuple(store.load(run_id)),
            store.get_meta(run_id),
            {ref: twin.get(ref) for ref in twin.list_refs(run_id)},
        )
        for run_id in runs
    }


@pytest.mark.slow
def test_power_loss_at_every_call(tmp_path: Path) -> None:
    medium = Medium(tmp_path / "real")
    with FileJournalStore(medium.root, filesystem=medium) as store:
        begun = len(medium.images)
        states = work(store, medium)
    looked_at = 0
    for step, (acknowledged, names, pending) in enumerate(medium.images):
        for loss in LOSSES:
            folder = tmp_path / f"{step}-{loss}"
            folder.mkdir()
            build(folder, names, pending, loss)
            with FileJournalStore(folder / "real", filesystem=FaultyFileSystem()) as store:
                found = state_of(store)
            expected = states[acknowledged : acknowledged + 2]
            assert found in expected, (step, loss)
            looked_at += 1
    assert looked_at > 400
    assert begun > 10


def test_the_medium_would_notice_a_write_that_was_not_synced(tmp_path: Path) -> None:
    """The instrument itself: at normal durability, power loss does lose the last records."""
    medium = Medium(tmp_path / "real")
    record = JournalRecord(seq=0, payload=b'{"seq":0}')
    with FileJournalStore(medium.root, durability="normal", filesystem=medium) as store:
        store.append("a", record)
        medium.acknowledged += 1
        medium._took_a_step()
    _, names, pending = medium.images[-1]
    folder = tmp_path / "image"
    folder.mkdir()
    build(folder, names, pending, "synced")
    with FileJournalStore(folder / "real", filesystem=FaultyFileSystem()) as store:
        assert store.load("a") == []


RUNS = ("a", "b" * 150, "c")


class Died(BaseException):
    """Nothing of a process that is gone catches anything."""


class Dying(Medium):
    """A process that is gone after the n-th call, and the next one on the same medium."""

    calls = 0
    last_call = 0

    def _took_a_step(self) -> None:
        self.calls += 1
        if self.calls == self.last_call:
            raise Died


def first_process(medium: Medium) -> None:
    """Open and work; what is left unfinished when it goes is nobody's to settle."""
    store = FileJournalStore(medium.root, filesystem=medium)
    for seq in range(2):
        store.append("a", JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq))
    store.put_meta(RunMeta(run_id="a", status="ok", updated_at="now"))
    store.transcripts().put("b" * 150 + "/x", b"long")
    store.transcripts().delete("b" * 150 + "/x")
    store.delete_whole_run("a")


@pytest.mark.storm
def test_what_a_process_read_behind_a_dead_one_stays_when_the_power_goes(tmp_path: Path) -> None:
    at, died = 0, True
    while died:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        medium = Dying(folder / "real")
        medium.last_call, died = at, False
        try:
            first_process(medium)
        except Died:
            died = True
        medium.last_call = 0
        gc.collect()  # the dead one's lock goes with it
        with FileJournalStore(medium.root, filesystem=medium) as store:
            seen = state_of(store, RUNS)
            Medium._took_a_step(medium)
            store.append("c", JournalRecord(seq=0, payload=b'{"seq":0}'))
            written = state_of(store, RUNS)
            Medium._took_a_step(medium)
        for number, expected in enumerate((seen, written)):
            _, names, pending = medium.images[number]
            image = folder / f"image-{number}"
            image.mkdir()
            build(image, names, pending, "synced")
            with FileJournalStore(image / "real", filesystem=FaultyFileSystem()) as store:
                assert state_of(store, RUNS) == expected, (at, number)
    assert at > 50


class Troubled(Medium):
    """Syncs no folder of blobs of a run, or has no room."""

    dies = False
    full = False
    folders: list[str]

    def sync_folder(self, path: str, /) -> None:
        if self.dies and Path(path).parent.name == "blobs":
            raise Died
        super().sync_folder(path)
        self.folders.append(path)

    def write(self, descriptor: int, data: memoryview, /) -> int:
        if self.full:
            raise OSError(28, "injected")
        return super().write(descriptor, data)


@pytest.mark.slow
def test_what_is_read_after_a_put_that_failed_stays_when_the_power_goes(tmp_path: Path) -> None:
    medium = Troubled(tmp_path / "real")
    medium.folders = []
    store = FileJournalStore(medium.root, filesystem=medium)
    medium.dies = True
    with pytest.raises(Died):
        store.transcripts().put("a/x", b"moved there")
    medium.dies = False
    del store
    gc.collect()  # the dead one's lock goes with it
    with FileJournalStore(medium.root, filesystem=medium) as store:
        medium.full = True
        with pytest.raises(StoreError):
            store.transcripts().put("a/y", b"no room")
        seen = store.transcripts().get("a/x")
        medium._took_a_step()
        _, names, pending = medium.images[-1]
    image = tmp_path / "image"
    image.mkdir()
    build(image, names, pending, "synced")
    with FileJournalStore(image / "real", filesystem=FaultyFileSystem()) as store:
        assert (seen, store.transcripts().get("a/x")) == (b"moved there", b"moved there")


def test_a_first_look_at_the_blobs_of_a_run_costs_one_sync(tmp_path: Path) -> None:
    medium = Troubled(tmp_path / "real")
    medium.folders = []
    with FileJournalStore(medium.root, filesystem=medium) as store:
        for run_id in "abc":
            store.transcripts().put(f"{run_id}/x", b"")
    with FileJournalStore(medium.root, filesystem=medium) as store:
        medium.folders.clear()
        for run_id in "abcabc":
            assert store.transcripts().list_refs(run_id) == [f"{run_id}/x"]
        assert medium.folders == [str(medium.root / "blobs" / run_id) for run_id in "abc"]


class LateTrouble(Medium):
    """A sync that reports trouble though everything reached the medium."""

    failing = False

    def sync(self, descriptor: int, /) -> None:
        super().sync(descriptor)
        if self.failing:
            self.failing = False
            raise OSError(5, "injected")


def test_an_append_that_was_refused_does_not_come_back_with_the_power(tmp_path: Path) -> None:
    medium = LateTrouble(tmp_path / "real")
    with FileJournalStore(medium.root, filesystem=medium) as store:
        store.append("a", JournalRecord(seq=0, payload=b'{"seq":0}'))
        medium.failing = True
        with pytest.raises(StoreError):
            store.append("a", JournalRecord(seq=1, payload=b'{"seq":1}'))
        medium._took_a_step()
        _, names, pending = medium.images[-1]
    image = tmp_path / "image"
    image.mkdir()
    build(image, names, pending, "synced")
    with FileJournalStore(image / "real", filesystem=FaultyFileSystem()) as store:
        assert [each.seq for each in store.load("a")] == [0]
