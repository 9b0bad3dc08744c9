"""Finding plugins by entry point, and loading the one that was asked for (contract.md#plugins).

Two groups, under the same rules: ``rulvar.stores`` (the name is a URL scheme, the value a
module that implements `rulvar.core.hookspecs`) and ``rulvar.commands`` (the name is a
command, the value what the command line makes of it). Names are read from the installed
distributions' metadata, which imports nothing; a plugin is imported when its name is asked
for, and checked whole before it is used. One that is broken fails by itself, with its
distribution named, and stops neither the others nor a listing.

pluggy and importlib_metadata are imported here when they are needed: ``import rulvar.core``
pays for neither.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import os
import re
import sys
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from rulvar.core.errors import PluginError, RulvarError, StoreError
from rulvar.core.foreign import ForeignError, calling_foreign_code
from rulvar.core.formatting import with_article
from rulvar.core.stores import Stores
from rulvar.core.urls import StoreURL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pluggy
    from importlib_metadata import EntryPoint

    from rulvar.core.events import Event

__all__ = [
    "COMMANDS_GROUP",
    "STORES_GROUP",
    "InstalledCommand",
    "InstalledStore",
    "StoreProviders",
    "how_to_get",
    "installed_commands",
    "installed_stores",
    "load_command",
    "observe_hook",
    "open_stores",
]

STORES_GROUP = "rulvar.stores"
COMMANDS_GROUP = "rulvar.commands"

_KNOWN_SCHEMES = {
    "file": ("rulvar-store-file", "rulvar.stores.file"),
    "memory": ("rulvar-core", "rulvar.core"),
    "sqlite": ("rulvar-store-sqlite", "rulvar.stores.sqlite"),
}
"""The distribution to install for a scheme of this repository's own stores, and its package."""

_REFERENCE = re.compile(r"\w[\w.]*\s*(:\s*\w[\w.]*\s*)?(\[.*\])?\s*\Z")
_JOURNAL_METHODS = ("append", "load", "put_meta", "list_runs", "delete")
_TRANSCRIPT_METHODS = ("put", "get", "list_refs", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    distribution: str
    version: str
    value: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledStore(_Installed):
    """One claim on a URL scheme: by which distribution, and what is wrong with it, if any.

    ``value`` is the plugin module as the distribution wrote it; nothing was imported.
    """

    scheme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledCommand(_Installed):
    """One claim on a command's name: by which distribution, and what is wrong, if anything.

    ``value`` is the object reference as the distribution wrote it; nothing was imported.
    """

    name: str


# --- reading the metadata ---------------------------------------------------------------


def _entry_points(group: str) -> list[EntryPoint]:
    import importlib_metadata  # noqa: PLC0415 - see the module's docstring

    try:
        return list(importlib_metadata.entry_points(group=group))
    except (LookupError, OSError, ValueError):
        # One unreadable file anywhere on sys.path; look at each distribution by itself.
        return list(_readable_entry_points(group))


def _readable_entry_points(group: str) -> Iterator[EntryPoint]:
    import importlib_metadata  # noqa: PLC0415 - see the module's docstring

    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        name = "a distribution without a name"
        try:
            name = distribution.name
            if name in seen:
                continue  # a later copy on sys.path, which is not the one imported
            seen.add(name)
            yield from distribution.entry_points.select(group=group)
        except (LookupError, OSError, ValueError) as error:
            message = f"the entry points of {name} cannot be read and are ignored: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _look_again() -> None:
    """Forget what was read of the metadata, and refuse to read it where no file can be opened.

    A folder that could not be read counts as empty there, and is remembered as empty. Raises
    `StoreError`, for what is to be done is the same as with a store that cannot be opened.
    """
    import importlib_metadata  # noqa: PLC0415 - see the module's docstring

    importlib_metadata.MetadataPathFinder.invalidate_caches()
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            return
        message = (
            f"what is installed cannot be looked up: {error.strerror}: close files, or raise the "
            "limit of open ones (ulimit -n), then try again"
        )
        raise StoreError(message) from error


def how_to_get(distribution: str, package: str) -> str:
    """Return how a distribution of this repository, which was not found, comes to be found.

    ``package`` is what it brings: that may be here without its metadata, as in an application
    that was packed into one file.
    """
    frozen = getattr(sys, "frozen", False)
    if _is_here(package):
        metadata = (
            f"pack its metadata too (PyInstaller: --copy-metadata {distribution})"
            if frozen
            else f"reinstall {distribution}"
        )
        return (
            f"{package} is here, and the metadata of {distribution}, which names it, is not: "
            f"{metadata}, or make the store from its class"
        )
    if frozen:
        return (
            f"this frozen application was built without {distribution}: build it in, with its "
            "metadata"
        )
    return f"pip install {distribution}"


def _is_here(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # what it is nested in is not here
        return False


def _source(entry: EntryPoint) -> tuple[str, str]:
    """Return the distribution and version that made the claim, as far as they are known."""
    try:
        distribution = entry.dist
        if distribution is not None:
            return str(distribution.name), str(distribution.version)
    except (LookupError, OSError, ValueError, ImportError):
        pass  # a damaged installation: the claim is still listed, under an unknown name
    return "an unknown distribution", "unknown"


def _claimed_by(entries: Iterable[EntryPoint]) -> str:
    claims = {(*_source(entry), entry.value) for entry in entries}
    return " and ".join(f"{name} {version} ({value})" for name, version, value in sorted(claims))


def _problem(entry: EntryPoint, all_of_name: Sequence[EntryPoint]) -> str | None:
    others = [other for other in all_of_name if _source(other) != _source(entry)]
    if others:
        return f"also claimed by {_claimed_by(others)}: uninstall one"
    fits = _REFERENCE.match(entry.value)
    return None if fits else f"{entry.value!r} is not an object reference"


def _by_name(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in _entry_points(group):
        found.setdefault(entry.name, []).append(entry)
    return found


def installed_stores() -> tuple[InstalledStore, ...]:
    """Return every claim on a URL scheme, by scheme and distribution; imports no plugin."""
    claims = [
        InstalledStore(
            scheme=scheme,
            distribution=_source(entry)[0],
            version=_source(entry)[1],
            value=entry.value,
            problem=_problem(entry, entries),
        )
        for scheme, entries in _by_name(STORES_GROUP).items()
        for entry in entries
    ]
    return tuple(sorted(claims, key=lambda claim: (claim.scheme, claim.distribution)))


def installed_commands() -> tuple[InstalledCommand, ...]:
    """Return every claim on a command, by name and distribution; imports no plugin."""
    claims = [
        InstalledCommand(
            name=name,
            distribution=_source(entry)[0],
            version=_source(entry)[1],
            value=entry.value,
            problem=_problem(entry, entries),
        )
        for name, entries in _by_name(COMMANDS_GROUP).items()
        for entry in entries
    ]
    return tuple(sorted(claims, key=lambda claim: (claim.name, claim.distribution)))


# --- loading one plugin -----------------------------------------------------------------


def _refuse(message: str, name: str) -> NoReturn:
    raise PluginError(message, name=name)


def _load(name: str, entries: Sequence[EntryPoint], what: str) -> object:
    """Import the one plugin of that name. Raises `PluginError` naming its distribution."""
    if len({_source(entry) for entry in entries}) > 1:
        _refuse(f"{what} is claimed by {_claimed_by(entries)}: uninstall one of them", name)
    try:
        with calling_foreign_code():
            return entries[0].load()
    except ForeignError as error:
        message = (
            f"the plugin of {what}, from {_claimed_by(entries)}, cannot be loaded: "
            f"{error}: update or reinstall that distribution"
        )
        raise PluginError(message, name=name) from error.cause


def load_command(name: str, /) -> object:
    """Import and return what the named command's entry point refers to.

    Raises `PluginError` when no distribution claims the name, when two do, and when it
    cannot be imported.
    """
    found = _by_name(COMMANDS_GROUP)
    if name not in found:
        _refuse(f"no installed distribution adds a command {name!r}{_near(name, found)}", name)
    return _load(name, found[name], f"the command {name!r}")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return f"{hint} (installed: {', '.join(names) or 'none'})"


class StoreProviders:
    """The providers of the installed distributions: the only place that calls their hooks.

    The metadata is read once for each object; a scheme's plugin is loaded at its first use.
    """

    def __init__(self) -> None:
        self._claims: dict[str, list[EntryPoint]] | None = None
        self._loaded: dict[str, pluggy.PluginManager] = {}

    def open(self, url: str | StoreURL, /) -> Stores:
        """Open the pair of stores at ``url``.

        Raises `ConfigError` for what is wrong in the URL, `PluginError` when its scheme has
        no provider, two, or a broken one, and the store's own `StoreError`.
        """
        parsed = StoreURL.parse(url) if isinstance(url, str) else url
        manager = self._provider(parsed.scheme)
        try:
            with calling_foreign_code(RulvarError, Warning):
                opened: object = manager.hook.rulvar_open_stores(url=parsed)
        except ForeignError as error:
            message = (
                f"{parsed}: the provider from {self._origin(parsed.scheme)} failed with "
                f"{error}: report it there"
            )
            raise PluginError(message, name=parsed.scheme) from error.cause
        return self._check_pair(parsed, opened)

    def _provider(self, scheme: str) -> pluggy.PluginManager:
        if scheme not in self._loaded:
            self._loaded[scheme] = self._load_provider(scheme)
        return self._loaded[scheme]

    def _load_provider(self, scheme: str) -> pluggy.PluginManager:
        if self._claims is None:
            self._claims = _by_name(STORES_GROUP)
        entries = self._claims.get(scheme)
        if entries is None:
            _look_again()
            self._claims = _by_name(STORES_GROUP)
            entries = self._claims.get(scheme)
        if entries is None:
            _refuse(_unknown_scheme(scheme, self._claims), scheme)
        plugin = _load(scheme, entries, f"the store scheme {scheme!r}")

        import pluggy  # noqa: PLC0415 - see the module's docstring

        from rulvar.core import hookspecs  # noqa: PLC0415 - it imports pluggy

        # A manager for each scheme: the hook of one provider never sees another's URL.
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        try:
            with calling_foreign_code():  # it looks at every attribute of the plugin
                manager.register(plugin, name=scheme)
                manager.check_pending()
        except ForeignError as error:
            message = (
                f"the plugin of the store scheme {scheme!r}, from {self._origin(scheme)}, does "
                f"not fit rulvar.core.hookspecs: {error.cause}"
            )
            raise PluginError(message, name=scheme) from error.cause
        if not manager.get_hookcallers(plugin):
            _refuse(
                f"the plugin of the store scheme {scheme!r}, from {self._origin(scheme)}, "
                "implements no hook: decorate its rulvar_open_stores with rulvar.core.spi.hookimpl",
                scheme,
            )
        return manager

    def _origin(self, scheme: str) -> str:
        return _claimed_by((self._claims or {}).get(scheme, ()))

    def _check_pair(self, url: StoreURL, opened: object) -> Stores:
        origin = self._origin(url.scheme)
        if not isinstance(opened, Stores):
            what = "None" if opened is None else with_article(type(opened).__name__)
            _refuse(f"{url}: the provider from {origin} returned {what}, not Stores", url.scheme)
        missing = _missing_methods(opened)
        if missing:
            _refuse(
                f"{url}: the stores of the provider from {origin} have no "
                f"{', '.join(missing)}: see rulvar.core.spi",
                url.scheme,
            )
        return opened


def _missing_methods(opened: Stores) -> list[str]:
    """Return what a pair of stores lacks; an attribute that raises is one that it lacks."""
    missing = []
    for part, store, methods in (
        ("journal", opened.journal, _JOURNAL_METHODS),
        ("transcripts", opened.transcripts, _TRANSCRIPT_METHODS),
    ):
        for method in methods:
            try:
                with calling_foreign_code():
                    found: object = getattr(store, method, None)
            except ForeignError:
                found = None
            if not callable(found):
                missing.append(f"{part}.{method}")
    return missing


def _unknown_scheme(scheme: str, claims: Iterable[str]) -> str:
    if scheme in _KNOWN_SCHEMES:
        opens = f"no installed distribution opens {scheme}:// stores"
        return f"{opens}: {how_to_get(*_KNOWN_SCHEMES[scheme])}"
    installed = sorted(claims)
    message = (
        f"no installed distribution opens {scheme}:// stores: install the one that does "
        f"(installed: {', '.join(installed) or 'none'})"
    )
    near = difflib.get_close_matches(scheme, sorted({*installed, *_KNOWN_SCHEMES}), n=1)
    return f"{message}; did you mean {near[0]}://?" if near else message


def open_stores(url: str | StoreURL, /) -> Stores:
    """Open the pair of stores at a URL such as ``sqlite:///runs.db?lease_ttl_ms=30000``.

    The caller owns the pair and closes it; it is a context manager.

    Raises `ConfigError` for what is wrong in the URL, `PluginError` when its scheme has no
    provider (naming the distribution to install), two, or a broken one, and the store's own
    `StoreError`. See contract.md#store-urls.
    """
    return StoreProviders().open(url)


def observe_hook(plugin: object, /) -> Callable[[Event], None]:
    """Return what tells one observer plugin of an event, through its ``rulvar_observe``.

    A manager for each plugin: one that raises keeps nothing from the others. Raises
    `PluginError` when the plugin does not implement the hook, or not as it is specified.
    """
    import pluggy  # noqa: PLC0415 - see the module's docstring

    from rulvar.core import hookspecs  # noqa: PLC0415 - it imports pluggy

    shown = getattr(plugin, "__name__", type(plugin).__qualname__)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name=shown)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError, TypeError) as error:
        message = f"the observer {shown} does not fit rulvar.core.hookspecs: {error}"
        raise PluginError(message, name=shown) from error
    hooks = manager.hook.rulvar_observe.get_hookimpls()
    if not hooks:
        _refuse(
            f"the observer {shown} implements no rulvar_observe: decorate it with "
            "rulvar.core.spi.hookimpl",
            shown,
        )
    if any(inspect.iscoroutinefunction(hook.function) for hook in hooks):
        _refuse(
            f"the rulvar_observe of {shown} is async and would never run: observers are called "
            "in a separate thread, so make it a plain function",
            shown,
        )

    def tell(event: Event) -> None:
        manager.hook.rulvar_observe(event=event)

    return tell
