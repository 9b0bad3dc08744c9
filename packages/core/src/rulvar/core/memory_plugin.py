"""The provider of ``memory://``: a fresh in-memory pair for each URL that is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError
from rulvar.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from rulvar.core.stores import Stores
    from rulvar.core.urls import StoreURL

__all__ = ["rulvar_open_stores"]


@hookimpl
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open ``memory://``, which takes no path and no options."""
    if url.scheme != "memory":
        return None
    with url.options():
        pass
    if not url.in_memory:
        message = f"{url}: an in-memory store has no place: write 'memory://'"
        raise ConfigError(message)
    from rulvar.core.memory import MemoryStores  # noqa: PLC0415 - a plugin module is light

    return MemoryStores()
