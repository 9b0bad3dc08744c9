"""What a sync is: on macOS the one that empties the drive's cache too, elsewhere fsync."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import StoreError
from rulvar.core.records import JournalRecord
from rulvar.stores.file import FileJournalStore

if TYPE_CHECKING:
    from pathlib import Path

fcntl = pytest.importorskip("fcntl")

FULL = 51
RECORD = JournalRecord(seq=0, payload=b'{"seq":0}')


class Syncs:
    """Stands in for both calls, and fails the full one with a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
        self.full = 0
        self.plain = 0
        self.number = number
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fcntl(self, descriptor: int, command: int) -> int:
        assert command == FULL
        os.fstat(descriptor)
        self.full += 1
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))
        return 0

    def _fsync(self, descriptor: int) -> None:
        os.fstat(descriptor)
        self.plain += 1


def test_the_drive_s_cache_is_emptied_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch, None)
    with FileJournalStore(tmp_path / "store") as store:
        before = syncs.full
        store.append("run", RECORD)
        assert syncs.full - before == 2  # the file, and the folder that has its name
        store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
        assert syncs.full - before == 3
    assert syncs.plain == 0


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_it_has_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    syncs = Syncs(monkeypatch, number)
    with FileJournalStore(tmp_path / "store") as store:
        store.append("run", RECORD)
    assert syncs.plain == syncs.full > 0


def test_a_sync_that_fails_is_not_answered_by_a_lesser_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch, None)
    with FileJournalStore(tmp_path / "store") as store:
        store.append("run", RECORD)
        syncs.number = errno.EIO
        with pytest.raises(StoreError):
            store.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
        syncs.number = None
        assert store.load("run") == [RECORD]
    assert syncs.plain == 0
