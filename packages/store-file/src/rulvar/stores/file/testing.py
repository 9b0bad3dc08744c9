"""A disk that fails: for tests of this store, and of what people build on it."""

from __future__ import annotations

import errno
import os
import threading
from typing import Literal, get_args

from rulvar.stores.file.filesystem import FileSystem

__all__ = ["FAULT_KINDS", "FaultKind", "FaultyFileSystem"]

FaultKind = Literal["open", "write", "sync", "rename", "unlink", "truncate", "folder"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_ERRNO: dict[FaultKind, int] = {
    "open": errno.EMFILE,
    "write": errno.ENOSPC,
    "sync": errno.EIO,
    "rename": errno.EACCES,
    "unlink": errno.EACCES,
    "truncate": errno.EIO,
    "folder": errno.ENOSPC,
}


class FaultyFileSystem(FileSystem):
    """Fails the ``at``-th call of one kind (counted from 1), once or from then on for ever.

    A write that fails has written half of what it was given; every other call that fails has
    done nothing. ``calls`` counts the calls of the kind, ``fired`` tells whether any failed.
    ``real_sync=False`` leaves out the syncs themselves, which only power loss would notice.
    """

    def __init__(
        self,
        kind: FaultKind = "open",
        *,
        at: int = 0,
        for_ever: bool = False,
        real_sync: bool = False,
    ) -> None:
        self.kind = kind
        self.at = at
        self.for_ever = for_ever
        self.real_sync = real_sync
        self.calls = 0
        self.fired = False
        self._lock = threading.Lock()

    def _fails(self, kind: FaultKind) -> bool:
        if kind != self.kind or not self.at:
            return False
        with self._lock:
            self.calls += 1
            fails = self.calls >= self.at if self.for_ever else self.calls == self.at
            self.fired = self.fired or fails
            return fails

    def _meet(self, kind: FaultKind, path: str | None = None) -> None:
        if self._fails(kind):
            raise _fault(kind, path)

    def open(self, path: str, flags: int, /) -> int:
        """Open, or fail."""
        self._meet("open", path)
        return super().open(path, flags)

    def write(self, descriptor: int, data: memoryview, /) -> int:
        """Write, or write half and fail."""
        if self._fails("write"):
            super().write(descriptor, data[: len(data) // 2])
            raise _fault(self.kind, None)
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size: int, /) -> None:
        """Cut, or fail."""
        self._meet("truncate")
        super().truncate(descriptor, size)

    def sync(self, descriptor: int, /) -> None:
        """Sync, or fail."""
        self._meet("sync")
        if self.real_sync:
            super().sync(descriptor)

    def sync_folder(self, path: str, /) -> None:
        """Sync a folder, or fail."""
        self._meet("sync", path)
        if self.real_sync:
            super().sync_folder(path)

    def rename(self, source: str, target: str, /) -> None:
        """Move, or fail."""
        self._meet("rename", target)
        super().rename(source, target)

    def unlink(self, path: str, /) -> None:
        """Remove, or fail."""
        self._meet("unlink", path)
        super().unlink(path)

    def make_folder(self, path: str, /) -> None:
        """Make a folder, or fail."""
        self._meet("folder", path)
        super().make_folder(path)

    def remove_folder(self, path: str, /) -> None:
        """Remove a folder, or fail."""
        self._meet("folder", path)
        super().remove_folder(path)


def _fault(kind: FaultKind, path: str | None) -> OSError:
    number = _ERRNO[kind]
    return OSError(number, f"{os.strerror(number)} (injected)", path)
