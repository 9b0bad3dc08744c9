"""The store as a caller sees it: opening, deletion, read-only, the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.core import assert_fenced_writes, open_stores
from rulvar.core.errors import (
    ConfigError,
    StoreCorruptError,
)
from rulvar.core.records import JournalRecord, JsonMembers, Lease, RunFilter, RunMeta
from rulvar.stores.file import DamagedJournalError, FileJournalStore, FileStores
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def row(run_id: str, status: str = "ok", **others: object) -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at="now", **others)  # type: ignore[arg-type]


def quick(root: Path, *, read_only: bool = False) -> FileJournalStore:
    return FileJournalStore(root, read_only=read_only, filesystem=FaultyFileSystem())


# --- opening --------------------------------------------------------------------------------


def test_a_url_opens_the_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_stores("file:///runs?durability=normal") as stores:
        assert isinstance(stores, FileStores)
        assert isinstance(stores.journal, FileJournalStore)
        assert stores.journal.root == str(tmp_path / "runs")
        assert stores.journal.durability == "normal"
        stores.journal.append("run", record(0))
    with open_stores(f"file:///{tmp_path}/runs?read_only=true") as stores:
        assert stores.journal.load("run") == [record(0)]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file://", "write file:///<path>"),
        ("file://runs", "one slash|names a host"),
        ("file:///runs?nope=1", "unknown option 'nope'"),
        ("file:///runs?durability=some", "one of full, normal"),
        ("file:///runs?read_only=true", "there is no file store at"),
        ("file:///not/there", "create it first"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        open_stores(url)
    assert list(tmp_path.iterdir()) == []


def test_the_full_fence_is_refused_by_name(tmp_path: Path) -> None:
    with FileStores(tmp_path / "store") as stores, pytest.raises(ConfigError) as caught:
        assert_fenced_writes(stores)
    assert "rulvar.stores.file.store.FileJournalStore does not declare" in str(caught.value)
    assert "rulvar.stores.file.transcripts.FileTranscriptStore does not declare" in str(
        caught.value
    )
    for store in (stores.journal, stores.transcripts):
        for name in ("fenced_writes", "acquire", "renew", "release", "lease_ttl_ms"):
            assert not hasattr(store, name)


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"holds 'letters.txt' and no file store"):
        FileStores(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["letters.txt"]
    with pytest.raises(ConfigError, match="is not a folder"):
        FileStores(tmp_path / "letters.txt")


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    FileStores(tmp_path / "store").close()
    (tmp_path / "store" / "store.json").write_text('{"format":"rulvar-file-store","layout":2}\n')
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="layout 2 and this version knows 1"):
            FileStores(tmp_path / "store", read_only=read_only)


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "none"},
        {"read_only": 1},
        {"root": ""},
        {"root": "a\0"},
        {"root": "/a\ud800"},
        {"root": 3},
    ],
)
def test_options_are_checked_before_anything_is_made(
    tmp_path: Path, options: dict[str, object]
) -> None:
    given: dict[str, object] = {"root": tmp_path / "store", **options}
    with pytest.raises(ConfigError):
        FileStores(**given)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# --- what is there to read ------------------------------------------------------------------


def test_files_are_what_a_person_expects(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with FileStores(root) as stores:
        stores.journal.append("order-17", JournalRecord(seq=0, payload=b'{"seq": 0, "a": "b"}'))
        stores.journal.append("order-17", record(1))
        stores.journal.put_meta(row("order-17", extra=JsonMembers({"x": "[1, 2]"})))
        stores.transcripts.put("order-17/turns/1.json", b"\x00bytes")
    assert (root / "journals" / "order-17.jsonl").read_text() == '{"seq": 0, "a": "b"}\n{"seq":1}\n'
    assert (root / "rows" / "order-17.json").read_text() == (
        '{"runId":"order-17","status":"ok","updatedAt":"now","x":[1, 2]}\n'
    )
    assert (root / "blobs" / "order-17" / "turns%2f1.json").read_bytes() == b"\x00bytes"


def test_a_row_that_cannot_be_read_is_named_and_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with quick(root) as store:
        store.put_meta(row("a"))
        store.put_meta(row("b"))
    (root / "rows" / "a.json").write_bytes(b'{"status":"ok"}')
    (root / "rows" / ".DS_Store").write_bytes(b"")
    (root / "journals" / "notes.txt").write_bytes(b"")
    for read_only in (False, True):
        with quick(root, read_only=read_only) as store:
            assert [each.run_id for each in store.list_runs()] == ["b"]
            assert store.list_run_ids(None, 9) == ["a", "b"]
            with pytest.raises(StoreCorruptError, match="'a'"):
                store.get_meta("a")


def test_a_link_in_the_place_of_a_row_hides_no_other_run(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with quick(root) as store, quick(root, read_only=True) as reader:
        for run_id in ("a", "b", "c"):
            store.put_meta(row(run_id))
        store.list_runs()
        store.append("a", record(0))  # so that the writer looks at the run again
        (root / "rows" / "a.json").unlink()
        (root / "rows" / "a.json").symlink_to(root / "rows" / "b.json")
        for each in (store, reader):
            assert [found.run_id for found in each.list_runs()] == ["b", "c"]
            assert each.list_run_ids(None, 9) == ["a", "b", "c"]
            with pytest.raises(StoreCorruptError, match="symbolic link"):
                each.get_meta("a")


def test_listings_follow_every_change(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with quick(root) as store, quick(root, read_only=True) as reader:

        def rows() -> list[str]:
            found = [f"{each.run_id}:{each.status}" for each in store.list_runs()]
            assert found == [f"{each.run_id}:{each.status}" for each in reader.list_runs()]
            return found

        def ids() -> list[str]:
            found = list(store.list_run_ids(None, 9))
            assert found == reader.list_run_ids(None, 9)
            return found

        assert (rows(), ids()) == ([], [])
        store.put_meta(row("b", "running"))
        store.append("c", record(0))
        store.transcripts().put("a/x", b"")
        assert (rows(), ids()) == (["b:running"], ["a", "b", "c"])
        store.put_meta(row("b", "ok"))
        store.put_meta(row("d", "error", tags=("t",)))
        assert (rows(), ids()) == (["b:ok", "d:error"], ["a", "b", "c", "d"])
        assert [each.run_id for each in store.list_runs(RunFilter(tags=("t",)))] == ["d"]
        assert [each.run_id for each in store.list_runs(RunFilter(limit=1))] == ["b"]
        assert [each.run_id for each in store.list_runs(RunFilter(after_run_id="b"))] == ["d"]
        assert store.list_runs(RunFilter(statuses=())) == []
        assert store.list_run_ids("b", 1) == ["c"]
        store.transcripts().delete("a/x")
        store.delete("b")
        store.delete_whole_run("c")
        assert (rows(), ids()) == (["d:error"], ["d"])


class NoJournals(FaultyFileSystem):
    """Fails a test that opens a journal."""

    def open(self, path: str, flags: int, /) -> int:
        assert not path.endswith(".jsonl"), path
        return super().open(path, flags)


def filled_for_listing(root: Path) -> list[str]:
    run_ids = [f"run-{number:02d}" for number in range(40)]
    with quick(root) as store:
        for run_id in run_ids:
            store.append(run_id, record(0))
            store.put_meta(row(run_id))
    for journal in (root / "journals").iterdir():
        journal.write_bytes(b"no record\n")
    return run_ids


def test_a_reader_keeps_no_row_and_opens_those_of_the_page_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_ids = filled_for_listing(root)
    files = NoJournals("open", at=10**9)
    with FileJournalStore(root, read_only=True, filesystem=files) as store:
        opening = files.calls
        page = store.list_runs(RunFilter(limit=9, after_run_id="run-05"))
        assert [each.run_id for each in page] == run_ids[6:15]
        assert files.calls - opening == 9
        assert store.list_run_ids("run-37", 9) == run_ids[38:]
        assert files.calls - opening == 9
        assert [each.run_id for each in store.list_runs()] == run_ids
        assert files.calls - opening == 9 + len(run_ids)


def test_listings_of_the_writer_open_no_journal_and_no_row_twice(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_ids = filled_for_listing(root)
    files = NoJournals("open", at=10**9)
    with FileJournalStore(root, filesystem=files) as store:
        opening = files.calls
        for _ in range(3):
            assert [each.run_id for each in store.list_runs()] == run_ids
            assert store.list_run_ids("run-37", 9) == run_ids[38:]
        assert files.calls - opening == len(run_ids)
        store.put_meta(row("run-07", "error"))
        store.transcripts().put("run-08/x", b"blob")
        changed = files.calls
        page = store.list_runs(RunFilter(limit=9, after_run_id="run-05"))
        assert [each.status for each in page] == ["ok", "error", *["ok"] * 7]
        assert files.calls - changed == 2


# --- deletion -------------------------------------------------------------------------------


def test_deletion_keeps_the_blobs_and_a_whole_one_does_not(tmp_path: Path) -> None:
    with quick(tmp_path / "store") as store:
        for run_id in ("a", "b"):
            store.append(run_id, record(0))
            store.put_meta(row(run_id))
            store.transcripts().put(f"{run_id}/x", b"blob")
        store.delete("a")
        store.delete_whole_run("b")
        store.delete("unknown")
        store.delete_whole_run("unknown")
        assert (store.load("a"), store.get_meta("a")) == ([], None)
        assert store.transcripts().get("a/x") == b"blob"
        assert store.transcripts().list_refs("b") == []
        assert store.list_run_ids(None, 9) == ["a"]
        store.append("a", record(0))
        assert store.load("a") == [record(0)]
        with pytest.raises(ConfigError, match="grants no leases"):
            store.delete_whole_run("a", lease=Lease(run_id="a", owner="me", epoch=1))
        assert store.load("a") == [record(0)]


def test_a_deletion_whose_files_stay_is_a_deletion_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    files = FaultyFileSystem("unlink")
    with FileJournalStore(root, filesystem=files) as store:
        store.append("a", record(0))
        store.put_meta(row("a"))
        files.at, files.for_ever = 1, True
        store.delete("a")
        assert "is deleted, and some of its files are still there" in caplog.text
        assert (root / "journals" / "a.jsonl").exists()
        with quick(root, read_only=True) as reader:
            assert (reader.load("a"), reader.load_after("a", -1, 9)) == ([], [])
            assert reader.get_meta("a") is None
            assert (reader.list_runs(), reader.list_run_ids(None, 9)) == ([], [])
        # Not for a reader to finish.
        assert (root / "journals" / "a.jsonl").exists()
        files.for_ever = False
        store.append("a", record(0))
        assert store.load("a") == [record(0)]
        assert store.list_runs() == []


# --- read-only ------------------------------------------------------------------------------


def test_a_read_only_store_refuses_every_change(tmp_path: Path) -> None:
    FileStores(tmp_path / "store").close()
    with quick(tmp_path / "store", read_only=True) as store:
        changes: list[Callable[[], None]] = [
            lambda: store.append("a", record(0)),
            lambda: store.put_meta(row("a")),
            lambda: store.delete("a"),
            lambda: store.delete_whole_run("a"),
            lambda: store.transcripts().put("a/x", b""),
            lambda: store.transcripts().delete("a/x"),
        ]
        for change in changes:
            with pytest.raises(ConfigError, match="opened read-only"):
                change()


class Growing(FaultyFileSystem):
    """A writer beside the reader: the journal changes while it is being read."""

    def __init__(self, path: Path, images: list[bytes]) -> None:
        super().__init__()
        self.path = path
        self.images = images

    def read(self, descriptor: int, size: int, offset: int, /) -> bytes:
        data = super().read(descriptor, size, offset)
        if self.images:
            self.path.write_bytes(self.images.pop(0))
        return data


def test_a_reader_that_met_a_change_reads_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    FileStores(root).close()
    path = root / "journals" / "a.jsonl"
    fused = b'{"seq":0}\n{"seq":1,"v":"to{"x":1}\n'
    path.write_bytes(fused)
    files = Growing(path, [])
    with FileJournalStore(root, read_only=True, filesystem=files) as store:
        files.images = [b'{"seq":0}\n{"seq":1}\n']
        assert store.load("a") == [record(0), record(1)]
        path.write_bytes(fused)
        with pytest.raises(DamagedJournalError):
            store.load("a")


class Deleting(FaultyFileSystem):
    """A writer beside the reader deletes a run right after the n-th thing that is seen of it."""

    def __init__(self, store: FileJournalStore) -> None:
        super().__init__()
        self.store = store
        self.seen = 0
        self.moment = 0

    def _saw(self) -> None:
        self.seen += 1
        if self.seen == self.moment:
            self.fired = True
            self.store.delete_whole_run("a")

    def open(self, path: str, flags: int, /) -> int:
        descriptor = super().open(path, flags)
        self._saw()
        return descriptor

    def look(self, path: str, /) -> os.stat_result:
        found = super().look(path)
        self._saw()
        return found

    def scan(self, path: str, /) -> list[os.DirEntry[str]]:
        found = super().scan(path)
        self._saw()
        return found


READS: dict[str, Callable[[FileJournalStore], object]] = {
    "load": lambda store: store.load("a"),
    "load_after": lambda store: store.load_after("a", -1, 9),
    "get_meta": lambda store: store.get_meta("a"),
    "list_runs": lambda store: [each.run_id for each in store.list_runs()],
    "list_run_ids": lambda store: store.list_run_ids(None, 9),
    "get": lambda store: store.transcripts().get("a/x"),
    "list_refs": lambda store: store.transcripts().list_refs("a"),
    "blob_info": lambda store: store.transcripts().blob_info("a/x"),
}


@pytest.mark.parametrize("name", READS)
def test_a_run_that_is_deleted_at_any_moment_of_a_read_is_there_or_not(
    tmp_path: Path, name: str
) -> None:
    read = READS[name]
    at = 0
    with quick(tmp_path / "store") as store:
        store.append("b", record(0))
        store.put_meta(row("b"))
        without = read(store)
        files = Deleting(store)
        files.fired = True
        while files.fired:
            at += 1
            store.append("a", record(0))
            store.put_meta(row("a"))
            store.transcripts().put("a/x", b"blob")
            whole = read(store)
            assert whole != without
            files = Deleting(store)
            with FileJournalStore(tmp_path / "store", read_only=True, filesystem=files) as reader:
                files.seen, files.moment = 0, at
                assert read(reader) in (whole, without), at
    assert at > 8
