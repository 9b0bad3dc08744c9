"""The virtual file system that does the work on real files and tells a `Disk` of each call.

Seen here: every write, truncation, sync, creation and deletion of the database, its rollback
journal and its write-ahead log. Not seen: the file of shared memory, which is mapped, and which
SQLite builds anew when nobody has it open; and the folder's own syncs, which SQLite's file
system does by itself in two places: with the first sync of a journal or log that it opened
with leave to create it, and in a deletion that asks for it. A test compares this rule with
what that file system really does.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from power_disk import Disk

__all__ = ["RecordingDisk"]

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_WATCHED = apsw.SQLITE_OPEN_MAIN_DB | _JOURNALS


class RecordingDisk(apsw.VFS):
    """Records all files of every database that is opened while it is the default.

    ``powersafe`` is what it says of the disk: whether a write that is cut off leaves its
    neighbours alone. ``failing_log_syncs`` and ``failing_database_syncs`` are how many of the
    next ones report an error.
    """

    def __init__(self, disk: Disk, *, powersafe: bool = True) -> None:
        self.sound = apsw.vfs_names()[0]
        super().__init__("rulvar-recording", self.sound, makedefault=True)
        self.disk = disk
        self.powersafe = powersafe
        self.failing_log_syncs = 0
        self.failing_database_syncs = 0
        self.failed = 0
        self.lock = threading.RLock()

    def is_to_fail(self, *, log: bool) -> bool:
        """Whether this sync is to report an error; counts it."""
        if log and self.failing_log_syncs:
            self.failing_log_syncs -= 1
        elif not log and self.failing_database_syncs:
            self.failing_database_syncs -= 1
        else:
            return False
        self.failed += 1
        return True

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        if name is None or not flags[0] & _WATCHED:
            return apsw.VFSFile(self.sound, name, flags)
        with self.lock:
            return RecordingFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's
        with self.lock:
            super().xDelete(filename, syncdir)
            self.disk.delete(os.path.basename(filename))  # noqa: PTH119 - text in, text out
            if syncdir:
                self.disk.sync_names()


class RecordingFile(apsw.VFSFile):
    """One open file; its writes are recorded in the order in which they really happen."""

    def __init__(
        self, recorder: RecordingDisk, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        self._recorder = recorder
        self._disk = recorder.disk
        asked = flags[0]
        super().__init__(recorder.sound, name, flags)
        path = name if isinstance(name, str) else name.filename()
        base = os.path.basename(path)  # noqa: PTH119 - text in, text out
        found = self._disk.find(base)
        self._file = self._disk.create(base) if found is None else found
        self._is_log = bool(asked & apsw.SQLITE_OPEN_WAL)
        self._syncs_folder = bool(asked & apsw.SQLITE_OPEN_CREATE and asked & _JOURNALS)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        with self._recorder.lock:
            super().xWrite(data, offset)
            self._disk.write(self._file, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        with self._recorder.lock:
            super().xTruncate(newsize)
            self._disk.truncate(self._file, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        with self._recorder.lock:
            if self._recorder.is_to_fail(log=self._is_log):
                self._disk.fail_to_sync(self._file)
                raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
            super().xSync(flags)
            self._disk.sync(self._file)
            if self._syncs_folder:
                self._syncs_folder = False
                self._disk.sync_names()

    def xDeviceCharacteristics(self) -> int:  # noqa: N802 - SQLite's name
        found = super().xDeviceCharacteristics()
        if self._recorder.powersafe:
            return found
        return found & ~apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE
