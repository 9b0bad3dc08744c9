"""What an engine is made with: each setting judged, before any I/O."""

from __future__ import annotations

import inspect
import os
import socket
from math import inf
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.capabilities import (
    busy_timeout_ms_of,
    fencing_domain_of,
    has_fenced_journal,
    has_fenced_transcripts,
    has_leases,
    lease_ttl_ms_of,
)
from rulvar.core.checks import check_owner, check_ttl_ms
from rulvar.core.engine.kernel.durations import milliseconds_of
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.events import Event
    from rulvar.core.stores import StorePair

__all__ = ["choice", "decide_ownership", "observers_of", "readable_owner", "silence_of", "ttl_of"]

T = TypeVar("T")

SHORTEST_TTL_MS = 50
"""Renewed at a third of it, and tried again at a fifteenth: less is what a busy disk, or the
switch of threads, takes for itself. A store may grant shorter ones to whoever needs them."""
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
            "separate thread, so give a plain one, or read Engine.events()"
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


def ttl_of(stores: StorePair, lease_ttl: Duration | None) -> int:
    """Return how long the store's leases live, in milliseconds.

    Raises `ConfigError` when nobody says, and for leases that an engine cannot keep alive.
    """
    told = lease_ttl_ms_of(stores.journal)
    given_ms = None if lease_ttl is None else milliseconds_of("lease_ttl", lease_ttl)
    if given_ms is None and told is None:
        message = (
            "the store grants leases but does not say for how long: give "
            "Engine(lease_ttl=...), in seconds"
        )
        raise ConfigError(message)
    if told is not None and given_ms not in {None, told}:
        message = f"lease_ttl={lease_ttl!r}, but the store's leases live for {told} ms"
        raise ConfigError(message)
    ttl_ms = check_ttl_ms(given_ms) if told is None else told
    if ttl_ms < SHORTEST_TTL_MS:
        message = (
            f"leases that live for {ttl_ms} ms cannot be renewed in time: open the store with "
            f"lease_ttl_ms={SHORTEST_TTL_MS} at least; a minute (60000) is usual"
        )
        raise ConfigError(message)
    busy_ms = busy_timeout_ms_of(stores.journal)
    if busy_ms is not None and busy_ms * 3 >= ttl_ms:
        message = (
            f"a store call may wait for {busy_ms} ms (busy_timeout_ms), and a lease lives for "
            f"{ttl_ms} ms: a renewal that waits outlives its lease; make it less than a third"
        )
        raise ConfigError(message)
    return ttl_ms


def silence_of(seconds: float | None) -> float | None:
    """Return for how many seconds an event loop may be silent. Raises `ConfigError`."""
    if seconds is None:
        return None
    number: object = seconds
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < inf:
        message = f"blocked_loop_limit must be a number of seconds above 0, not {seconds!r}"
        raise ConfigError(message)
    return float(number)
