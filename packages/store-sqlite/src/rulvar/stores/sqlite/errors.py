"""SQLite's answers as rulvar's errors, in one place: no driver exception leaves the store."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import apsw

from rulvar.core.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BUSY",
    "FAILURES",
    "DefectError",
    "is_doubtful_commit",
    "translate",
    "was_rolled_back",
    "what_is_missing",
]

BUSY: tuple[type[Exception], ...] = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
"""Somebody else has the file just now: nothing happened, try again."""


class DefectError(StoreError):
    """Two checks of one fact disagree inside a transaction: a defect of this store.

    The batch is rolled back, as for any failed statement.
    """


FAILURES: tuple[type[Exception], ...] = (apsw.Error, MemoryError, DefectError)
"""What a job may fail with, so that its batch is rolled back; a refusal is none of them."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_doubtful_commit(error: BaseException) -> bool:
    """Whether a COMMIT that failed so may still have left a whole commit on the disk.

    It may once its last frame was written: when the sync failed, or what SQLite does after it.
    A failure to *write* leaves no whole commit, and a lock is met before anything is written.
    """
    if isinstance(error, (apsw.FullError, *BUSY)):
        return False
    return getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_WRITE


def was_rolled_back(error: BaseException) -> bool:
    """Whether SQLite itself reported the failure, and so sees nothing of the commit."""
    return isinstance(error, apsw.Error)


def translate(
    error: BaseException,
    *,
    path: str,
    run_id: str | None = None,
    system_errno: int = 0,
) -> StoreError:
    """Return the error of rulvar's tree that says what the driver's error says.

    ``system_errno`` is what the operating system reported, 0 where it reported nothing.
    """
    if isinstance(error, DefectError):
        return error
    if isinstance(error, BUSY):
        return StoreBusyError(f"{path} is locked by another process: try again", run_id=run_id)
    if isinstance(error, apsw.FullError) or (
        isinstance(error, apsw.IOError) and system_errno in _NO_ROOM
    ):
        return StoreFullError(
            f"no room to write to {path}; nothing was written: make room, then try again",
            run_id=run_id,
        )
    if isinstance(error, apsw.CantOpenError | apsw.IOError) and no_descriptors():
        return StoreError(
            f"{path} cannot be opened: this process has no file descriptor left; nothing was "
            "written: close files, or raise the limit of open ones (ulimit -n), then try again",
            run_id=run_id,
        )
    for kinds, build in _MEANINGS:
        if isinstance(error, kinds):
            return build(path, str(error), run_id)
    return StoreError(f"{path}: SQLite reports {_said(error)}", run_id=run_id)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _corrupt(path: str, said: str, run_id: str | None) -> StoreError:
    return StoreCorruptError(
        f"{path} cannot be read as a SQLite database ({said}): restore it from a copy",
        run_id=run_id,
    )


def _unopenable(path: str, said: str, run_id: str | None) -> StoreError:
    if _on_read_only_file_system(path):
        return StoreError(
            f"{path} is on a read-only file system, where it can be neither written nor read: "
            "a reader needs a file beside it; copy it with its -wal file to another place",
            run_id=run_id,
        )
    missing = what_is_missing(path)
    return StoreError(f"{path} cannot be opened ({said}): {missing}", run_id=run_id)


def what_is_missing(path: str) -> str:
    """Return what keeps this user from opening a file, as far as the system shows it."""
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - text in, text out
    if not os.access(folder, os.X_OK):
        return f"this user may not enter the folder {folder}"
    beside = [f"{path}{end}" for end in ("-wal", "-shm")]
    there = [name for name in beside if os.path.exists(name)]  # noqa: PTH110
    for name in (path, *there):
        if not os.access(name, os.R_OK) and os.path.exists(name):  # noqa: PTH110
            return (
                f"this user may not read {name}: let its owner allow that, for the database, its "
                "-wal and its -shm alike (new files are private; permissions='umask' makes others)"
            )
    for name in (path, *there):
        if not os.access(name, os.W_OK) and os.path.exists(name):  # noqa: PTH110
            may = f"this user may read and not write {name}"
            if len(there) == len(beside):
                return f"{may}: looking with read_only works"
            return (
                f"{may}, and reading a database that is not open needs files beside it: "
                f"let this user write the folder {folder}, look while its owner has it open, or "
                f"copy the file and look at the copy"
            )
    if not os.access(folder, os.W_OK):
        return f"this user may not write the folder {folder}, where SQLite keeps its log"
    return "check that its folder exists and that this user may write the file and the folder"


def no_descriptors() -> bool:
    """Whether this process, or the system, cannot open any file at the moment."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in {errno.EMFILE, errno.ENFILE}
    return False


def _on_read_only_file_system(path: str) -> bool:
    try:
        # Asks for the file system alone: it opens nothing.
        return bool(os.statvfs(os.path.dirname(path) or ".").f_flag & os.ST_RDONLY)  # noqa: PTH120
    except (OSError, AttributeError):  # there is no such question on Windows
        return False


def _disk(path: str, said: str, run_id: str | None) -> StoreError:
    return StoreError(
        f"the disk under {path} reports an error ({said}); nothing was written: check the disk",
        run_id=run_id,
    )


def _memory(path: str, said: str, run_id: str | None) -> StoreError:
    return StoreError(
        f"not enough memory to work on {path} ({said}); nothing was written: try again",
        run_id=run_id,
    )


_MEANINGS: tuple[
    tuple[tuple[type[BaseException], ...], Callable[[str, str, str | None], StoreError]], ...
] = (
    ((apsw.CorruptError, apsw.NotADBError, apsw.FormatError), _corrupt),
    ((apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError), _unopenable),
    ((apsw.IOError,), _disk),
    ((apsw.NoMemError, MemoryError), _memory),
)
