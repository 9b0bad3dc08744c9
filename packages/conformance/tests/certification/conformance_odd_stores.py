"""Stores that are wrong as a whole, for the tests of the runner."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rulvar.core import Stores
from rulvar.core.testing import ReferenceStore, reference_stores

if TYPE_CHECKING:
    from rulvar.conformance import Home
    from rulvar.core.spi import JournalRecord, Lease


class Empty:
    """Nothing at all."""


class Unimplemented:
    """Every method is there, and none is implemented."""

    fenced_writes = True

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or name in {"lease_ttl_ms", "busy_timeout_ms", "fencing_domain"}:
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise NotImplementedError

        return refuse


class Silent:
    """Every method is there and does nothing."""

    fenced_writes = True

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or name in {"lease_ttl_ms", "busy_timeout_ms", "fencing_domain"}:
            raise AttributeError(name)
        return lambda *_, **__: None


class Hanging(ReferenceStore):
    """An append under a lease never returns."""

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        if lease is not None:
            threading.Event().wait()
        super().append(run_id, record)


def open_empty(_: Home) -> Stores:
    return Stores(Empty(), Empty())  # type: ignore[arg-type] # that is the point


def open_unimplemented(_: Home) -> Stores:
    return Stores(Unimplemented(), Unimplemented())  # type: ignore[arg-type]


def open_silent(_: Home) -> Stores:
    return Stores(Silent(), Silent())  # type: ignore[arg-type]


def open_hanging(home: Home) -> Stores:
    store = Hanging(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


def open_sound(home: Home) -> Stores:
    return reference_stores(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)


def open_without_options(_: Home) -> Stores:
    """Open leases that live for a minute whatever is asked for, on the system's clock."""
    return reference_stores()
