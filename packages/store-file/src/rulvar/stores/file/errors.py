"""What goes wrong on a disk as rulvar's errors, in one place: no ``OSError`` leaves the store."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreCorruptError, StoreError, StoreFullError
from rulvar.stores.file.filesystem import NotRegularFileError

if TYPE_CHECKING:
    from rulvar.stores.file.lines import DamageKind

__all__ = ["NO_ROOM", "DamagedJournalError", "translate"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_NO_RIGHT = "give this user the right to it"
_TOO_MANY = "close files, or raise the limit of open ones"
_REMEDIES = {
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: "make the file system writable, or open the store with read_only",
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
    errno.ENOENT: "see whether the folder was moved or removed",
}


class DamagedJournalError(StoreCorruptError):
    """A line of a journal is not a valid record, or stands out of order.

    ``run_id`` and ``position`` (counted from 0) say which; ``kind`` says how: ``nul-run``,
    ``joined``, ``undecodable``, ``no-record`` or ``out-of-order``. What can be read is not
    returned, since it is not the whole: repair the file, or bring back a copy of it.
    """

    def __init__(self, *, run_id: str, position: int, kind: DamageKind, why: str) -> None:
        message = (
            f"line {position + 1} in the journal of run {run_id!r} (position {position}) cannot "
            f"be read ({kind}): {why}; look at it with 'rulvar runs repair-file', which changes "
            "nothing without --apply"
        )
        super().__init__(message, run_id=run_id, position=position)
        self.kind: DamageKind = kind


def translate(error: OSError, *, path: str, run_id: str | None = None) -> StoreError:
    """Return the error of rulvar's tree that says what the operating system's says."""
    where = error.filename if isinstance(error.filename, str) else path
    said = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return StoreFullError(
            f"no room to write below {path} ({said}); nothing was written: make room, then try "
            "again",
            run_id=run_id,
        )
    if isinstance(error, NotRegularFileError):
        return StoreCorruptError(
            f"{where} {said}, which this store never makes and does not follow: move it away",
            run_id=run_id,
        )
    remedy = _REMEDIES.get(error.errno or 0, "see to the disk")
    return StoreError(f"{where}: {said}: {remedy}, then try again", run_id=run_id)
