"""One writer: a lock that the operating system holds, and gives back when its holder dies.

Two locked files. ``writer.lock`` is held for as long as the store is open for writing.
``opening.lock`` is held only while a process takes the first and writes down who it is, so
that a refused one reads the name of the present holder and never that of the last one.
Neither file is ever removed, and what ``writer.json`` says decides nothing: not whether a
process of that number lives, nor how old it is.

A forked child has copies of the descriptors, which would keep the lock alive behind a dead
parent. It closes them at once; it never *unlocks*, which would take the lock from the parent.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from typing import TYPE_CHECKING

from filelock import lock_descriptor, unlock_descriptor

from rulvar.core.errors import StoreInUseError
from rulvar.core.wire import InvalidJSONError, format_time, json_text, parse_value
from rulvar.stores.file.filesystem import LOCK, opened, read_file, write_all
from rulvar.stores.file.forks import identity_of

if TYPE_CHECKING:
    from rulvar.core.clock import Clock
    from rulvar.stores.file.filesystem import FileSystem
    from rulvar.stores.file.layout import Layout

__all__ = ["WriterLock"]

_OPENING_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class WriterLock:
    """The right to write below a root, from `take` to `give_back`."""

    def __init__(self, files: FileSystem, layout: Layout, clock: Clock) -> None:
        self._files = files
        self._layout = layout
        self._clock = clock
        self._descriptors: list[int] = []
        self._room: tuple[int, int] | None = None
        _locks.add(self)
        # A store that is forgotten and never closed must not keep everybody out.
        self._forgotten = weakref.finalize(self, _close_all, self._descriptors, os.getpid())
        self._forgotten.atexit = False

    def take(self) -> None:
        """Become the writer.

        Raises `StoreInUseError` naming the present one, having changed nothing.
        """
        door = self._open(self._layout.opening_lock)
        try:
            self._wait_for(door)
            room = self._open(self._layout.writer_lock)
            try:
                self._lock_or_refuse(room)
                self._room = identity_of(self._files.stat(room))
                self._say_who()
            except BaseException:
                self._close(room)
                raise
        finally:
            self._close(door)

    def confirm(self) -> None:
        """Raise `StoreInUseError` unless the file that is locked is the one that others would lock.

        A hand that removes it, or moves the folder away and puts another in its place, lets a
        second writer in; the first must not go on beside it.
        """
        if os.name == "nt":
            return  # no file can be removed or moved there while it is open
        try:
            now = identity_of(self._files.look(self._layout.writer_lock))
        except FileNotFoundError:
            now = None
        if now != self._room:
            message = (
                f"{self._layout.writer_lock} is not the file that this store locked: the folder "
                "was moved, removed or replaced, or its lock was, and another process may write "
                "there now: close this store, see to the folder, and open it again"
            )
            raise StoreInUseError(message)

    def give_back(self) -> None:
        """Stop being the writer; idempotent."""
        for descriptor in tuple(self._descriptors):
            try:
                unlock_descriptor(descriptor)
            finally:
                self._close(descriptor)

    def leave_to_parent(self) -> None:
        """Close a forked child's copies, which share the parent's lock."""
        _close_all(self._descriptors, os.getpid())

    def _open(self, path: str) -> int:
        descriptor = self._files.open(path, LOCK)
        self._descriptors.append(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        self._descriptors.remove(descriptor)
        self._files.close(descriptor)

    def _wait_for(self, door: int) -> None:
        until = time.monotonic() + _OPENING_SECONDS
        while not lock_descriptor(door, blocking=False):
            if time.monotonic() > until:
                message = (
                    f"{self._layout.root} is being opened by another process, which has not got "
                    f"on for {_OPENING_SECONDS:.0f} seconds: look whether it is stopped"
                )
                raise StoreInUseError(message)
            time.sleep(_PAUSE_SECONDS)

    def _lock_or_refuse(self, room: int) -> None:
        if not lock_descriptor(room, blocking=False):
            raise self._refusal()

    def _say_who(self) -> None:
        who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": format_time(self._clock.now_ms()),
        }
        data = (json_text(who) + "\n").encode("utf-8")
        # In place and unsynced: it is read under the same lock, and means nothing after a crash.
        # Over the old one, then cut: so it needs no new room on a full disk.
        with opened(self._files, self._layout.writer, LOCK) as descriptor:
            write_all(self._files, descriptor, data)
            if self._files.stat(descriptor).st_size > len(data):
                self._files.truncate(descriptor, len(data))

    def _refusal(self) -> StoreInUseError:
        holder = "another process"
        try:
            who = parse_value(read_file(self._files, self._layout.writer) or b"")
        except (OSError, InvalidJSONError):
            who = None  # the refusal stands, whatever became of the holder's name
        if isinstance(who, dict):
            holder = f"process {who.get('pid')} on {who.get('host')}, since {who.get('since')}"
        message = (
            f"{self._layout.root} is open for writing by {holder}: close it there, or open it here "
            "with read_only=true; for several writers at once use sqlite:///<path>"
        )
        return StoreInUseError(message, holder=holder)


def _close_all(descriptors: list[int], process: int) -> None:
    if process != os.getpid():
        return
    while descriptors:
        os.close(descriptors.pop())


_locks: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for lock in tuple(_locks):
        lock.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
