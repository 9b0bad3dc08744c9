"""What an engine is made with: each setting judged, before any I/O."""

from __future__ import annotations

import inspect
import os
import socket
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.capabilities import (
    fencing_domain_of,
    has_fenced_journal,
    has_fenced_transcripts,
    has_leases,
    lease_ttl_ms_of,
)
from rulvar.core.checks import check_owner, check_ttl_ms
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.core.events import Event
    from rulvar.core.stores import StorePair

__all__ = ["choice", "decide_ownership", "observers_of", "readable_owner", "ttl_of"]

T = TypeVar("T")

_LONGEST_OWNER = 110
"""What leaves room for the identity of the process and the token of each grant."""


def observers_of(
    observer: Callable[[Event], None] | None, plugins: Iterable[object]
) -> list[Callable[[Event], None]]:
    """Return what is to be called with each event.

    Raises `PluginError` for a plugin that does not implement ``rulvar_observe``, and
    `ConfigError` for an async ``observer``, which would never run.
    """
    if any(map(inspect.iscoroutinefunction, (observer, type(observer).__call__))):
        message = (
            "observer is an async function and would never run: observers are called in a "
            "thread of their own, so give a plain one, or read Engine.events()"
        )
        raise ConfigError(message)
    found = [] if observer is None else [observer]
    plugins = list(plugins)
    if plugins:
        from rulvar.core.plugins import observe_hook  # noqa: PLC0415 - it brings pluggy

        found += [observe_hook(plugin) for plugin in plugins]
    return found


def choice(what: str, value: T, choices: tuple[T, ...]) -> T:
    """Return a value that is one of its choices. Raises `ConfigError`."""
    if value not in choices:
        message = f"{what} must be one of {', '.join(map(repr, choices))}, not {value!r}"
        raise ConfigError(message)
    return value


def readable_owner(owner: str | None) -> str:
    """Return the readable part of an engine's owner strings. Raises `ConfigError`."""
    if owner is None:
        return f"{socket.gethostname()[:80]}:{os.getpid()}"
    if len(check_owner(owner)) > _LONGEST_OWNER:
        message = f"an engine's owner is at most {_LONGEST_OWNER} code points, not {len(owner)}"
        raise ConfigError(message)
    return owner


def decide_ownership(stores: StorePair, ownership: str, *, require_lease: bool) -> bool:
    """Return whether every segment acquires first. Raises `ConfigError`."""
    if ownership not in {"lease", "none"}:
        message = f"ownership must be 'lease' or 'none', not {ownership!r}"
        raise ConfigError(message)
    leasable = has_leases(stores.journal)
    if require_lease and (ownership == "none" or not leasable):
        what = "ownership='none'" if ownership == "none" else "a store without leases"
        message = f"require_lease=True forbids {what}: use a leasable store and its leases"
        raise ConfigError(message)
    if has_fenced_journal(stores.journal) and has_fenced_transcripts(stores.transcripts):
        domains = {fencing_domain_of(stores.journal), fencing_domain_of(stores.transcripts)}
        if None not in domains and len(domains) > 1:
            message = (
                "the journal's leases cannot fence these transcripts: their fencing domains "
                "differ; use the twin of the journal store"
            )
            raise ConfigError(message)
    return ownership == "lease" and leasable


def ttl_of(stores: StorePair, lease_ttl_ms: int | None) -> int:
    """Return how long the store's leases live, in milliseconds. Raises `ConfigError`."""
    told = lease_ttl_ms_of(stores.journal)
    if lease_ttl_ms is None and told is None:
        message = (
            "the store grants leases but does not say for how long: give "
            "Engine(lease_ttl_ms=...), in milliseconds"
        )
        raise ConfigError(message)
    if told is None:
        return check_ttl_ms(lease_ttl_ms)
    if lease_ttl_ms not in {None, told}:
        message = f"lease_ttl_ms={lease_ttl_ms}, but the store's leases live for {told} ms"
        raise ConfigError(message)
    return told
