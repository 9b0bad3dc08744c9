"""What the entry point names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core import Stores, hookimpl

if TYPE_CHECKING:
    from rulvar.core import StoreURL


@hookimpl
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open ``acme:///path/of/a/file``."""
    from acme_store.store import AcmeStore  # noqa: PLC0415 - the plugin module stays light

    with url.options() as options:
        lease_ttl_ms = options.take_int("lease_ttl_ms", 60_000, lowest=1)
    path = url.local_path()
    store = AcmeStore(":memory:" if path is None else str(path), lease_ttl_ms=lease_ttl_ms)
    return Stores(store, store.transcripts())
