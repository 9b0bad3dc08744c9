"""The hooks that a plugin may implement: this page is the manual for plugin authors.

A store's distribution registers a light module under the entry-point group
``rulvar.stores``; the entry point's name is the URL scheme. The module is imported only
when a URL with its scheme is opened, so keep the driver's import inside the hook::

    # pyproject.toml
    [project.entry-points."rulvar.stores"]
    acme = "acme_store.plugin"

    # acme_store/plugin.py
    from rulvar.core.spi import StoreURL, Stores, hookimpl

    @hookimpl
    def rulvar_open_stores(url: StoreURL) -> Stores | None:
        from acme_store.store import AcmeStore

        with url.options() as options:
            lease_ttl_ms = options.take_int("lease_ttl_ms", 60_000, lowest=1)
        store = AcmeStore(url.local_path(), lease_ttl_ms=lease_ttl_ms)
        return Stores(store, store.transcripts())

An observer is no discovered plugin: what an installation contains must not change what a
program does. An application names its observers, modules or objects with a
``rulvar_observe``, in ``Engine(observers=[...])``.

A hook implementation may take fewer arguments than its specification, never others.
Nothing outside `rulvar.core.plugins` calls a hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rulvar.core.events import Event
    from rulvar.core.stores import Stores
    from rulvar.core.urls import StoreURL

__all__ = ["PROJECT", "hookimpl", "hookspec", "rulvar_observe", "rulvar_open_stores"]

PROJECT = "rulvar"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def rulvar_open_stores(url: StoreURL) -> Stores | None:
    """Open the pair of stores at ``url``, or return None when the scheme is another's.

    Called once for each `rulvar.core.open_stores`, on the calling thread, with a URL whose
    scheme is the entry point's name. Take every option with ``url.options()``, which
    refuses the unknown ones, and check all of them before any I/O. What is returned is
    owned by the caller, who closes it.

    Raise `ConfigError` for what is wrong in the URL and a `StoreError` for what is wrong
    at the place it names; anything else is reported as a `PluginError` of this plugin.
    """


@hookspec
def rulvar_observe(event: Event) -> None:
    """Be told what happened to a run; `rulvar.core.events` lists the kinds.

    Called for each event, in the order in which they happened, on a thread of this observer
    alone, soon after the fact: the run does not wait. An observer that falls more than ten
    thousand events behind loses the oldest and is told so by a ``lagged`` event. What it
    raises is logged and changes nothing.
    """
