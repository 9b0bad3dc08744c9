"""One temporary folder for each process; those of dead processes are removed.

``<temp>/rulvar-worktrees-<user>/<process>/`` is this process's, for as long as it lives, and
``<process>.lock`` beside it is locked by it. The operating system gives the lock back when the
process ends, however it ends, also in another container over the same folder: whoever can lock
it knows that its owner is dead, and may take the folder away. Nobody ever takes it from a living
one. The lock is taken before the folder is made, so there is no folder without one but a dead
process's.
"""

from __future__ import annotations

import atexit
import os
import secrets
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_use_by_another", "own_folder"]

_LOCK = ".lock"

_making = threading.Lock()
_mine: dict[Path, int] = {}
"""This process's folders (one for each temp folder it has had), and their locks' descriptors."""
_process = os.getpid()


def own_folder(remove: Callable[[Path], None]) -> Path:
    """Return this process's folder, making it; private to this user.

    ``remove`` is called with the folder of each dead process; an ``OSError`` of it leaves that
    folder for the next time. Raises `ConfigError` when another owner owns the place.
    """
    ours = _place_of_user()
    with _making:
        _forget_after_fork()
        locked = (each for each, lock in _mine.items() if _is_locked_by(each, lock))
        folder = next((each for each in locked if each.parent == ours), None) or _make(ours)
        folder.mkdir(mode=0o700, exist_ok=True)
        _clean(ours, remove)
        return folder


def in_use_by_another(folder: Path) -> bool:
    """Whether a process's folder is that of another process, and it lives."""
    with _making:
        _forget_after_fork()
        if folder in _mine:
            return False
    descriptor = _try(folder)
    if descriptor is None:
        return _lock_of(folder).exists()
    os.close(descriptor)
    return False


def _place_of_user() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    ours = Path(tempfile.gettempdir()).resolve() / f"rulvar-worktrees-{user}"
    ours.mkdir(mode=0o700, exist_ok=True)
    facts = ours.lstat()
    foreign = hasattr(os, "getuid") and (facts.st_uid != user or facts.st_mode & 0o022)
    if not stat.S_ISDIR(facts.st_mode) or foreign:
        message = f"{ours} is not a folder of this user alone: remove it, or set TMPDIR"
        raise ConfigError(message)
    return ours


def _make(ours: Path) -> Path:
    while True:
        folder = ours / f"{os.getpid()}-{secrets.token_hex(4)}"
        descriptor = os.open(_lock_of(folder), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Somebody who cleans may have taken it for a dead process's in between: then anew.
        if _lock(descriptor) and _is_locked_by(folder, descriptor):
            folder.mkdir(mode=0o700)
            _mine[folder] = descriptor
            return folder
        os.close(descriptor)


def _clean(ours: Path, remove: Callable[[Path], None]) -> None:
    names = {each.name.removesuffix(_LOCK) for each in ours.iterdir()}
    for folder in sorted(ours / name for name in names):
        if folder in _mine:
            continue
        descriptor = _try(folder)
        if descriptor is None and _lock_of(folder).exists():
            continue  # its process lives, or another owner is at it
        try:
            with suppress(OSError):
                remove(folder)
                _lock_of(folder).unlink(missing_ok=True)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK}")


def _try(folder: Path) -> int | None:
    """Return the descriptor of a process's lock, now locked here; None where that cannot be."""
    try:
        descriptor = os.open(_lock_of(folder), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    if _lock(descriptor) and _is_locked_by(folder, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _is_locked_by(folder: Path, descriptor: int) -> bool:
    """Whether the lock that stands beside a folder is the one behind a descriptor."""
    try:
        return os.path.samestat(os.fstat(descriptor), _lock_of(folder).stat())
    except OSError:
        return False


def _lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - not elsewhere

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not on Windows

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _forget_after_fork() -> None:
    """Leave the parent's folders to it: a child has its own."""
    global _process  # noqa: PLW0603 - which process this module's state is of
    if _process != os.getpid():
        for descriptor in _mine.values():
            os.close(descriptor)
        _mine.clear()
        _process = os.getpid()


def _leave() -> None:
    """Take away what is empty when the process ends in order."""
    if _process != os.getpid():
        return
    for folder, descriptor in _mine.items():
        with suppress(OSError):
            for inner in folder.iterdir():
                inner.rmdir()
            folder.rmdir()
            _lock_of(folder).unlink()
        with suppress(OSError):
            os.close(descriptor)


atexit.register(_leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
