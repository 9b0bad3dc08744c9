"""`SqliteTranscripts`, the twin: blobs in the database that holds the leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from rulvar.core.checks import check_blob, check_lease, check_ref, check_run_id, run_of_ref
from rulvar.stores.sqlite import mutations, reads
from rulvar.stores.sqlite.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rulvar.core.records import BlobStat, Lease
    from rulvar.stores.sqlite.database import Database

__all__ = ["SqliteTranscripts"]


class SqliteTranscripts:
    """Blobs beside the journal, fenced by the same leases in the same transactions.

    Made by `SqliteStore.transcripts` alone; it shares its store's life.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def fenced_writes(self) -> Literal[True]:
        """The marker: every mutation that carries a lease is fenced by it."""
        return True

    @property
    def busy_timeout_ms(self) -> int:
        """How long a call waits for a locked file, in milliseconds."""
        return self._database.settings.busy_timeout_ms

    @property
    def fencing_domain(self) -> str:
        """The same as its store's: both commit in one transaction."""
        return self._database.fencing_domain

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        """Replace the blob at ``ref`` if the lease is live; at most 256 MiB.

        Raises: `LeaseHeldError` for any dead lease.
        """
        check_ref(ref)
        check_blob(blob)
        if lease is not None:
            check_lease(lease)
        run_id = run_of_ref(ref)
        self._database.write(
            Job(
                lambda tx: mutations.put_blob(tx, run_id, ref, blob, lease),
                run_id=run_id,
                lease=lease,
                size=len(blob),
            )
        )

    def get(self, ref: str, /) -> bytes | None:
        """Return the blob, or None when there is none.

        Raises: only what every store call may.
        """
        check_ref(ref)
        return self._database.read(
            lambda connection: reads.get_blob(connection, ref), run_of_ref(ref)
        )

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        """Return the run's refs, and no other run's, ordered by their UTF-8 bytes.

        Raises: only what every store call may.
        """
        check_run_id(run_id)
        return self._database.read(lambda connection: reads.list_refs(connection, run_id), run_id)

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        """Remove the blob if the lease is live; a missing one is a no-op.

        Raises: `LeaseHeldError` for any dead lease, for a missing blob too.
        """
        check_ref(ref)
        if lease is not None:
            check_lease(lease)
        run_id = run_of_ref(ref)
        self._database.write(
            Job(
                lambda tx: mutations.delete_blob(tx, run_id, ref, lease),
                run_id=run_id,
                lease=lease,
            )
        )

    def blob_info(self, ref: str, /) -> BlobStat | None:
        """Return the blob's size without reading it, or None when there is none.

        Raises: only what every store call may.
        """
        check_ref(ref)
        return self._database.read(
            lambda connection: reads.blob_info(connection, ref), run_of_ref(ref)
        )

    def close(self) -> None:
        """Close the store and its twin, which share one life; idempotent.

        Raises: `StoreForkedError` in a forked child, where nothing is closed.
        """
        self._database.close()

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
        return f"SqliteTranscripts({self._database.settings.path!r})"
