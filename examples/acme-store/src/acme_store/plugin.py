"""What the entry point names: imported when a URL with the scheme ``acme`` is opened."""

from __future__ import annotations

from rulvar.core.spi import Stores, StoreURL, hookimpl


@hookimpl
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open ``acme:///path/of/a/file``, or ``acme://`` in memory."""
    from acme_store.store import AcmeStore  # noqa: PLC0415 - finding a plugin loads no driver
    from acme_store.transcripts import AcmeTranscripts  # noqa: PLC0415

    with url.options() as options:
        lease_ttl_ms = options.take_int("lease_ttl_ms", 60_000, lowest=1)
    store = AcmeStore(url.local_path(), lease_ttl_ms=lease_ttl_ms)
    return Stores(store, AcmeTranscripts(store))
