"""The journal as the engine reads and writes it: entries, and what can be folded from them.

`entries` is the wire form of one record's payload; `calls` says which calls count; `queries`
answers questions about a whole journal (has it begun, how did it settle, what does it wait
for), `deaths` about segments that ended without a word, `structure` about a journal of any
writer, and `references` which blobs it refers to; all without any I/O.
"""

from __future__ import annotations

from rulvar.core.journal.calls import (
    BLOCK_KIND,
    GIVEN_UP,
    RETRY,
    Calls,
    CallState,
    branch_scope,
)
from rulvar.core.journal.deaths import (
    ATTEMPT,
    RECOVERED,
    SUSPECTED,
    Recovered,
    attempts,
    makes_progress,
    recovered_of,
    recoveries,
    segment_of,
    witnesses,
)
from rulvar.core.journal.entries import (
    HASH_VERSION,
    HASH_WINDOW,
    JournalEntry,
    decode_entry,
    encode_entry,
    read_entries,
    read_journal,
)
from rulvar.core.journal.losses import Loss, first_loss
from rulvar.core.journal.queries import (
    RUN_CANCEL,
    RUN_SETTLE,
    Settle,
    Start,
    cancel_begun,
    check_window,
    deadline_of,
    hash_versions,
    last_settle,
    open_children,
    open_suspensions,
    run_start,
    works_after,
)
from rulvar.core.journal.references import BlobReference, BlobReferences, referenced_blobs
from rulvar.core.journal.structure import Structure, first_epoch_fall, last_moment, structure

__all__ = [
    "ATTEMPT",
    "BLOCK_KIND",
    "GIVEN_UP",
    "HASH_VERSION",
    "HASH_WINDOW",
    "RECOVERED",
    "RETRY",
    "RUN_CANCEL",
    "RUN_SETTLE",
    "SUSPECTED",
    "BlobReference",
    "BlobReferences",
    "CallState",
    "Calls",
    "JournalEntry",
    "Loss",
    "Recovered",
    "Settle",
    "Start",
    "Structure",
    "attempts",
    "branch_scope",
    "cancel_begun",
    "check_window",
    "deadline_of",
    "decode_entry",
    "encode_entry",
    "first_epoch_fall",
    "first_loss",
    "hash_versions",
    "last_moment",
    "last_settle",
    "makes_progress",
    "open_children",
    "open_suspensions",
    "read_entries",
    "read_journal",
    "recovered_of",
    "recoveries",
    "referenced_blobs",
    "run_start",
    "segment_of",
    "structure",
    "witnesses",
    "works_after",
]
