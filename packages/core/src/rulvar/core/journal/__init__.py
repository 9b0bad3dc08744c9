"""The journal as the engine reads and writes it: entries, and what can be folded from them.

`entries` is the wire form of one record's payload; `folds` answers questions about a whole
journal (has it begun, how did it settle, what does it wait for) without any I/O.
"""

from __future__ import annotations

from rulvar.core.journal.entries import (
    HASH_VERSION,
    HASH_WINDOW,
    JournalEntry,
    decode_entry,
    encode_entry,
    read_journal,
)
from rulvar.core.journal.folds import (
    Settle,
    Start,
    check_window,
    hash_versions,
    last_settle,
    open_suspensions,
    run_start,
    works_after,
)

__all__ = [
    "HASH_VERSION",
    "HASH_WINDOW",
    "JournalEntry",
    "Settle",
    "Start",
    "check_window",
    "decode_entry",
    "encode_entry",
    "hash_versions",
    "last_settle",
    "open_suspensions",
    "read_journal",
    "run_start",
    "works_after",
]
