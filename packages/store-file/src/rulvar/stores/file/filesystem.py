"""The operating system, one call at a time: everything the store does to a disk passes here.

`FileSystem` is thin on purpose. A test hands the store another one that fails the n-th call,
writes half of what it is given, or keeps a record of what was synced, and the store cannot
tell the difference. Nothing else in this distribution opens, writes, syncs, renames or
unlinks a file.

**No way out.** Where the system has calls that begin at an open folder (Linux, macOS), each
call on a file walks from the root, folder by folder, and refuses one that is a link. So
no one can lead a call out of the store, also not by putting a link there just before it. And
a folder that is away for a moment is not taken for one that has no such file.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The layer below paths: text in, text out, and never a call more than was asked for.
# ruff: noqa: PTH114

__all__ = [
    "APPEND",
    "CREATE",
    "LOCK",
    "READ",
    "FileSystem",
    "FolderGoneError",
    "NotRegularFileError",
    "exists",
    "opened",
    "read_back",
    "read_file",
    "read_range",
    "write_all",
]

_ALWAYS = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOCTTY", 0)
    # A link inside the store leads out of it, and a pipe in a file's place would wait for ever.
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
READ = os.O_RDONLY | _ALWAYS
APPEND = os.O_RDWR | os.O_APPEND | _ALWAYS
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | _ALWAYS
LOCK = os.O_RDWR | os.O_CREAT | _ALWAYS
_NEW = os.O_CREAT | os.O_EXCL

_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_CAN_WALK = (
    os.supports_dir_fd.issuperset({os.open, os.rename, os.unlink, os.mkdir, os.rmdir, os.stat})
    and hasattr(os, "O_DIRECTORY")
    and hasattr(os, "O_NOFOLLOW")
)
_CHUNK = 64 * 1024
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_LINK_ERRNOS = frozenset({errno.ELOOP, getattr(errno, "EMLINK", errno.ELOOP)})


class NotRegularFileError(OSError):
    """A name of the store's is a link, a folder or a device: it is not followed or read."""


class FolderGoneError(OSError):
    """A folder that every store has is not there: whether a name was in it cannot be known.

    No ``FileNotFoundError`` on purpose: that one says that the folder has no such name.
    """


class FileSystem:
    """The calls that a store makes, each as the operating system has it.

    Every method raises ``OSError``. Subclass it to inject faults.
    """

    _root: str | None = None
    _private = True

    def share_by_umask(self) -> None:
        """Make new files and folders as the process's umask has it, not this user's alone."""
        self._private = False

    def stay_below(self, root: str, /) -> None:
        """Follow no link below this folder, from now on; paths elsewhere are taken as they are."""
        self._root = root + os.sep

    def _has_no_way(self, path: str) -> bool:
        """Whether there is nothing to walk: in the root itself, only the name can be a link."""
        root = self._root
        below = root is not None and path.startswith(root) and path.find(os.sep, len(root)) > 0
        return not below or not _CAN_WALK

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[int | None, str]]:
        """Give the open folder of a path and the name in it; (None, path) where none is needed."""
        root = self._root
        if root is None or self._has_no_way(path):
            yield None, path
            return
        *folders, name = path.removeprefix(root).split(os.sep)  # noqa: PTH206
        at = f"{root}{folders[0]}"
        try:
            inside = _open_folder(at, None, at)
        except FileNotFoundError as error:
            raise FolderGoneError(error.errno, error.strerror, at) from error
        try:
            for folder in folders[1:]:
                at = f"{at}{os.sep}{folder}"
                outer, inside = inside, _open_folder(folder, inside, at)
                os.close(outer)
            yield inside, name
        except OSError as error:
            if error.filename == name:
                error.filename = path
            raise
        finally:
            os.close(inside)

    def open(self, path: str, flags: int, /) -> int:
        """Open a regular file and return its descriptor; a link is refused."""
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
            raise NotRegularFileError(errno.ELOOP, "is a symbolic link", path)
        try:
            with self._at(path) as (folder, name):
                descriptor = self._open(name, flags, folder)
        except NotRegularFileError:
            raise
        except OSError as error:
            if error.errno in _LINK_ERRNOS:
                raise NotRegularFileError(error.errno, "is a symbolic link", path) from error
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise NotRegularFileError(errno.EINVAL, "is not a regular file", path)

    def _open(self, name: str, flags: int, folder: int | None) -> int:
        """Open; a file that this call makes is its user's alone, whatever the umask."""
        if not self._private or not flags & os.O_CREAT:
            return os.open(name, flags, 0o666, dir_fd=folder)
        while True:
            if not flags & os.O_EXCL:
                with suppress(FileNotFoundError):
                    return os.open(name, flags & ~os.O_CREAT, dir_fd=folder)
            try:
                descriptor = os.open(name, flags | _NEW, 0o600, dir_fd=folder)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                continue  # another process has made it since
            if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(descriptor).st_mode) != _FILE_MODE:
                os.fchmod(descriptor, _FILE_MODE)
            return descriptor

    def close(self, descriptor: int, /) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def read(self, descriptor: int, size: int, offset: int, /) -> bytes:
        """Read at most ``size`` bytes from ``offset`` on."""
        if hasattr(os, "pread"):
            return os.pread(descriptor, size, offset)
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)

    def write(self, descriptor: int, data: memoryview, /) -> int:
        """Write at the descriptor's end; may write less, and returns how much."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int, /) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int, /) -> None:
        """Return once the file's bytes and length are on the medium."""
        _sync(descriptor)

    def sync_folder(self, path: str, /) -> None:
        """Return once the names in a folder are on the medium (nothing to do on Windows)."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str, /) -> None:
        """Move a file onto ``target`` in one step, replacing it."""
        with self._at(source) as (here, name), self._at(target) as (there, new_name):
            os.replace(name, new_name, src_dir_fd=here, dst_dir_fd=there)

    def unlink(self, path: str, /) -> None:
        """Remove a file's name."""
        with self._at(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str, /) -> None:
        """Make one folder, its user's alone, whatever the umask."""
        with self._at(path) as (folder, name):
            os.mkdir(name, _FOLDER_MODE if self._private else 0o777, dir_fd=folder)
            if self._private and os.name != "nt":
                _make_private(name, folder)

    def remove_folder(self, path: str, /) -> None:
        """Remove an empty folder."""
        with self._at(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def stat(self, descriptor: int, /) -> os.stat_result:
        """Return what is known of an open file."""
        return os.fstat(descriptor)

    def look(self, path: str, /) -> os.stat_result:
        """Return what is known of a name, links not followed."""
        if self._has_no_way(path):
            return os.lstat(path)
        with self._at(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def scan(self, path: str, /) -> list[os.DirEntry[str]]:
        """Return a folder's entries, in no order."""
        with os.scandir(path) as entries:
            return list(entries)


def _make_private(name: str, outer: int | None) -> None:
    """Undo a umask that takes from the user too."""
    now = os.stat(name, dir_fd=outer, follow_symlinks=False).st_mode
    if stat.S_ISDIR(now) and stat.S_IMODE(now) & 0o777 != _FOLDER_MODE:
        os.chmod(name, _FOLDER_MODE, dir_fd=outer)


def _open_folder(name: str, outer: int | None, path: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=outer)
    except OSError as error:
        error.filename = path
        if error.errno in {*_LINK_ERRNOS, errno.ENOTDIR}:
            raise NotRegularFileError(error.errno, "is a link, not a folder", path) from error
        raise


def _sync(descriptor: int) -> None:
    full = _full_sync_command()
    if full is not None:
        import fcntl  # noqa: PLC0415 - not on Windows

        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            # A file system without it (a network share, an image) has the plain one.
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(descriptor)


def _full_sync_command() -> int | None:
    """Return what makes macOS empty the drive's cache too, which its fsync does not."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    command: object = getattr(fcntl, "F_FULLFSYNC", None)
    return command if isinstance(command, int) else None


@contextmanager
def opened(files: FileSystem, path: str, flags: int) -> Iterator[int]:
    """Open a file for the length of a block."""
    descriptor = files.open(path, flags)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def exists(files: FileSystem, path: str) -> bool:
    """Whether there is anything of that name, a dangling link included."""
    try:
        files.look(path)
    except FileNotFoundError:
        return False
    return True


def write_all(files: FileSystem, descriptor: int, data: bytes) -> None:
    """Write every byte: a system may write less than it is given."""
    left = memoryview(data)
    while left:
        left = left[files.write(descriptor, left) :]


def read_range(files: FileSystem, descriptor: int, start: int, end: int) -> bytes:
    """Return the bytes between two offsets, or what a shorter file has of them."""
    parts: list[bytes] = []
    start = max(0, start)
    while start < end:
        part = files.read(descriptor, min(end - start, 1 << 26), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def read_file(files: FileSystem, path: str) -> bytes | None:
    """Return a file's bytes as they were when it was opened, or None when there is none."""
    try:
        descriptor = files.open(path, READ)
    except FileNotFoundError:
        return None
    try:
        return read_range(files, descriptor, 0, files.stat(descriptor).st_size)
    finally:
        files.close(descriptor)


def read_back(files: FileSystem, descriptor: int, size: int, lines: int) -> tuple[int, bytes]:
    """Return the last ``lines`` whole lines of a file and what follows them, with their offset.

    Reads from the end in growing chunks, so the cost is that of the lines, not of the file.
    """
    start, chunk, data = size, _CHUNK, b""
    while start > 0:
        before = max(0, start - chunk)
        data = read_range(files, descriptor, before, start) + data
        start, chunk = before, chunk * 2
        if data.count(b"\n") > lines:
            break
    at = len(data)
    for _ in range(lines + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return start, data
    return start + at + 1, data[at + 1 :]
