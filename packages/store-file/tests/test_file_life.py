"""A store's life: threads that share it, its closing, and what it says meanwhile."""

from __future__ import annotations

import logging
import pickle
import threading
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import (
    ConfigError,
    JournalOrderViolation,
    StoreClosedError,
)
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import DamagedJournalError, FileJournalStore, FileStores
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def row(run_id: str, status: str = "ok", **others: object) -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at="now", **others)  # type: ignore[arg-type]


def quick(root: Path) -> FileJournalStore:
    return FileJournalStore(root, filesystem=FaultyFileSystem())


@pytest.mark.slow
def test_threads_share_a_store_and_each_seq_is_won_once(tmp_path: Path) -> None:
    won: list[tuple[str, int]] = []
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            for seq in range(20):
                for run_id in ("shared", f"own-{number}"):
                    try:
                        store.append(run_id, record(seq))
                    except JournalOrderViolation:
                        assert run_id == "shared"
                    else:
                        won.append((run_id, seq))
                store.put_meta(row(f"own-{number}"))
                store.transcripts().put(f"own-{number}/x", b"%d" % seq)
                assert store.get_meta(f"own-{number}") is not None
                store.list_runs()
        except BaseException as error:
            failures.append(error)
            raise

    with quick(tmp_path / "store") as store:
        crowd = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert failures == []
        assert len(set(won)) == len(won)
        shared = [seq for run_id, seq in won if run_id == "shared"]
        assert [each.seq for each in store.load("shared")] == sorted(shared)
        assert sorted(each.run_id for each in store.list_runs()) == [f"own-{n}" for n in range(8)]
        for number in range(8):
            assert len(store.load(f"own-{number}")) == 20


class Pausing(FaultyFileSystem):
    """Stops inside a sync until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.pausing = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def sync(self, descriptor: int, /) -> None:
        super().sync(descriptor)
        if self.pausing:
            self.reached.set()
            assert self.go_on.wait(60)


def test_close_waits_for_the_call_in_flight_and_refuses_the_next(tmp_path: Path) -> None:
    files = Pausing()
    store = FileJournalStore(tmp_path / "store", filesystem=files)
    store.append("a", record(0))
    files.pausing = True
    order: list[str] = []

    def append() -> None:
        store.append("a", record(1))
        order.append("appended")

    def close() -> None:
        store.close()
        order.append("closed")

    appending = threading.Thread(target=append)
    appending.start()
    assert files.reached.wait(60)
    closing = threading.Thread(target=close)
    closing.start()
    # The door is shut before close waits: seen from here once a call is refused.
    while True:
        try:
            store.load("b")
        except StoreClosedError:
            break
    assert closing.is_alive()
    files.go_on.set()
    closing.join()
    appending.join()
    # Whichever thread wrote its word first, close returned after the append had landed.
    assert sorted(order) == ["appended", "closed"]
    with quick(tmp_path / "store") as again:
        assert again.load("a") == [record(0), record(1)]


def test_a_closed_store_refuses_every_call_and_closes_again(tmp_path: Path) -> None:
    stores = FileStores(tmp_path / "store")
    stores.close()
    stores.close()
    store, twin = stores.journal, stores.transcripts
    assert isinstance(store, FileJournalStore)
    calls: list[Callable[[], object]] = [
        lambda: store.append("a", record(0)),
        lambda: store.load("a"),
        lambda: store.load_after("a", -1, 1),
        lambda: store.put_meta(row("a")),
        lambda: store.get_meta("a"),
        store.list_runs,
        lambda: store.list_run_ids(None, 1),
        lambda: store.delete("a"),
        lambda: store.delete_whole_run("a"),
        lambda: twin.put("a/x", b""),
        lambda: twin.get("a/x"),
        lambda: twin.list_refs("a"),
        lambda: twin.delete("a/x"),
        lambda: store.transcripts().blob_info("a/x"),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
    # The arguments come first.
    with pytest.raises(ConfigError):
        store.load("a/b")


def test_the_errors_survive_a_process_boundary() -> None:
    error = DamagedJournalError(run_id="a", position=3, kind="joined", why="so it is")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.run_id, copy.position, copy.kind, copy.code) == ("a", 3, "joined", "store-corrupt")
    assert str(copy) == str(error)


def test_opening_and_closing_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        FileStores(tmp_path / "store").close()
        FileStores(tmp_path / "store").close()
    assert caplog.records == []
