"""What the entry point names: opens ``sqlite:`` URLs, and imports the driver only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from rulvar.core.stores import Stores
    from rulvar.core.urls import StoreURL
    from rulvar.stores.sqlite.connection import Durability, Permissions

__all__ = ["rulvar_open_stores"]


@hookimpl
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open ``sqlite:///runs.db``, ``sqlite:////var/runs.db``, or ``sqlite://`` in memory.

    Options: ``lease_ttl_ms``, ``busy_timeout_ms``, ``open_timeout_ms``, ``durability``
    (``full`` or ``normal``), ``permissions`` (``private`` or ``umask``),
    ``allow_network_filesystem`` and ``read_only``.
    """
    if url.scheme != "sqlite":
        return None
    from rulvar.stores.sqlite.store import SqliteStores  # noqa: PLC0415 - imports the driver

    path = url.local_path()
    durabilities: tuple[Durability, ...] = ("full", "normal")
    choices: tuple[Permissions, ...] = ("private", "umask")
    with url.options() as options:
        lease_ttl_ms = options.take_int("lease_ttl_ms", 60_000)
        busy_timeout_ms = options.take_int("busy_timeout_ms", 0)
        open_timeout_ms = options.take_int("open_timeout_ms", 10_000)
        durability = options.take_choice("durability", durabilities, "full")
        permissions = options.take_choice("permissions", choices, "private")
        allow_network_filesystem = options.take_bool("allow_network_filesystem", False)
        read_only = options.take_bool("read_only", False)
    return SqliteStores(
        ":memory:" if path is None else path,
        lease_ttl_ms=lease_ttl_ms,
        busy_timeout_ms=busy_timeout_ms if "busy_timeout_ms" in url.query else None,
        open_timeout_ms=open_timeout_ms,
        durability=durability,
        allow_network_filesystem=allow_network_filesystem,
        read_only=read_only,
        permissions=permissions,
    )
