"""The pair that runs live in: a journal store and a transcript store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from rulvar.core.capabilities import has_close

if TYPE_CHECKING:
    from types import TracebackType

    from rulvar.core.protocols import (
        FencedJournalStore,
        FencedTranscriptStore,
        JournalStore,
        TranscriptStore,
    )

__all__ = ["FencedStores", "StorePair", "Stores"]


class StorePair(Protocol):
    """Any pair of stores: what an engine takes."""

    @property
    def journal(self) -> JournalStore:
        """Where journals and rows are."""
        ...

    @property
    def transcripts(self) -> TranscriptStore:
        """Where blobs are."""
        ...


class FencedStores(Protocol):
    """A pair that declares the fence on every mutation: what `assert_fenced_writes` returns."""

    @property
    def journal(self) -> FencedJournalStore:
        """Where journals, rows and leases are."""
        ...

    @property
    def transcripts(self) -> FencedTranscriptStore:
        """Where blobs are, in the same fencing domain."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """A journal store and a transcript store; closes both as a context manager."""

    journal: JournalStore
    transcripts: TranscriptStore

    def close(self) -> None:
        """Close what can be closed, blobs first; idempotent, waits for calls in flight."""
        try:
            if has_close(self.transcripts):
                self.transcripts.close()
        finally:
            if has_close(self.journal):
                self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
