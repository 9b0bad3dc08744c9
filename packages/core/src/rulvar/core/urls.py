"""Store URLs, as SQLAlchemy reads them (contract.md#store-urls).

=========================  =====================================================
``sqlite:///runs.db``      a path relative to the working directory
``sqlite:////var/runs.db`` an absolute path
``sqlite:///C:/runs.db``   a Windows drive
``sqlite://``              nothing after it: in memory, where the store has that
``acme://host:1/name``     an authority, for stores that are reached over a network
``...?lease_ttl_ms=30000`` options; an unknown or repeated key is refused
=========================  =====================================================

What a URL shows of itself is the absolute path and never a credential: neither what stands
before ``@`` nor the options' values.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar
from urllib.parse import unquote, unquote_plus

from rulvar.core.errors import ConfigError
from rulvar.core.formatting import with_article

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["StoreOptions", "StoreURL"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*\Z")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DRIVE_AFTER_SLASH = re.compile(r"/[A-Za-z]:[/\\]")
_DIGITS = re.compile(r"-?[0-9]+\Z", re.ASCII)
_MOST_DIGITS = 20
_FLAGS = {"true": True, "1": True, "yes": True, "on": True}
_FLAGS |= {"false": False, "0": False, "no": False, "off": False}

_Choice = TypeVar("_Choice", bound=str)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class StoreURL:
    """Where a store is and how to open it, parsed and decoded; a value.

    ``authority`` is what stands between ``//`` and the next ``/``, as written: it may hold
    credentials, so it is no part of ``repr`` or ``str``. ``path`` is without the slash that
    ends the authority: relative, absolute, or empty. ``preferences`` are options that the
    caller would like, and that a provider may not know: see `preferring`.
    """

    scheme: str
    path: str = ""
    authority: str = field(default="", repr=False)
    options_given: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    preferences: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str, /) -> Self:
        """Read a URL.

        Raises `ConfigError` when it has no scheme and ``://``, for a repeated key of the
        query, and for a percent sign that begins no escape; the message repeats no
        credential.
        """
        if not isinstance(text, str):
            _refuse(f"a store URL must be a string, not {type(text).__name__}")
        scheme, separator, rest = text.partition("://")
        if not separator or not _SCHEME.match(scheme):
            _refuse(
                f"{_without_secrets(text)!r} is not a store URL: write '<scheme>:///<path>', for "
                "example 'sqlite:///runs.db'"
            )
        shown = f"{scheme.lower()}://..."
        place, _, query = rest.partition("?")
        authority, _, path = place.partition("/")
        return cls(
            scheme=scheme.lower(),
            path=_decode(path, shown, "path"),
            authority=authority,
            options_given=tuple(_parse_query(query, shown).items()),
        )

    def preferring(self, **wished: str) -> Self:
        """Return the URL with options that a provider takes if it knows them.

        What the URL says itself wins, and one that is not taken is no error.
        """
        known = dict(self.options_given)
        fresh = {key: value for key, value in wished.items() if key not in known}
        return replace(self, preferences=tuple({**dict(self.preferences), **fresh}.items()))

    @property
    def query(self) -> Mapping[str, str]:
        """The options by key, decoded."""
        return dict(self.options_given)

    @property
    def in_memory(self) -> bool:
        """Whether the URL names no place: nothing after ``//``, or ``:memory:``."""
        return not self.authority and self.path in {"", ":memory:"}

    def local_path(self) -> Path | None:
        """Return the absolute path that a store of local files lives at; None in memory.

        Raises `ConfigError` for an authority: ``sqlite://runs.db`` is one slash short.
        """
        if self.authority:
            _refuse(
                f"{self.scheme}://<name>/... names a host, and "
                f"{with_article(repr(self.scheme))} store is local: write "
                f"{self.scheme}:///<path> (relative) or {self.scheme}:////<path> (absolute)"
            )
        if self.in_memory:
            return None
        path = self.path
        if os.name == "nt" and _DRIVE_AFTER_SLASH.match(path):
            path = path[1:]
        try:
            return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
        except FileNotFoundError:
            _refuse(
                f"{self.scheme}:///{path} starts at the current folder, which is not there any "
                "more: change to another, or write an absolute path"
            )

    def options(self) -> StoreOptions:
        """Return the query's keys for taking, each at most once; see `StoreOptions`."""
        return StoreOptions(self)

    def __str__(self) -> str:
        """Return the URL with its absolute path, without credentials and options."""
        if self.authority:
            host = self.authority.rpartition("@")[2]
            hidden = "***@" if "@" in self.authority else ""
            return f"{self.scheme}://{hidden}{host}/{self.path}"
        path = self.local_path()
        return f"{self.scheme}://" if path is None else f"{self.scheme}:///{path}"


def _without_secrets(text: str) -> str:
    before, at, after = text.rpartition("@")
    shown = f"{before.partition(':')[0]}:***@{after}" if at else text
    return shown.partition("?")[0][:200]


def _decode(text: str, shown: str, what: str, *, plus: bool = False) -> str:
    stray = _STRAY_PERCENT.search(text)
    if stray:
        _refuse(
            f"{shown}: the {what} has a '%' at {stray.start()} that begins no escape: "
            "write '%25' for a percent sign"
        )
    try:
        decoded = (unquote_plus if plus else unquote)(text, errors="strict")
    except UnicodeDecodeError:
        _refuse(f"{shown}: the {what} is not UTF-8 once its escapes are decoded: encode it so")
    if "\0" in decoded:
        _refuse(f"{shown}: the {what} contains a NUL character: remove it")
    try:
        decoded.encode("utf-8")
    except UnicodeEncodeError as error:
        _refuse(f"{shown}: the {what} is not Unicode text at {error.start}: write it in UTF-8")
    return decoded


def _parse_query(text: str, shown: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split("&")):
        name, equals, value = part.partition("=")
        key = _decode(name, shown, "query", plus=True)
        if not key or not equals:
            _refuse(
                f"{shown}: an option is written '<key>=<value>' (a '?' that belongs to a "
                "password or a path is written '%3F')"
            )
        if key in found:
            _refuse(f"{shown}: the option {key!r} is given twice: keep one")
        found[key] = _decode(value, shown, f"option {key!r}", plus=True)
    return found


class StoreOptions:
    """The options of a URL: each is taken by the provider, what is left over is refused.

    Use it as a context manager, so that no provider forgets the refusal::

        with url.options() as options:
            lease_ttl_ms = options.take_int("lease_ttl_ms", 60_000, lowest=1)
            durability = options.take_choice("durability", ("full", "normal"), "full")
    """

    def __init__(self, url: StoreURL, /) -> None:
        self._url = url
        self._left = dict(url.query)
        self._wished = dict(url.preferences)
        self._known: list[str] = []

    def take_text(self, key: str, default: str | None = None, /) -> str | None:
        """Take an option as it stands."""
        self._known.append(key)
        return self._left.pop(key, self._wished.get(key, default))

    def take_int(
        self,
        key: str,
        default: int,
        /,
        *,
        lowest: int | None = None,
        highest: int | None = None,
    ) -> int:
        """Take an option written in digits. Raises `ConfigError` for any other and a bound."""
        text = self.take_text(key)
        if text is None:
            return default
        if not _DIGITS.match(text) or len(text) > _MOST_DIGITS:
            self._refuse(key, "an integer in digits", text)
        value = int(text)
        if (lowest is not None and value < lowest) or (highest is not None and value > highest):
            bounds = [f"at least {lowest}"] if lowest is not None else []
            bounds += [f"at most {highest}"] if highest is not None else []
            self._refuse(key, " and ".join(bounds), text)
        return value

    def take_choice(self, key: str, choices: Sequence[_Choice], default: _Choice, /) -> _Choice:
        """Take one of a few words. Raises `ConfigError` for any other."""
        text = self.take_text(key)
        if text is None:
            return default
        for choice in choices:
            if text == choice:
                return choice
        return self._refuse(key, f"one of {', '.join(choices)}", text)

    def take_bool(self, key: str, default: bool, /) -> bool:
        """Take ``true`` or ``false`` (or 1, 0, yes, no, on, off). Raises `ConfigError`."""
        text = self.take_text(key)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            self._refuse(key, "true or false", text)
        return _FLAGS[text.lower()]

    def refuse_unknown(self) -> None:
        """Refuse every key that was not taken. Raises `ConfigError` listing those known."""
        if not self._left:
            return
        unknown = sorted(self._left)
        known = sorted(set(self._known))
        near = [m for key in unknown for m in difflib.get_close_matches(key, known, n=1)]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        names = ", ".join(map(repr, unknown))
        self._fail(f"unknown option {names}{hint}; known: {', '.join(known) or 'none'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.refuse_unknown()

    def _refuse(self, key: str, wanted: str, text: str) -> NoReturn:
        self._fail(f"the option {key!r} must be {wanted}, not {text[:80]!r}")

    def _fail(self, message: str) -> NoReturn:
        _refuse(f"{self._url}: {message}")
