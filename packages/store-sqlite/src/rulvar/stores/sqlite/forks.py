"""What a fork may never do to the parent's database.

A forked child has copies of the parent's connections. Using one corrupts, and closing or
finalising one may checkpoint and delete the write-ahead log under the parent. So in the child
every live connection, and every cursor that is kept, gets one reference more than anybody will
ever drop, and every call on its store is refused by process id.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

__all__ = ["watch"]


class _Holder(Protocol):
    def connections(self) -> Iterable[apsw.Connection]: ...

    def cursors(self) -> Iterable[apsw.Cursor]: ...


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def watch(holder: _Holder) -> None:
    """Keep the holder's connections and cursors from being finalised in a forked child."""
    _holders.add(holder)


def _keep_for_ever() -> None:
    for holder in tuple(_holders):
        for handle in (*holder.cursors(), *holder.connections()):
            # A module's global would not do: interpreters clear those on their way out.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_for_ever)
