"""Opening the store that a command works on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.cli.config import read_setting
from rulvar.core.errors import ConfigError
from rulvar.core.plugins import open_stores
from rulvar.core.urls import StoreURL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.stores import Stores

__all__ = ["must_exist", "opened_stores", "store_url"]


def store_url(given: str | None) -> StoreURL:
    """Return the URL of the store, from flag, environment or pyproject.toml.

    A relative path in it starts at the folder that the setting was read from. Raises
    `ConfigError` when there is none, and for an invalid store URL.
    """
    setting = read_setting("store", given)
    url = StoreURL.parse(setting.value)
    if url.authority or url.in_memory or setting.folder == Path.cwd():
        return url
    # Joining with an absolute path gives that path.
    return replace(url, path=str(setting.folder / url.path))


@contextmanager
def opened_stores(
    given: str | None, *, read_only: bool = False, existing: bool = False, or_make: bool = False
) -> Iterator[Stores]:
    """Open the pair of stores, and close it behind the block.

    With ``read_only``, where the store can: nothing on disk is changed, and a mistyped URL
    creates no store, unless ``or_make`` says so. With ``existing`` it must be there already,
    where the store can check that.
    """
    url = store_url(given)
    if existing:
        must_exist(url)
    if read_only and not url.in_memory and not (or_make and not _exists(url)):
        url = url.preferring(read_only="true")
    with open_stores(url) as stores:
        yield stores


def must_exist(url: StoreURL) -> None:
    """Refuse a URL without a store: creating one would hide a mistyped path.

    Raises `ConfigError`, where the store can check that without creating one.
    """
    if not url.in_memory:
        open_stores(url.preferring(read_only="true")).close()


def _exists(url: StoreURL) -> bool:
    try:
        must_exist(url)
    except ConfigError:
        return False  # what else is wrong with it, the opening that follows says
    return True
