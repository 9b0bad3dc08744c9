"""What tests are built on: the contract in memory, and time and chance under control.

Read `reference` first: the fenced store pair in the simplest code that keeps the contract.
`ManualClock` moves only when it is told to, and `SeededIds` mints the same identifiers
again from the same seed, so a test says what happens when instead of waiting for it;
`WatchedStores` tells it about every store call, and lets it come between.
"""

from __future__ import annotations

from rulvar.core.testing.clocks import ManualClock
from rulvar.core.testing.ids import SeededIds
from rulvar.core.testing.reference import (
    ReferenceStore,
    ReferenceTranscripts,
    StoreSnapshot,
    reference_stores,
)
from rulvar.core.testing.spying import StoreCall, WatchedStores

__all__ = [
    "ManualClock",
    "ReferenceStore",
    "ReferenceTranscripts",
    "SeededIds",
    "StoreCall",
    "StoreSnapshot",
    "WatchedStores",
    "reference_stores",
]
