"""What a store can do, asked by name: guards that narrow the type (contract.md#capabilities).

A capability is present when its attributes are there and callable. The marker is declared
when ``store.fenced_writes is True``, nothing truthy. Guards take ``object``; none calls a
method of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from rulvar.core.protocols import (
        BlobInfo,
        Closable,
        EpochFloor,
        FencedJournalStore,
        FencedTranscriptStore,
        JournalTail,
        LeasableStore,
        LeaseAdmin,
        LeaseBatch,
        LeaseRevival,
        MetaLookup,
        RunInventory,
        WholeRunDelete,
    )

__all__ = [
    "busy_timeout_ms_of",
    "declares_fenced_writes",
    "fencing_domain_of",
    "has_blob_info",
    "has_close",
    "has_epoch_floor",
    "has_fenced_journal",
    "has_fenced_transcripts",
    "has_journal_tail",
    "has_lease_admin",
    "has_lease_batch",
    "has_lease_revival",
    "has_leases",
    "has_meta_lookup",
    "has_run_inventory",
    "has_whole_run_delete",
    "lease_ttl_ms_of",
]


def _has(store: object, *names: str) -> bool:
    return all(callable(getattr(store, name, None)) for name in names)


def declares_fenced_writes(store: object, /) -> bool:
    """Whether the store declares the marker: the value ``True`` itself, nothing truthy."""
    return getattr(store, "fenced_writes", None) is True


def has_leases(store: object, /) -> TypeIs[LeasableStore]:
    """Whether ``append`` takes a lease: acquire, renew and release are there."""
    return _has(store, "append", "load", "acquire", "renew", "release")


def has_fenced_journal(store: object, /) -> TypeIs[FencedJournalStore]:
    """Whether a journal store declares the fence on every mutation."""
    return has_leases(store) and _has(store, "put_meta", "delete") and declares_fenced_writes(store)


def has_fenced_transcripts(store: object, /) -> TypeIs[FencedTranscriptStore]:
    """Whether a transcript store declares the fence on every mutation."""
    return _has(store, "put", "get", "list_refs", "delete") and declares_fenced_writes(store)


def has_close(store: object, /) -> TypeIs[Closable]:
    """Whether the store can be closed."""
    return _has(store, "close")


def has_meta_lookup(store: object, /) -> TypeIs[MetaLookup]:
    """Whether the store looks up one row by its run id."""
    return _has(store, "get_meta")


def has_journal_tail(store: object, /) -> TypeIs[JournalTail]:
    """Whether the store reads a journal from a known seq on."""
    return _has(store, "load_after")


def has_lease_admin(store: object, /) -> TypeIs[LeaseAdmin]:
    """Whether the store shows its leases and can seize a run."""
    return _has(store, "get_lease", "list_leases", "seize")


def has_lease_batch(store: object, /) -> TypeIs[LeaseBatch]:
    """Whether the store renews many leases in one unit."""
    return _has(store, "renew_all")


def has_epoch_floor(store: object, /) -> TypeIs[EpochFloor]:
    """Whether the store can raise a run's high-water mark."""
    return _has(store, "raise_epoch")


def has_lease_revival(store: object, /) -> TypeIs[LeaseRevival]:
    """Whether the store revives an expired lease of a run that was not taken since."""
    return _has(store, "revive")


def has_run_inventory(store: object, /) -> TypeIs[RunInventory]:
    """Whether the store lists every run of which there is a trace."""
    return _has(store, "list_run_ids")


def has_whole_run_delete(store: object, /) -> TypeIs[WholeRunDelete]:
    """Whether the store deletes a run and its blobs in one transaction."""
    return _has(store, "delete_whole_run")


def has_blob_info(store: object, /) -> TypeIs[BlobInfo]:
    """Whether the store tells a blob's size without its bytes."""
    return _has(store, "blob_info")


def lease_ttl_ms_of(store: object, /) -> int | None:
    """Return how long the store's leases live, in milliseconds, where it says so."""
    return _integer(store, "lease_ttl_ms")


def busy_timeout_ms_of(store: object, /) -> int | None:
    """Return how long a call waits for a lock, in milliseconds, where the store says so."""
    return _integer(store, "busy_timeout_ms")


def _integer(store: object, name: str) -> int | None:
    value = getattr(store, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def fencing_domain_of(store: object, /) -> str | None:
    """Return the name that two stores share exactly when they commit in one transaction."""
    value = getattr(store, "fencing_domain", None)
    return value if isinstance(value, str) else None
