"""What happens when a folder is opened: is it ours, is it whole, and what was left half-way."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.wire import InvalidJSONError, json_text, parse_value
from rulvar.stores.file.filesystem import CREATE, exists, opened, read_file, write_all
from rulvar.stores.file.forks import identity_of

if TYPE_CHECKING:
    from rulvar.stores.file.filesystem import FileSystem
    from rulvar.stores.file.forks import Identity
    from rulvar.stores.file.layout import Layout
    from rulvar.stores.file.lock import WriterLock

__all__ = ["prepare", "require_folders", "require_store", "resolve"]

_FORMAT = "rulvar-file-store"
_LAYOUT = 1


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def resolve(root: object) -> str:
    """Return the absolute path of the root, links to it followed.

    Raises `ConfigError` for what is not a path, and for one whose folder is not there.
    """
    if not isinstance(root, str | os.PathLike):
        _refuse(f"root must be a string or a path, not {root!r}")
    text = os.fspath(root)
    if not isinstance(text, str) or not text or "\0" in text:
        _refuse(f"root must be a folder's name without NUL, not {text!r}")
    try:
        resolved = os.path.realpath(text)
    except UnicodeEncodeError:
        _refuse(f"root must be a name that this system can write, not {text!r}")
    parent = os.path.dirname(resolved)  # noqa: PTH120 - text in, text out
    if not os.path.isdir(parent):  # noqa: PTH112
        _refuse(f"the folder that {resolved} is to be in does not exist: create it first")
    if os.path.lexists(resolved) and not os.path.isdir(resolved):  # noqa: PTH112
        _refuse(f"{resolved} is not a folder: name one, or a path that does not exist yet")
    return resolved


def require_store(files: FileSystem, layout: Layout) -> None:
    """Raise `ConfigError` unless the root is a store of a layout that is known here."""
    data = read_file(files, layout.marker) if exists(files, layout.root) else None
    if data is None:
        _refuse(f"there is no file store at {layout.root}: open it for writing once to make it")
    _check_marker(layout, data)
    require_folders(files, layout)


def _check_marker(layout: Layout, data: bytes) -> None:
    try:
        marker = parse_value(data)
    except InvalidJSONError:
        marker = None
    if not isinstance(marker, dict) or marker.get("format") != _FORMAT:
        _refuse(f"{layout.marker} is not what a file store writes there: name another folder")
    if marker.get("layout") != _LAYOUT:
        _refuse(
            f"{layout.root} has layout {marker.get('layout')!r} and this version knows "
            f"{_LAYOUT}: update rulvar-store-file"
        )


def require_folders(files: FileSystem, layout: Layout) -> tuple[Identity, ...]:
    """Return which the store's folders are, in the order of ``layout.folders``.

    Raises `StoreCorruptError` when one of them is a link, and ``OSError`` without one.

    Asked before every call: what is not there must not be taken for empty, and what was
    replaced by a link would be followed out of the store.
    """
    return tuple(_require_folder(files, folder) for folder in layout.folders)


def _require_folder(files: FileSystem, folder: str) -> Identity:
    now = files.look(folder)
    if not stat.S_ISDIR(now.st_mode):
        message = f"{folder} is a link, which is not followed: move it away"
        raise StoreCorruptError(message)
    return identity_of(now)


def prepare(files: FileSystem, layout: Layout, lock: WriterLock) -> None:
    """Become the writer of the root, and make what is missing there.

    Raises `ConfigError` for a folder of another application, and `StoreInUseError`; both
    before anything is made or changed.
    """
    _make_root(files, layout)
    if not exists(files, layout.marker):
        foreign = [each.name for each in files.scan(layout.root) if not layout.is_ours(each.name)]
        if foreign:
            _refuse(
                f"{layout.root} holds {foreign[0]!r} and no file store: name an empty folder, or "
                "one that is not there yet"
            )
    lock.take()
    data = read_file(files, layout.marker)
    if data is not None:
        _check_marker(layout, data)
    else:
        # Whoever made the root may have died before its name was on the medium. A folder that
        # this user may not read is an administrator's, who has made the root there for it.
        with suppress(PermissionError):
            files.sync_folder(os.path.dirname(layout.root))  # noqa: PTH120
    for folder in layout.folders:
        if not exists(files, folder):
            files.make_folder(folder)
        _require_folder(files, folder)
        # A name that another process made and did not sync must not be read and then be gone.
        files.sync_folder(folder)
    files.sync_folder(layout.root)
    # What never reached its place was never acknowledged.
    for entry in files.scan(layout.temporary):
        files.unlink(entry.path)
    if data is None:
        _write_marker(files, layout)


def _make_root(files: FileSystem, layout: Layout) -> None:
    if exists(files, layout.root):
        return
    # When another process opens it too, the lock decides between us.
    with suppress(FileExistsError):
        files.make_folder(layout.root)


def _write_marker(files: FileSystem, layout: Layout) -> None:
    """Say what the folder is: last, so that a marker stands for a whole layout."""
    path = f"{layout.temporary}{os.sep}store.json"
    text = json_text({"format": _FORMAT, "layout": _LAYOUT}) + "\n"
    with opened(files, path, CREATE) as descriptor:
        write_all(files, descriptor, text.encode("utf-8"))
        files.sync(descriptor)
    files.rename(path, layout.marker)
    files.sync_folder(layout.root)
