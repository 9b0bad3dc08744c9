"""What a fork may never do: to the parent's database, and to the child's own work.

A forked child has copies of the parent's connections. Using one corrupts, and closing or
finalising one may checkpoint and delete the write-ahead log under the parent. So in the child
every live connection, and every cursor that is kept, gets one reference more than anybody will
ever drop, and every call on its store is refused by process id.

**The child cannot open the same file anew either.** SQLite's table of open files and of the
locks on them was copied with the rest of the memory, and POSIX locks are not inherited: a new
connection in the child finds the file in the table, believes that this process holds the lock,
and takes none. Whoever closes next then deletes the log under it, and what it commits is lost
without an error. So `refuse_inherited` goes before every opening: it knows the files by device
and inode, whatever their path, from what was open at the moment of the fork. What the parent
had closed by then, all of it, the child may open.

A fork copies SQLite's mutexes too, in the state that they are in. A child whose parent was
inside SQLite in another thread would wait for one of them for ever, on whatever file. So a fork
waits, for at most `_PATIENCE_S`, until this process is in no call of these stores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from rulvar.core.errors import StoreForkedError
from rulvar.stores.sqlite import open_files

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    import apsw

    from rulvar.stores.sqlite.open_files import Identity

__all__ = ["refuse_inherited", "remedy", "watch"]

_PATIENCE_S = 2.0


class _Holder(Protocol):
    def cursors(self) -> Iterable[apsw.Cursor]: ...

    def locks(self) -> Iterable[threading.Lock]: ...


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
_process = os.getpid()
_inherited: set[Identity] = set()
_quiet: list[threading.Lock | threading.RLock] = []
"""What is held during a fork; to be given back by the parent alone."""


def watch(holder: _Holder) -> None:
    """Let forks wait for the holder's calls, and keep its cursors alive in a child."""
    _holders.add(holder)


def remedy(path: str) -> str:
    """Return what to do instead of using, or opening, a store that a parent had open."""
    return (
        f"close the store before the fork and open {path} in each process afterwards, or start "
        "the process with spawn (multiprocessing) or as a separate command"
    )


def refuse_inherited(path: str) -> None:
    """Refuse to open a file that was open when this process was forked.

    Raises `StoreForkedError`.
    """
    if os.getpid() != _process:  # forked past Python, which ran no hook
        _in_child()
    if not _inherited:
        return
    try:
        identity = open_files.identity_of(path)
    except OSError:
        return  # not there, so nobody had it open by this name
    if identity in _inherited:
        message = (
            f"{path} was open in the process that this one was forked from, and SQLite's locks on "
            f"it do not work here: nothing was opened; {remedy(path)}"
        )
        raise StoreForkedError(message)


def _before() -> None:
    """Wait until no thread of this process is in a call of these stores."""
    deadline = time.monotonic() + _PATIENCE_S
    # In the order in which a call takes them: it opens what it needs under a lock of its own.
    locks: list[threading.Lock | threading.RLock] = [
        lock for holder in tuple(_holders) for lock in holder.locks()
    ]
    for lock in (*locks, open_files.opening):
        left_s = max(0.0, deadline - time.monotonic())
        _quiet.extend([lock] if lock.acquire(timeout=left_s) else [])


def _in_parent() -> None:
    while _quiet:
        _quiet.pop().release()


def _in_child() -> None:
    global _process  # noqa: PLW0603 - which process this is
    _process = os.getpid()
    _quiet.clear()
    inherited = open_files.open_now()
    for holder in tuple(_holders):
        for cursor in holder.cursors():
            _keep_for_ever(cursor)
    for connection, identity in inherited:
        _keep_for_ever(connection)
        if identity is not None:
            _inherited.add(identity)
    # What other libraries had open counts too: a lock that this process would take goes with
    # the first of the inherited descriptors to be closed.
    _inherited.update(open_files.open_descriptors())
    open_files.start_over()


def _keep_for_ever(handle: object) -> None:
    with contextlib.suppress(Exception):
        # A module's global would not do: interpreters clear those on their way out.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
