"""`FileTranscriptStore`: blobs in the folder that holds the journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rulvar.core.checks import check_blob, check_ref, check_run_id, run_of_ref
from rulvar.stores.file.blobs import Blobs
from rulvar.stores.file.deletions import is_being_deleted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rulvar.core.records import BlobStat
    from rulvar.stores.file.directory import StoreDirectory

__all__ = ["FileTranscriptStore"]


class FileTranscriptStore:
    """Blobs beside the journals, one file each; a single writer, no fence.

    Made by `FileJournalStore.transcripts` alone; it shares its store's life.
    """

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._blobs = Blobs(directory)

    def put(self, ref: str, blob: bytes, /) -> None:
        """Replace the blob at ``ref`` in one step; at most 256 MiB.

        Raises: only what every store call may.
        """
        check_ref(ref)
        check_blob(blob)
        with self._directory.writing(run_of_ref(ref)):
            self._blobs.put(ref, blob)

    def get(self, ref: str, /) -> bytes | None:
        """Return the blob, or None when there is none.

        Raises: only what every store call may.
        """
        check_ref(ref)
        run_id = run_of_ref(ref)
        with self._directory.reading(run_id):
            return None if self._is_deleted(run_id) else self._blobs.get(ref)

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the run's refs, and no other run's, ordered by their UTF-8 bytes.

        Raises: only what every store call may.
        """
        check_run_id(run_id)
        with self._directory.reading(run_id):
            return [] if self._is_deleted(run_id) else self._blobs.refs(run_id)

    def delete(self, ref: str, /) -> None:
        """Remove the blob; a missing one is a no-op.

        Raises: only what every store call may.
        """
        check_ref(ref)
        with self._directory.writing(run_of_ref(ref)):
            self._blobs.delete(ref)

    def blob_info(self, ref: str, /) -> BlobStat | None:
        """Return the blob's size and when it was stored, or None when there is none.

        Raises: only what every store call may.
        """
        check_ref(ref)
        run_id = run_of_ref(ref)
        with self._directory.reading(run_id):
            return None if self._is_deleted(run_id) else self._blobs.info(ref)

    def _is_deleted(self, run_id: str) -> bool:
        return self._directory.read_only and is_being_deleted(self._directory, run_id, blobs=True)

    def close(self) -> None:
        """Close the store and its twin, which share one life; idempotent.

        Raises: `StoreForkedError` in a forked child, where nothing is closed.
        """
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FileTranscriptStore({self._directory.settings.root!r})"
