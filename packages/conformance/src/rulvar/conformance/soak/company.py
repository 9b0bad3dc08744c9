"""The processes of a storm from the coordinator's side: contestants, and two that disturb them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.children import Child, ChildDied
from rulvar.conformance.soak.trap import Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.soak.post import Post
    from rulvar.conformance.subject import Opener

__all__ = ["Contestant", "Spares"]


class Spares:
    """One process that has the stores open already: starting Python takes longer than a lease."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._spare: Child | None = None

    def prepare(self) -> None:
        """Start it, unless there is one."""
        if self._spare is None:
            self._spare = Child()
            self._spare.begin("open", self._opener)

    def take(self) -> Child:
        """Return it."""
        self.prepare()
        child, self._spare = self._spare, None
        assert child is not None
        return child

    def end(self) -> None:
        """End it."""
        if self._spare is not None:
            self._spare.end()
            self._spare = None


class Contestant:
    """One process number, and its present life. ``work`` is what it does."""

    def __init__(self, post: Post, spares: Spares, work: Callable[..., object]) -> None:
        self.process = post.process
        self.word = Word(Path(post.folder), post.process)
        self.life = 0
        self.frozen = False
        self.error: Exception | None = None
        self._spares = spares
        self._work = work
        self._post = post
        self._ended = threading.Event()
        self._child: Child | None = None
        self._waiting: threading.Thread | None = None

    def start(self) -> None:
        """Begin the next life."""
        self.life += 1
        self.frozen = False
        child = self._child = self._spares.take()
        ended = self._ended = threading.Event()
        child.begin("run", self._work, (replace(self._post, life=self.life),))
        self._waiting = threading.Thread(target=self._wait, args=(child, ended), daemon=True)
        self._waiting.start()

    def _wait(self, child: Child, ended: threading.Event) -> None:
        try:
            child.answer()
            child.answer()
        except Exception as error:  # noqa: BLE001 - the coordinator judges it
            if child is self._child:
                self.error = error
        finally:
            ended.set()

    @property
    def ended(self) -> bool:
        """Whether its present life has ended."""
        return self._ended.is_set()

    def freeze(self) -> None:
        """Stop it wherever it is."""
        assert self._child is not None
        self._child.stop()
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        assert self._child is not None
        self._child.go_on()
        self.frozen = False

    def kill(self) -> None:
        """End its present life at once."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._ended.wait(10)
            child.end()

    def wait(self, seconds: float) -> bool:
        """Wait until it ends by itself; return whether it did."""
        return self._ended.wait(seconds)

    @property
    def died(self) -> bool:
        """Whether it ended without having been told to, and without an error of the store."""
        return isinstance(self.error, ChildDied)
