"""Every connection that this process has open, and the files that SQLite opened for it.

SQLite keeps what it knows of an open file (locks, the index of the log) once for the whole
process, by the file's device and inode. Two things follow, and this module serves both: what a
forked child inherited of that table (`rulvar.stores.sqlite.forks`), and whether the names of a
database, its log and its index still stand for the files that are open (`OpenFiles`).

**The log cannot change under an open connection.** From its first read to its close a
connection in WAL mode holds a shared lock on the database, and only who gets that file to
itself, the last one to close, may delete ``-wal`` and ``-shm``. Recovery, checkpoints and
truncation keep both files. So a ``-wal`` that is another file than the one opened was taken away
by something that knows nothing of SQLite's locks: what is committed then goes where no reader
looks. The names are asked with ``stat`` alone: closing a handle on one of these files would
drop every lock that this process holds on it.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import apsw

from rulvar.core.errors import StoreCorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Identity",
    "OpenFiles",
    "check_open",
    "close",
    "identity_of",
    "open_descriptors",
    "open_now",
    "opened",
    "opening",
    "start_over",
]

Identity = tuple[int, int]
"""Device and inode: what distinguishes a file from another that took its name."""

_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")


def identity_of(path: str) -> Identity:
    """Return what distinguishes a file from another that took its name."""
    found = os.stat(path)  # noqa: PTH116 - never a handle
    return (found.st_dev, found.st_ino)


class _Handle(NamedTuple):
    database: Identity | None
    files: OpenFiles | None


opening = threading.RLock()
"""Held while a connection is opened and registered, so that no fork falls in between."""

_guard = threading.Lock()
_handles: weakref.WeakKeyDictionary[apsw.Connection, _Handle] = weakref.WeakKeyDictionary()


def opened(connection: apsw.Connection, path: str | None) -> apsw.Connection:
    """Register a connection that has just been opened; ``path`` is None for one in memory."""
    identity = None if path is None else identity_of(path)
    with _guard:
        _handles[connection] = _Handle(identity, None)
    return connection


def _is_open(connection: apsw.Connection) -> bool:
    """Ask the connection itself: an interrupt may fall between its close and its removal here."""
    try:
        return connection.open_flags is not None
    except apsw.ConnectionClosedError:
        return False


def _open_handles() -> list[tuple[apsw.Connection, _Handle]]:
    return [each for each in list(_handles.items()) if _is_open(each[0])]


def open_now() -> list[tuple[apsw.Connection, Identity | None]]:
    """Return the connections that are open, each with its database file."""
    return [(connection, handle.database) for connection, handle in _open_handles()]


def check_open(path: str) -> None:
    """Refuse to open a file whose names no longer stand for what is open of it here.

    Raises `StoreCorruptError`. A new connection would share the index of the open ones.
    """
    with _guard:
        known = [handle.files for _, handle in _open_handles() if handle.files is not None]
    for files in known:
        if files.path == path:
            files.check()


def close(connection: apsw.Connection, *, checkpoint: bool = False, force: bool = False) -> None:
    """Close a connection; only with ``checkpoint`` may it move the log into the database.

    Idempotent, so that a close which an interrupt stopped can be made again. A connection that
    is merely dropped never moves the log: by then its files may be others'.
    """
    if checkpoint and _is_open(connection):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    connection.close(force)
    with _guard:
        _handles.pop(connection, None)


def start_over() -> None:
    """Forget the parent's connections and locks; called in a forked child alone."""
    global _guard, opening  # noqa: PLW0603 - another thread may have held them at the fork
    _guard = threading.Lock()
    opening = threading.RLock()
    _handles.clear()


def open_descriptors() -> set[Identity]:
    """Return which ordinary files this process has open, where the system tells; else nothing."""
    for folder in _DESCRIPTORS:
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names of numbers
        except OSError:
            continue
        return set(_ordinary(map(int, names)))
    return set()


def _ordinary(descriptors: Iterable[int]) -> Iterable[Identity]:
    for descriptor in descriptors:
        try:
            found = os.fstat(descriptor)
        except OSError:  # the one that the listing itself had
            continue
        if stat.S_ISREG(found.st_mode):
            yield (found.st_dev, found.st_ino)


class OpenFiles:
    """The files that a connection has open, by the names that they must keep."""

    __slots__ = ("_log", "_names", "path")

    def __init__(self, path: str, names: dict[str, Identity]) -> None:
        self.path = path
        self._names = tuple((name, *identity) for name, identity in names.items())
        # Where commits go; a database that has no log is only read.
        self._log = self._names[:2][-1]

    @classmethod
    def of(cls, connection: apsw.Connection, path: str, *, logged: bool) -> OpenFiles:
        """Note which files a connection has open that has just read for the first time.

        ``logged`` says that there must be a log. Raises `StoreCorruptError` when the names
        stand for other files already: for those that another connection of this process has
        open, or for none that this process has.
        """
        names = {path: identity_of(path)}
        for name in (f"{path}-wal", f"{path}-shm"):
            try:
                names[name] = identity_of(name)
            except FileNotFoundError:
                if logged:
                    _refuse(path, name, "was removed", "nothing was written")
        files = cls(path, names)
        have = open_descriptors()
        if names[path] in have:  # else the system's two ways of naming a file do not agree
            for name, identity in names.items():
                if identity not in have:
                    _refuse(path, name, "was replaced by another file", "nothing was written")
        with _guard:
            for other, handle in _open_handles():
                if other is not connection and handle.files is not None:
                    handle.files.agree(files)
            _handles[connection] = _Handle(names[path], files)
        return files

    def agree(self, other: OpenFiles) -> None:
        """Refuse another connection's files when the same names stand for others there.

        Raises `StoreCorruptError`.
        """
        if self.path != other.path:
            return
        mine = {name: identity for name, *identity in self._names}
        for name, *identity in other._names:
            if mine.get(name, identity) != identity:
                _refuse(self.path, name, "was replaced by another file", "nothing was written")

    def check(self) -> None:
        """Refuse to go on when a file that is open was removed, or another took its name.

        What is written to a file without a name is lost. Raises `StoreCorruptError`.
        """
        for name, device, inode in self._names:
            try:
                found = os.stat(name)  # noqa: PTH116 - never a handle
            except OSError:  # a file that cannot be looked at is as good as removed
                _refuse(self.path, name, "was removed", "nothing was written")
            if found.st_ino != inode or found.st_dev != device:
                _refuse(self.path, name, "was replaced by another file", "nothing was written")

    def check_landing(self) -> None:
        """Refuse to answer for a commit whose log has lost its name meanwhile.

        Raises `StoreCorruptError`.
        """
        name, device, inode = self._log
        try:
            found = os.stat(name)  # noqa: PTH116 - never a handle
        except OSError:
            found = None
        if found is None or found.st_ino != inode or found.st_dev != device:
            fate = "what was written at that moment is lost"
            _refuse(self.path, name, "was removed or replaced", fate)

    def moved(self) -> bool:
        """Whether a name stands for another file than the one that is open, or for none."""
        try:
            self.check()
        except StoreCorruptError:
            return True
        return False


def _refuse(path: str, name: str, what: str, fate: str) -> NoReturn:
    message = (
        f"{name} {what} while this process has {path} open; {fate}: end whatever uses the "
        "database, see what is there, and open it again; nothing but SQLite may touch these "
        "files while a store has them open"
    )
    raise StoreCorruptError(message)
