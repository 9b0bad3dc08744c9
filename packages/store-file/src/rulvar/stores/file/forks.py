"""Which folders this process inherited open: a forked child opens none of them anew.

The lock of the folder is the parent's, and the child cannot tell whether the parent is in the
middle of a change. The rule is the one of every store (contract.md#forked-children): what was
open at the fork stays with the parent, and the child is refused when it opens, not when
something is lost.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

from rulvar.core.errors import StoreForkedError

if TYPE_CHECKING:
    from rulvar.stores.file.filesystem import FileSystem

__all__ = ["Identity", "forget", "identity_of", "refuse_inherited", "watch"]

Identity = tuple[int, int]
"""The device and the number of a file or a folder: what it is, whatever its name."""

REMEDY = "close it before the fork and open it in the child, or start the child by spawn"


class _Holder(Protocol):
    @property
    def identity(self) -> Identity | None: ...


_open: weakref.WeakSet[_Holder] = weakref.WeakSet()
_inherited: set[Identity] = set()


def identity_of(now: os.stat_result) -> Identity:
    """Return what distinguishes this file or folder from every other one."""
    return now.st_dev, now.st_ino


def watch(holder: _Holder) -> None:
    """Count the holder's folder as open, until `forget`."""
    _open.add(holder)


def forget(holder: _Holder) -> None:
    """Count the holder's folder as closed; idempotent."""
    _open.discard(holder)


def refuse_inherited(files: FileSystem, root: str) -> None:
    """Raise `StoreForkedError` when the folder was open in the process that forked this one."""
    if not _inherited:
        return
    try:
        now = files.look(root)
    except FileNotFoundError:
        return
    if identity_of(now) in _inherited:
        message = (
            f"the store at {root} was open in the process that process {os.getpid()} was forked "
            f"from: {REMEDY}"
        )
        raise StoreForkedError(message)


def _inherit() -> None:
    for holder in tuple(_open):
        if holder.identity is not None:
            _inherited.add(holder.identity)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)
