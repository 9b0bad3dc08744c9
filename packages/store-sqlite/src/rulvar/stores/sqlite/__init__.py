"""A rulvar store in one SQLite file, fenced on every surface.

Reading order: `schema` (the layout and every statement), `fence` (why a lease is refused),
`mutations` and `reads` (what runs in a transaction), `commits` (how concurrent callers share
one), `database` (life, readers, forks), then the two faces, `store` and `twin`.

Importing this package imports no driver; the store is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rulvar.stores.sqlite.store import SqliteStore
    from rulvar.stores.sqlite.twin import SqliteTranscripts

__all__ = ["SqliteStore", "SqliteTranscripts"]


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error

    def __getattr__(name: str) -> object:
        if name == "SqliteStore":
            from rulvar.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - on demand

            return SqliteStore
        if name == "SqliteTranscripts":
            from rulvar.stores.sqlite.twin import SqliteTranscripts  # noqa: PLC0415 - on demand

            return SqliteTranscripts
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
