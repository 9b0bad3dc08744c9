"""What the operating system says of the place: network file systems, and who holds a lock.

Nothing here opens a database file, its ``-wal`` or its ``-shm``: closing any handle on one
drops every POSIX lock that this process holds on it, SQLite's too (contract.md#database-files).
Names are asked with ``stat``, locks are read in the kernel's own table.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Place",
    "make_private",
    "network_filesystem",
    "other_names",
    "place_of",
    "who_blocks",
]

MOUNTS = Path("/proc/self/mountinfo")
LOCKS = Path("/proc/locks")

_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.davfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "prl_fs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
    }
)
_PRIVATE = 0o600
_ESCAPE = re.compile(r"\\([0-7]{3})")

# Where SQLite's locks lie is part of its file format. The write lock of a log is the first of
# the WAL-index locks, in the -shm file; recovery takes it too. In the database itself a write
# lock on any of these bytes keeps everybody out: while a file is born, and while the last one
# to close moves the log into it.
_LOCK_BYTES = {"-shm": (120, 120), "": (0x40000000, 0x400001FF)}


class Place(NamedTuple):
    """Which file a path names: two paths share a database exactly when these are equal."""

    device: int
    inode: int
    folder: int
    name: str


def place_of(path: str) -> Place:
    """Identify a database file by its own and its folder's inode and its name.

    The name matters: a second hard link has another ``-wal``, and so is another database.
    """
    file = os.stat(path)  # noqa: PTH116 - never a handle
    folder = os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120
    return Place(file.st_dev, file.st_ino, folder.st_ino, os.path.basename(path))  # noqa: PTH119


def make_private(path: str) -> None:
    """Make an empty file that only its user may read, where there is none.

    SQLite takes it for a new database, and gives its ``-wal`` and ``-shm`` the same mode. Where
    a file cannot be made without a handle on it, the handle is closed before anybody can have
    a lock on the file: whoever calls this holds what openings are held by. What the system
    refuses is left to SQLite, which says so.
    """
    if os.path.lexists(path):
        return
    with contextlib.suppress(OSError):
        _make_empty(path)
        if stat.S_IMODE(os.stat(path).st_mode) != _PRIVATE:  # noqa: PTH116
            os.chmod(path, _PRIVATE)  # noqa: PTH101 - the umask takes more than others' part


def _make_empty(path: str) -> None:
    if hasattr(os, "mknod"):
        with contextlib.suppress(PermissionError, NotImplementedError):
            os.mknod(path, stat.S_IFREG | _PRIVATE)
            return
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE))


def other_names(path: str, mounts: Path = MOUNTS) -> str | None:
    """Say why ``path`` may not be the only name of its file, or return None.

    The log and the locks of SQLite belong to the name: under two names, a file is two
    databases that overwrite each other.
    """
    try:
        links = os.stat(path).st_nlink  # noqa: PTH116 - never a handle
    except OSError:
        return None  # not there yet, or the opening will say what is wrong
    if links > 1:
        return f"has {links} names (hard links)"
    if path in _mount_points(mounts):
        return "is a mount point itself (a file bound into place)"
    return None


def _mount_points(mounts: Path) -> set[str]:
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return set()
    fields = (line.split(" ") for line in table.splitlines())
    return {_unescaped(found[4]) for found in fields if len(found) > 4}  # noqa: PLR2004


def _unescaped(point: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), point)


def network_filesystem(path: str, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the network file system that ``path`` lies on, or None.

    Linux tells it in its table of mounts, Windows by a path that names a host; elsewhere
    nothing is known, which is None too.
    """
    if os.name == "nt":
        return "smb" if path.startswith("\\\\") and path[2:3] not in {"?", "."} else None
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    best, kind = "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if len(fields) < 5 or not tail[0]:  # noqa: PLR2004 - see proc(5)
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount covers an earlier one
            best, kind = point, tail[0]
    return kind if kind in _NETWORK else None


def who_blocks(path: str, locks: Path = LOCKS) -> str | None:
    """Name the process that keeps writers or openers out, where the system tells."""
    try:
        table = locks.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for suffix, (first, last) in _LOCK_BYTES.items():
        pid = _holder(f"{path}{suffix}", table, first, last)
        if pid > 0:
            return _describe(pid)
    return None


def _holder(file: str, table: list[str], first: int, last: int) -> int:
    """Return who holds a write lock between two bytes of a file; 0 when nobody is known to."""
    try:
        wanted = os.stat(file)  # noqa: PTH116 - never a handle
    except OSError:
        return 0
    device = f"{os.major(wanted.st_dev):02x}:{os.minor(wanted.st_dev):02x}"
    found: dict[bool, int] = {}
    for line in table:
        holder = _write_lock(line, wanted.st_ino, first, last)
        if holder is not None:
            pid, on = holder
            found.setdefault(on == device, pid)
    # Some file systems report one device to stat and another to the table of locks.
    return found.get(True, found.get(False, 0))


def _write_lock(line: str, inode: int, first: int, last: int) -> tuple[int, str] | None:
    fields = line.split()
    if len(fields) != 8 or fields[3] != "WRITE":  # noqa: PLR2004 - see proc(5)
        return None
    device, _, number = fields[5].rpartition(":")
    if number != str(inode) or not fields[6].isdigit():
        return None
    begin, end = int(fields[6]), int(fields[7]) if fields[7].isdigit() else 2**63
    return (int(fields[4]), device) if begin <= last and first <= end else None


def _describe(pid: int) -> str:
    if pid == os.getpid():
        return f"process {pid} (this one, through another store object)"
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"process {pid}"
    name = status.partition("(")[2].rpartition(")")[0]
    state = status.rpartition(")")[2].split()[:1]
    stopped = ", which is stopped: continue or end it" if state in (["T"], ["t"]) else ""
    return f"process {pid} ({name}){stopped}"
