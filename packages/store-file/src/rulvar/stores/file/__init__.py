"""The file store: journals a person can read, in a folder that one process writes.

Reading order: `names` and `layout` (what is where), `lines` (what a journal's line is, and
what the end of one is worth; no I/O), `directory` (the life of an open folder, and changes whose
outcome is open), `journals`, `rows`, `blobs`, `deletions` (the files themselves), `store` and
`transcripts` (what a caller sees), `repair` (what an operator does about damage). `filesystem` is
the one way to the disk, `lock` keeps the second writer out.

`FileStores(path)` opens a pair, as does `rulvar.core.open_stores("file:///runs")`. Importing this
package imports none of its modules; each name is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rulvar.stores.file.errors import DamagedJournalError
    from rulvar.stores.file.filesystem import FileSystem
    from rulvar.stores.file.store import FileJournalStore, FileStores
    from rulvar.stores.file.transcripts import FileTranscriptStore

__all__ = [
    "DamagedJournalError",
    "FileJournalStore",
    "FileStores",
    "FileSystem",
    "FileTranscriptStore",
]

_MODULES = {
    "DamagedJournalError": "errors",
    "FileJournalStore": "store",
    "FileStores": "store",
    "FileSystem": "filesystem",
    "FileTranscriptStore": "transcripts",
}


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
