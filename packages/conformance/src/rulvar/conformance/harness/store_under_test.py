"""A subject: how the kit gets at a store that it is to judge.

A subject makes *places*. A place is one isolated state: opened once it is empty, opened again
it is a second handle to the same state, where the store can do that. Two ready-made subjects
cover most stores:

- `StoreAtUrl("acme:///x.db")` goes through the installed plugin, as an application does;
- `StoreFromFactory("acme", open_acme)` calls a function of yours with a `Home`, and can hand
  it a clock that the kit moves.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rulvar.conformance.contract.levels import Sharing
from rulvar.conformance.harness.failure import NotVerified
from rulvar.conformance.harness.references import Reference
from rulvar.core.errors import ConfigError
from rulvar.core.plugins import StoreProviders
from rulvar.core.testing.clocks import ManualClock
from rulvar.core.urls import StoreURL

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.clock import Clock
    from rulvar.core.stores import Stores

__all__ = ["Home", "Opener", "StoreAtUrl", "StoreFromFactory", "StoreUnderTest", "TestLocation"]

HANDLES_ANSWERS = False
"""What goes wrong in this module is the kit's fault, and never an answer of a store."""

_TMP = "@tmp@"
_folders: dict[Path, int] = {}
"""The folders of places that were not discarded yet, each with the process that made it."""


@dataclass(frozen=True, slots=True)
class Home:
    """What a factory is told: where to put the state, and how leases are to live.

    ``folder`` is new and empty at the first opening. ``clock`` is None when the store is to
    use the system's.
    """

    folder: Path
    lease_ttl_ms: int
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class Opener:
    """A function and its arguments, both of which can travel to another process."""

    function: Reference
    arguments: tuple[object, ...]

    def open(self) -> Stores:
        """Open the stores, in whatever process this is called."""
        return self.function.resolve()(*self.arguments)  # type: ignore[return-value]


class TestLocation:
    """One isolated state, and the handles to it that the kit has opened.

    ``fresh`` is False for a place that others may have used before, ``honours_ttl`` for one
    whose leases live for as long as the store itself says.
    """

    def __init__(
        self,
        opening: Callable[[], Stores],
        *,
        sharing: Sharing,
        opener: Opener | None = None,
        no_opener: str = "the subject cannot be opened from another process",
        clock: ManualClock | None = None,
        folder: Path | None = None,
        fresh: bool = True,
        honours_ttl: bool = True,
    ) -> None:
        self._opening = opening
        self._opened: list[Stores] = []
        self.sharing = sharing
        self.clock = clock
        self.fresh = fresh
        self.honours_ttl = honours_ttl
        self._opener = opener
        self._no_opener = no_opener
        self._folder = folder
        if folder is not None:
            _folders[folder] = os.getpid()

    def open(self) -> Stores:
        """Open a handle to this state. Raises `NotVerified` where a second one cannot be."""
        if self._opened and self.sharing is Sharing.OBJECT:
            message = "the state lives and dies with one store object"
            raise NotVerified(message)
        stores = self._opening()
        self._opened.append(stores)
        return stores

    def opener(self) -> Opener:
        """Return what another process opens this state with. Raises `NotVerified`."""
        if self._opener is None:
            raise NotVerified(self._no_opener)
        return self._opener

    def discard(self) -> None:
        """Close every handle and remove the state."""
        try:
            for stores in reversed(self._opened):
                with contextlib.suppress(Exception):  # judged by the clauses about closing
                    stores.close()
        finally:
            if self._folder is not None:
                _folders.pop(self._folder, None)
                shutil.rmtree(self._folder, ignore_errors=True)


@atexit.register
def _remove_the_rest() -> None:
    """Remove the folders of places that nobody came to discard: after Ctrl-C, or for a hang."""
    for folder, maker in tuple(_folders.items()):
        if maker == os.getpid():  # in a fork they are still another's
            shutil.rmtree(folder, ignore_errors=True)


class StoreUnderTest(Protocol):
    """A store to be judged."""

    @property
    def name(self) -> str:
        """What the certificate calls it."""
        ...

    @property
    def sharing(self) -> Sharing:
        """How far its state reaches."""
        ...

    @property
    def has_clock(self) -> bool:
        """Whether `fresh` can make a place whose clock the kit moves."""
        ...

    def fresh(self, *, lease_ttl_ms: int, manual_clock: bool) -> TestLocation:
        """Make a new place whose leases live for ``lease_ttl_ms`` where the store can."""
        ...

    def again(self, clause_id: str, seed: int, levels: tuple[str, ...] = ()) -> str:
        """Return the command that tries one clause again with the same seed.

        ``levels`` is what was claimed instead of what the store declares, if anything.
        """
        ...


class StoreFromFactory:
    """A store that a function opens.

    ``open_stores`` is called with a `Home`; called again with the same home, it opens a
    second handle to the same state (never with ``reach="object"``). It is a function at the
    top level of a module when other processes are to call it. ``takes_clock`` says that it
    passes ``home.clock`` on, so that no clause has to wait for a lease to run out.
    ``arguments`` are passed after the home; they must pickle.
    """

    def __init__(
        self,
        name: str,
        open_stores: Callable[..., Stores],
        /,
        *,
        sharing: Sharing | str = Sharing.SHARED,
        takes_clock: bool = False,
        arguments: tuple[object, ...] = (),
    ) -> None:
        self.name = name
        self.sharing = Sharing(sharing)
        self.has_clock = takes_clock
        self._open = open_stores
        self._arguments = arguments

    def fresh(self, *, lease_ttl_ms: int, manual_clock: bool) -> TestLocation:
        """Make a new folder for one state."""
        folder = Path(tempfile.mkdtemp(prefix="rulvar-conformance-"))
        clock = ManualClock() if manual_clock and self.has_clock else None
        home = Home(folder, lease_ttl_ms, clock)
        opener, no_opener = None, ""
        try:
            # A clock under the kit's control exists in this process alone.
            there = Home(folder, lease_ttl_ms)
            opener = Opener(Reference.to(self._open), (there, *self._arguments))
        except ConfigError as error:
            no_opener = str(error)
        return TestLocation(
            lambda: self._open(home, *self._arguments),
            sharing=self.sharing,
            opener=opener,
            no_opener=no_opener,
            clock=clock,
            folder=folder,
        )

    def again(self, clause_id: str, seed: int, levels: tuple[str, ...] = ()) -> str:
        """Return the call that tries one clause again."""
        claim = f", level={list(levels)!r}" if levels else ""
        return f"certify(<the subject {self.name!r}>, only=[{clause_id!r}], seed={seed}{claim})"


class StoreAtUrl:
    """A store behind a URL, opened through its plugin as an application opens it.

    ``@tmp@`` in the URL, and a relative path, are put into a new folder for every clause; any
    other place is used as it is, under run ids of the kit's own. ``sharing`` is taken from the
    URL: a store in memory is one object, every other is shared between processes.
    """

    has_clock = False

    def __init__(self, url: str, /, *, sharing: Sharing | str | None = None) -> None:
        self.name = url
        self._url = url
        parsed = StoreURL.parse(url.replace(_TMP, "/tmp"))  # noqa: S108 - only looked at
        self._in_memory = parsed.in_memory
        self._relative = not (
            parsed.authority or self._in_memory or _TMP in url or Path(parsed.path).is_absolute()
        )
        guessed = Sharing.OBJECT if self._in_memory else Sharing.SHARED
        self.sharing = guessed if sharing is None else Sharing(sharing)
        self._reach_given = sharing is not None
        self._takes_ttl: bool | None = None
        # Looking through what is installed takes longer than most clauses: once is enough.
        self._providers = StoreProviders()

    def fresh(self, *, lease_ttl_ms: int, manual_clock: bool) -> TestLocation:
        """Put the URL into a new folder, where it has one, and ask for that time to live."""
        del manual_clock  # a URL carries no clock
        if self._takes_ttl is None:
            self._takes_ttl = self._ask_for_ttl()
        url, folder = self._placed()
        if self._takes_ttl:
            url = _with_ttl(url, lease_ttl_ms)
        return TestLocation(
            lambda: self._providers.open(url),
            sharing=self.sharing,
            opener=Opener(Reference(__name__, "open_url", None), (url,)),
            folder=folder,
            fresh=folder is not None or self._in_memory,
            honours_ttl=self._takes_ttl,
        )

    def _placed(self) -> tuple[str, Path | None]:
        if not (_TMP in self._url or self._relative):
            return self._url, None
        folder = Path(tempfile.mkdtemp(prefix="rulvar-conformance-"))
        where = folder.as_posix()
        if _TMP in self._url:
            return self._url.replace(_TMP, where), folder
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}:///{where}/{rest.partition('/')[2]}", folder

    def _ask_for_ttl(self) -> bool:
        """Find out, at a place of its own, whether the provider knows the option."""
        url, folder = self._placed()
        try:
            self._providers.open(_with_ttl(url, 60_000)).close()
        except ConfigError:
            return False
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return True

    def again(self, clause_id: str, seed: int, levels: tuple[str, ...] = ()) -> str:
        """Return the command line that tries one clause again."""
        options = [f" --level {level}" for level in levels]
        if self._reach_given:
            options.append(f" --sharing {self.sharing}")
        command = f"python -m rulvar.conformance '{self._url}' --only {clause_id} --seed {seed}"
        return command + "".join(options)


@functools.cache
def _providers() -> StoreProviders:
    return StoreProviders()


def open_url(url: str, /) -> Stores:
    """Open a URL in a process that lives for one certification, and opens many."""
    return _providers().open(url)


def _with_ttl(url: str, lease_ttl_ms: int) -> str:
    before, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("lease_ttl_ms=")]
    return f"{before}?{'&'.join([*kept, f'lease_ttl_ms={lease_ttl_ms}'])}"
