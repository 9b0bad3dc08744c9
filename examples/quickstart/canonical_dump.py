"""Write everything that a SQLite file holds as text, the same text for the same contents.

Run as a process of its own, never in one that has the store open through another copy of
SQLite: closing a plain file handle would drop that process's locks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["dump"]


def dump(path: str) -> Iterator[str]:
    """Yield one line for each schema object, and one for each row of each table."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("PRAGMA query_only = 1; BEGIN").fetchall()
        objects = connection.execute(
            "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"
        ).fetchall()
        for kind, name, sql in objects:
            yield f"{kind} {name} {sql!r}"
        for kind, name, _sql in objects:
            if kind == "table":
                yield from _rows(connection, str(name))
    finally:
        connection.close()


def _rows(connection: apsw.Connection, table: str) -> Iterator[str]:
    quoted = '"' + table.replace('"', '""') + '"'
    columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({quoted})")]
    # SQL's own quote() tells 1, 1.0, '1' and x'31' apart.
    values = ", ".join(f'quote("{column}")' for column in columns)
    order = ", ".join(str(number + 1) for number in range(len(columns)))
    for row in connection.execute(f"SELECT {values} FROM {quoted} ORDER BY {order}"):  # noqa: S608
        yield f"{table}: {', '.join(map(str, row))}"


if __name__ == "__main__":
    for line in dump(sys.argv[1]):
        sys.stdout.buffer.write(line.encode("utf-8", "backslashreplace") + b"\n")
