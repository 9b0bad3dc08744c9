"""Connections: how every one of them is opened, and how a fresh file is born.

All connections come from `connect`, so that the pragmas hold on each. The busy handler of
SQLite is never used: it waits unfairly (a process can starve for seconds) and it is skipped
at some lock transitions. `BusyRetry` is the one way of waiting here.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeVar, cast

import apsw

from rulvar.core.errors import ConfigError, StoreBusyError, StoreCorruptError, StoreError
from rulvar.stores.sqlite import open_files, schema
from rulvar.stores.sqlite.errors import BUSY, FAILURES, translate, what_is_missing
from rulvar.stores.sqlite.forks import refuse_inherited
from rulvar.stores.sqlite.open_files import OpenFiles
from rulvar.stores.sqlite.os_checks import (
    make_private,
    network_filesystem,
    other_names,
    who_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MEMORY",
    "BusyRetry",
    "Durability",
    "Opened",
    "Permissions",
    "Settings",
    "busy_error",
    "connect",
    "create_or_open",
    "look",
    "require_sqlite",
    "resolve",
]

Durability = Literal["full", "normal"]
Permissions = Literal["private", "umask"]
MEMORY = ":memory:"
LOWEST_SQLITE = (3, 51, 3)
_WAL_KEPT_BYTES = 16 * 1024 * 1024

_T = TypeVar("_T")

_SWITCHES = (
    # Without it a fenced append is prepared afresh at every execution (STAT4).
    (apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1),
    # Nothing user-supplied runs inside a store transaction, a trigger in the file neither.
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_DQS_DML, 0),
    (apsw.SQLITE_DBCONFIG_DQS_DDL, 0),
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    # Only `open_files.close` may move the log, after a look at whose files these are by then.
    (apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a store was opened with; ``path`` is absolute and free of links, or `MEMORY`."""

    path: str
    lease_ttl_ms: int
    busy_timeout_ms: int
    open_timeout_ms: int
    durability: Durability
    read_only: bool = False
    permissions: Permissions = "private"

    @property
    def in_memory(self) -> bool:
        """Whether the database lives and dies with its one connection."""
        return self.path == MEMORY


def require_sqlite(version: str | None = None) -> None:
    """Refuse a SQLite that can corrupt a WAL database which several processes write.

    Raises `ConfigError` below 3.51.3.
    """
    found = apsw.sqlite_lib_version() if version is None else version
    if tuple(int(part) for part in found.split(".")[:3]) < LOWEST_SQLITE:
        lowest = ".".join(map(str, LOWEST_SQLITE))
        message = (
            f"SQLite {found} can corrupt a database that several processes write; at least "
            f"{lowest} is needed: pip install --upgrade apsw"
        )
        raise ConfigError(message)


def resolve(path: object, *, allow_network_filesystem: bool) -> str:
    """Return the absolute path of the database file, links followed, or `MEMORY`.

    Raises `ConfigError` for what is not a path, has no folder, is a folder itself, or lies on a
    network file system.
    """
    if not isinstance(path, str | os.PathLike):
        _refuse(f"path must be a string or a path, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        _refuse(f"path must be a file's name without NUL, or ':memory:', not {text!r}")
    if text == MEMORY:
        return MEMORY
    resolved = os.path.realpath(text) if _is_utf8(text) else text
    if not _is_utf8(resolved):
        _refuse(f"{resolved!r} is not UTF-8, as SQLite's names of files must be: rename it")
    folder = os.path.dirname(resolved)  # noqa: PTH120 - text in, text out
    if not os.path.isdir(folder):  # noqa: PTH112
        _refuse(f"the folder of {resolved} does not exist: create it first")
    if os.path.isdir(resolved):  # noqa: PTH112
        _refuse(f"{resolved} is a folder: name a file in it")
    if os.path.exists(resolved) and not os.path.isfile(resolved):  # noqa: PTH110, PTH113
        _refuse(f"{resolved} is not an ordinary file: name one")
    why = other_names(resolved)
    if why is not None:
        _refuse(
            f"{resolved} {why}: writers that open it under different names corrupt it, for "
            "SQLite's log and locks belong to the name; give it one name, and bind its folder "
            "instead of the file"
        )
    kind = network_filesystem(resolved)
    if kind is not None and not allow_network_filesystem:
        _refuse(
            f"{resolved} lies on a network file system ({kind}), where the locks and the shared "
            "memory that SQLite relies on may not hold between machines: use a local disk, or "
            "pass allow_network_filesystem=True when only one machine ever opens the file"
        )
    return resolved


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def connect(settings: Settings) -> apsw.Connection:
    """Open one connection with everything that must hold on each; writes nothing.

    Raises `StoreForkedError` for a file that was open when this process was forked, and
    `StoreCorruptError` for one that was replaced under an open connection of this process.
    """
    if not settings.in_memory:
        refuse_inherited(settings.path)
        open_files.check_open(settings.path)
    with open_files.opening:
        if settings.read_only:
            # Not even the last one to close moves the log into the database then.
            connection = apsw.Connection(settings.path, flags=apsw.SQLITE_OPEN_READONLY)
        else:
            if settings.permissions == "private" and not settings.in_memory:
                make_private(settings.path)
            connection = apsw.Connection(settings.path)
        open_files.opened(connection, None if settings.in_memory else settings.path)
    connection.set_busy_timeout(0)
    for switch, value in _SWITCHES:
        connection.config(switch, value)
    set_durability(connection, settings.durability)
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}").fetchall()
    # macOS keeps what fsync wrote in the drive's cache; elsewhere these two say nothing new.
    connection.execute("PRAGMA fullfsync = ON").fetchall()
    connection.execute("PRAGMA checkpoint_fullfsync = ON").fetchall()
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    connection.execute("PRAGMA recursive_triggers = OFF").fetchall()
    return connection


def set_durability(connection: apsw.Connection, durability: Durability) -> None:
    """Make commits from now on survive power loss ("full") or a crash only ("normal")."""
    connection.execute(f"PRAGMA synchronous = {durability.upper()}").fetchall()


class BusyRetry:
    """Fair waiting for a locked file: short, random pauses up to a deadline."""

    __slots__ = ("_deadline", "_random", "_started")

    def __init__(self, timeout_ms: int) -> None:
        self._started = time.monotonic()
        self._deadline = self._started + timeout_ms / 1000
        self._random = random.Random()  # noqa: S311 - jitter, no secret

    @property
    def waited_ms(self) -> int:
        """How long it has lasted so far."""
        return int((time.monotonic() - self._started) * 1000)

    def pause(self) -> bool:
        """Sleep a moment; return False when the time is up."""
        if time.monotonic() >= self._deadline:
            return False
        pause(self._random)
        return True

    def run(self, attempt: Callable[[], _T], path: str) -> _T:
        """Return what ``attempt`` returns, trying again while the file is locked.

        Raises `StoreBusyError` when the time is up. Everything that ``attempt`` did must be
        undone when it fails.
        """
        while True:
            try:
                return attempt()
            except BUSY as error:
                if not self.pause():
                    raise busy_error(path, self.waited_ms) from error


def pause(source: random.Random) -> None:
    """Sleep 0.1 to 0.6 ms: long enough to let others in, short enough to be fair."""
    time.sleep(0.0001 + 0.0005 * source.random())


def busy_error(path: str, waited_ms: int, run_id: str | None = None) -> StoreBusyError:
    """Return the retryable error, naming the process that holds the lock where it is known."""
    blocker = None if path == MEMORY else who_blocks(path)
    who = blocker if blocker is not None else "another process"
    message = (
        f"{path} was locked for {waited_ms} ms by {who}; nothing happened: try again, or wait "
        "longer (busy_timeout_ms, and open_timeout_ms when opening)"
    )
    return StoreBusyError(message, run_id=run_id, waited_ms=waited_ms, blocker=blocker)


class Opened(NamedTuple):
    """A connection, and the files that it has open; none for a database in memory."""

    connection: apsw.Connection
    files: OpenFiles | None


def create_or_open(settings: Settings) -> Opened:
    """Open the writer's connection and see to it that the file has the layout.

    The switch to WAL and the tables are retried as one unit: either may meet a lock while
    others open the same fresh file. A file that has everything is not written to, and one
    that is opened to read only never is. Raises `StoreBusyError` after ``open_timeout_ms``,
    and `ConfigError` for another application's file, or for a missing one with ``read_only``.
    """
    if settings.read_only and not os.path.isfile(settings.path):  # noqa: PTH113
        folder = os.path.dirname(settings.path)  # noqa: PTH120
        if not os.access(folder, os.X_OK):
            message = f"{settings.path} cannot be opened: {what_is_missing(settings.path)}"
            raise StoreError(message)
        _refuse(
            f"there is no file {settings.path}, and read_only creates none: check the path; the "
            "first run makes the file"
        )
    attempt = _open_to_read if settings.read_only else _open_to_write

    def quietly() -> Opened:
        with open_files.opening:  # a fork in the middle of SQLite would leave the child its mutexes
            return attempt(settings)

    try:
        return BusyRetry(settings.open_timeout_ms).run(quietly, settings.path)
    except FAILURES as error:
        raise translate(error, path=settings.path) from error


def look(settings: Settings) -> Opened:
    """Open a connection for reads alone, and see which files it has open.

    Raises `StoreCorruptError` when they are not those of the other connections.
    """
    connection = connect(settings)
    try:
        connection.execute("PRAGMA schema_version").fetchall()  # opens the log
        return Opened(connection, OpenFiles.of(connection, settings.path, logged=True))
    except BaseException:
        open_files.close(connection)
        raise


def _open_to_write(settings: Settings) -> Opened:
    connection = connect(settings)
    try:
        _check_encoding(connection, settings.path)
        if not settings.in_memory:
            _switch_to_wal(connection)
        present = {name for (name,) in connection.execute(schema.NAMES_PRESENT).fetchall()}
        if not present.issuperset(schema.OBJECTS):
            _check_columns(connection, settings.path)
            _create(connection)
        _check_columns(connection, settings.path)
        if settings.in_memory:
            return Opened(connection, None)
        files = OpenFiles.of(connection, settings.path, logged=True)
        _begin_log_anew(connection, settings.path)
    except BaseException as error:
        open_files.close(connection, checkpoint=not isinstance(error, StoreCorruptError))
        raise
    return Opened(connection, files)


def _begin_log_anew(connection: apsw.Connection, path: str) -> None:
    """Move what the log holds into the database, unless another connection is using it.

    Power loss may leave frames of lost commits behind the last whole one. They count for
    nothing, until a new commit begins with the very pages that theirs began with: if the
    power fails again inside that one, the lost commit would be there after all. In a log that
    begins anew, with a new salt, they never count again. A disk that is full or sick
    must not keep anybody from reading, so it is left to the next write to report it.
    """
    try:
        empty = os.stat(f"{path}-wal").st_size == 0  # noqa: PTH116
    except FileNotFoundError:
        return
    if empty:
        return
    with contextlib.suppress(*BUSY, apsw.FullError, apsw.IOError, apsw.ReadOnlyError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _open_to_read(settings: Settings) -> Opened:
    connection = connect(settings)
    try:
        _check_encoding(connection, settings.path)
        present = {name for (name,) in connection.execute(schema.NAMES_PRESENT).fetchall()}
        if not present.issuperset(schema.COLUMNS):
            _refuse(
                f"{settings.path} has no runs and never had: check the path; the first run makes "
                "the tables, as does opening it without read_only"
            )
        _check_columns(connection, settings.path)
        return Opened(connection, OpenFiles.of(connection, settings.path, logged=False))
    except BaseException:
        open_files.close(connection)
        raise


def _switch_to_wal(connection: apsw.Connection) -> None:
    mode = cast("str", connection.execute("PRAGMA journal_mode").get)
    if mode != "wal":
        mode = cast("str", connection.execute("PRAGMA journal_mode = WAL").get)
    if mode != "wal":
        message = f"the journal mode stayed {mode!r}"
        raise apsw.BusyError(message)


def _check_encoding(connection: apsw.Connection, path: str) -> None:
    encoding = cast("str", connection.execute("PRAGMA encoding").get)
    if encoding != "UTF-8":
        _refuse(f"{path} is a database in {encoding}, and the stores need UTF-8: use another file")


def _check_columns(connection: apsw.Connection, path: str) -> None:
    for table, wanted in schema.COLUMNS.items():
        rows = connection.execute(schema.COLUMN_NAMES, (table,)).fetchall()
        found = tuple(cast("str", name) for (name,) in rows)
        if found and not set(wanted) <= set(found):
            _refuse(
                f"{path} has a table {table!r} with the columns {', '.join(found)}: it belongs to "
                "another application, use another file"
            )


def _create(connection: apsw.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in schema.OBJECTS.values():
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
