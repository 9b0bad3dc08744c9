"""The gallery of broken stores: each has one defect, and must fail the clause it breaks.

A defect is a store with one thing wrong, made as small as it can be: a subclass that
overrides one method, or one that changes one table. It is registered with `defect`::

    class _RenewsNothing(ReferenceStore):
        def renew(self, lease: Lease, /) -> None:
            check_lease(lease)
            with self._gate.passing():
                self._fence(lease.run_id, lease)

    defect(
        "reference-renew-does-nothing",
        "a renewal is accepted and extends nothing",
        breaks="L-renew",
        build=lambda home: reference(home, _RenewsNothing),
    )

``breaks`` is the clause that must fail, with this outcome and no other. A defect may break
further clauses; the named one is the sentence that it violates. The module that it stands in
is one of `MODULES`. With ``storm=True`` a defect is about several processes: where real ones
stall, die and are superseded, it shows in what the store holds or answers, and the soak must
catch it as well.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance import Sharing, StoreFromFactory
from rulvar.core import Stores
from rulvar.core.testing import ReferenceStore
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import Home
    from rulvar.stores.sqlite import SqliteTranscripts

__all__ = [
    "DEFECTS",
    "MODULES",
    "SOUND",
    "Defect",
    "defect",
    "open_defect",
    "reference",
    "register",
    "sqlite",
    "subject",
]

MODULES = (
    "gallery_reference_fence",
    "gallery_reference_atomic",
    "gallery_reference_leases",
    "gallery_reference_operators",
    "gallery_reference_journal",
    "gallery_reference_rows",
    "gallery_reference_blobs",
    "gallery_reference_deletion",
    "gallery_reference_ids",
    "gallery_reference_life",
    "gallery_sqlite_fence",
    "gallery_sqlite_judging",
    "gallery_sqlite_epochs",
    "gallery_sqlite_commits",
    "gallery_sqlite_waiting",
    "gallery_sqlite_text",
    "gallery_sqlite_runs",
)
"""The modules whose defects make up the gallery, in the order of its table."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One broken store: its name, what is wrong in words, the clause that it must fail."""

    name: str
    words: str
    breaks: str
    build: Callable[[Home], Stores]
    sharing: Sharing
    takes_clock: bool
    storm: bool = False
    """About several processes: the soak must catch it as well."""


DEFECTS: dict[str, Defect] = {}
"""Every defect by its name, filled by the modules beside this one."""

SOUND: dict[str, Defect] = {}
"""The same stores without a defect: every clause that is named must pass on them."""


def defect(
    name: str,
    words: str,
    *,
    breaks: str,
    build: Callable[[Home], Stores],
    sharing: Sharing | None = None,
    takes_clock: bool = True,
    storm: bool = False,
) -> None:
    """Add one broken store. Its name begins with the store that it is over."""
    if name in DEFECTS:
        message = f"two defects are called {name!r}"
        raise ValueError(message)
    over = Sharing.OBJECT if name.startswith("reference-") else Sharing.SHARED
    DEFECTS[name] = Defect(name, words, breaks, build, sharing or over, takes_clock, storm)


def reference(home: Home, store: type[ReferenceStore] = ReferenceStore) -> Stores:
    """Build a pair over a (broken) reference store; its twin is what `transcripts` returns."""
    journal = store(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
    return Stores(journal, journal.transcripts())


def sqlite(
    home: Home,
    store: type[SqliteStore] = SqliteStore,
    twin: type[SqliteTranscripts] | None = None,
) -> Stores:
    """Build a pair over a (broken) SQLite store and, where given, a (broken) twin."""
    journal = store(home.folder / "runs.db", clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
    transcripts = journal.transcripts() if twin is None else twin(journal._database)
    return Stores(journal, transcripts)


def register() -> None:
    """Import every module of the gallery: its defects add themselves to `DEFECTS`."""
    for name in MODULES:
        importlib.import_module(name)


def open_defect(home: Home, name: str) -> Stores:
    """Open the broken store of that name, in this process or another one."""
    register()
    return (DEFECTS | SOUND)[name].build(home)


def subject(found: Defect) -> StoreFromFactory:
    """Return what the kit certifies."""
    return StoreFromFactory(
        found.name,
        open_defect,
        sharing=found.sharing,
        takes_clock=found.takes_clock,
        arguments=(found.name,),
    )


SOUND["reference"] = Defect("reference", "no defect", "", reference, Sharing.OBJECT, True)
SOUND["sqlite"] = Defect("sqlite", "no defect", "", sqlite, Sharing.SHARED, True)
