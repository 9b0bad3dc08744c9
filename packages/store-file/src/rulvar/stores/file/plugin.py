"""What the entry point names: opens ``file:`` URLs, and imports the store only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError
from rulvar.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from rulvar.core.stores import Stores
    from rulvar.core.urls import StoreURL
    from rulvar.stores.file.directory import Durability, Permissions

__all__ = ["rulvar_open_stores"]


@hookimpl
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open ``file:///runs`` (relative) or ``file:////var/runs`` (absolute): a folder.

    Options: ``durability`` (``full`` or ``normal``), ``read_only``, and ``permissions``
    (``private`` or ``umask``) of what is made.
    """
    if url.scheme != "file":
        return None
    path = url.local_path()
    durabilities: tuple[Durability, ...] = ("full", "normal")
    choices: tuple[Permissions, ...] = ("private", "umask")
    with url.options() as options:
        durability = options.take_choice("durability", durabilities, "full")
        read_only = options.take_bool("read_only", False)
        permissions = options.take_choice("permissions", choices, "private")
    if path is None:
        message = f"{url}: a file store lives in a folder: write file:///<path>, or use memory://"
        raise ConfigError(message)
    from rulvar.stores.file.store import FileStores  # noqa: PLC0415 - keep the listing light

    return FileStores(path, durability=durability, read_only=read_only, permissions=permissions)
