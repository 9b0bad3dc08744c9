"""How a defect over the reference store is registered: a decorator on its class.

A store::

    @broken("renew-does-nothing", "a renewal is accepted and extends nothing", breaks="L-renew")
    class _RenewsNothing(ReferenceStore):
        def renew(self, lease: Lease, /) -> None:
            check_lease(lease)
            with self._gate.passing():
                self._fence(lease.run_id, lease)

and `broken_twin` the same for a `ReferenceTranscripts`, whose journal half is then sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gallery_defects import defect, reference

from rulvar.core import Stores
from rulvar.core.testing import ReferenceStore, ReferenceTranscripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import Home

__all__ = ["broken", "broken_twin"]

_Store = TypeVar("_Store", bound=ReferenceStore)
_Twin = TypeVar("_Twin", bound=ReferenceTranscripts)


def broken(name: str, words: str, *, breaks: str) -> Callable[[type[_Store]], type[_Store]]:
    """Add the decorated store to the gallery, as ``reference-<name>``."""

    def add(store: type[_Store]) -> type[_Store]:
        defect(f"reference-{name}", words, breaks=breaks, build=lambda home: reference(home, store))
        return store

    return add


def broken_twin(name: str, words: str, *, breaks: str) -> Callable[[type[_Twin]], type[_Twin]]:
    """Add a sound reference store whose twin is the decorated one, as ``reference-<name>``."""

    def add(twin: type[_Twin]) -> type[_Twin]:
        def build(home: Home) -> Stores:
            journal = ReferenceStore(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
            journal._twin = twin(journal)
            return Stores(journal, journal._twin)

        defect(f"reference-{name}", words, breaks=breaks, build=build)
        return twin

    return add
