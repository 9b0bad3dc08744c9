"""What a pair of stores declares, read from its attributes: levels, capabilities, and notes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.contract.levels import Level
from rulvar.core.capabilities import (
    busy_timeout_ms_of,
    declares_fenced_writes,
    fencing_domain_of,
    has_blob_info,
    has_close,
    has_epoch_floor,
    has_journal_tail,
    has_lease_admin,
    has_lease_batch,
    has_lease_revival,
    has_leases,
    has_meta_lookup,
    has_run_inventory,
    has_whole_run_delete,
    lease_ttl_ms_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.stores import Stores

__all__ = ["CAPABILITIES", "Declared", "declared_by", "takes"]

_CAPABILITIES: dict[str, Callable[[object], bool]] = {
    "MetaLookup": has_meta_lookup,
    "JournalTail": has_journal_tail,
    "LeaseAdmin": has_lease_admin,
    "LeaseBatch": has_lease_batch,
    "EpochFloor": has_epoch_floor,
    "LeaseRevival": has_lease_revival,
    "RunInventory": has_run_inventory,
    "WholeRunDelete": has_whole_run_delete,
    "Closable": has_close,
}
"""Each capability of a journal store with its guard."""

CAPABILITIES = (*_CAPABILITIES, "BlobInfo", "lease_ttl_ms", "busy_timeout_ms", "fencing_domain")

_JOURNAL = ("append", "load", "put_meta", "list_runs", "delete")
_LEASES = ("acquire", "renew", "release")
_TRANSCRIPTS = ("put", "get", "list_refs", "delete")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a pair says of itself.

    ``notes`` is what looks present and is not declared; ``durability`` is what the journal
    store says that it is set to, where it says anything.
    """

    levels: frozenset[Level]
    capabilities: frozenset[str]
    notes: tuple[str, ...]
    lease_ttl_ms: int | None
    durability: str | None


def takes(method: object, *arguments: object, **options: object) -> bool:
    """Whether a callable takes such a call, by its signature; True when it shows none."""
    if not callable(method):
        return False
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments, **options)
    except TypeError:
        return False
    return True


def declared_by(stores: Stores) -> Declared:
    """Read the declarations of a pair; calls no method of a store."""
    journal: object = stores.journal
    transcripts: object = stores.transcripts
    # These two are what every pair is for: lacking them is a failure, never a smaller claim.
    levels = {Level.JOURNAL, Level.TRANSCRIPTS}
    leases = has_leases(journal)
    if leases:
        levels.add(Level.LEASABLE)
    if declares_fenced_writes(journal):
        levels |= {Level.LEASABLE, Level.FENCED}
    if declares_fenced_writes(journal) and declares_fenced_writes(transcripts):
        levels.add(Level.FENCED_PAIR)
    found = {name for name, guard in _CAPABILITIES.items() if guard(journal)}
    if has_blob_info(transcripts):
        found.add("BlobInfo")
    if lease_ttl_ms_of(journal) is not None:
        found.add("lease_ttl_ms")
    if busy_timeout_ms_of(journal) is not None:
        found.add("busy_timeout_ms")
    if fencing_domain_of(journal) is not None:
        found.add("fencing_domain")
    return Declared(
        frozenset(levels),
        frozenset(found),
        tuple(_notes(stores)),
        lease_ttl_ms_of(journal),
        _durability_of(journal),
    )


def _durability_of(journal: object) -> str | None:
    value = getattr(journal, "durability", None)
    return value if isinstance(value, str) and value else None


def _notes(stores: Stores) -> list[str]:
    journal: object = stores.journal
    transcripts: object = stores.transcripts
    notes: list[str] = []
    marker = getattr(journal, "fenced_writes", None)
    if marker is not None and not isinstance(marker, bool):
        notes.append(f"journal.fenced_writes is {marker!r}, which declares nothing")
    there = [name for name in _LEASES if callable(getattr(journal, name, None))]
    if there and not has_leases(journal):
        notes.append(f"the journal store has {', '.join(there)} but not all of {_LEASES}")
    if not declares_fenced_writes(journal) and _takes_lease(journal, ("put_meta", "delete")):
        notes.append("put_meta and delete take a lease, but the journal store lacks the marker")
    if not declares_fenced_writes(transcripts) and _takes_lease(transcripts, ("put", "delete")):
        notes.append("put and delete take a lease, but the transcript store lacks the marker")
    if declares_fenced_writes(transcripts) and not declares_fenced_writes(journal):
        notes.append("the transcript store declares the marker and the journal store does not")
    return notes


def _takes_lease(store: object, names: tuple[str, ...]) -> bool:
    found = []
    for name in names:
        try:
            parameters = inspect.signature(getattr(store, name)).parameters
        except (AttributeError, TypeError, ValueError):
            return False
        found.append("lease" in parameters)
    return all(found)


def missing_methods(stores: Stores) -> list[str]:
    """Return the methods that every pair owes and this one lacks."""
    return [
        f"{part}.{name}"
        for part, store, names in (
            ("journal", stores.journal, _JOURNAL),
            ("transcripts", stores.transcripts, _TRANSCRIPTS),
        )
        for name in names
        if not callable(getattr(store, name, None))
    ]
