"""A rulvar store in one SQLite file, fenced on every surface.

Reading order: `schema` (the layout and every statement), `lease_status` (why a lease is
refused), `mutations` and `reads` (what runs in a transaction), `job` and `group_commit` (how
concurrent callers share one), `connection`, `open_files`, `os_checks` and `forks` (what SQLite
and the system need to be safe), `database` (the life of an open file), then the two stores over
it, `store` and `transcripts`.

`SqliteStores(path)` opens a pair, as does `rulvar.core.open_stores("sqlite:///runs.db")`.
Importing this package imports no driver; the store is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rulvar.stores.sqlite.store import SqliteStore, SqliteStores
    from rulvar.stores.sqlite.transcripts import SqliteTranscripts

__all__ = ["SqliteStore", "SqliteStores", "SqliteTranscripts"]

_MODULES = {
    "SqliteStore": "store",
    "SqliteStores": "store",
    "SqliteTranscripts": "transcripts",
}

if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
