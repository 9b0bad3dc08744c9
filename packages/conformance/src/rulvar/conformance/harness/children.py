"""Other processes from the kit's side: a pool of them, and stores that live in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, cast

from rulvar.conformance.harness.child import IN_CHILD, receive, send
from rulvar.core.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.core.spi import JournalStore, TranscriptStore

__all__ = ["Child", "ChildDied", "Children"]

HANDLES_ANSWERS = False
"""What goes wrong in this module is the kit's fault, and never an answer of a store."""

_PROGRAM = "from rulvar.conformance.harness.child import main; main()"


class ChildDied(Exception):  # noqa: N818 - expected where it was killed
    """The other process ended before it answered."""


class _Remote:
    """One store of a pair in another process: every call is made there."""

    def __init__(self, child: Child, part: str, methods: frozenset[str]) -> None:
        self._child = child
        self._part = part
        self._methods = methods

    def __getattr__(self, method: str) -> Callable[..., object]:
        # It has what the store over there has: a capability is asked for by its name.
        if method not in self._methods:
            raise AttributeError(method)
        return lambda *arguments, **options: self._child.ask(
            "call", self._part, method, arguments, options
        )


class Child:
    """A process with at most one pair of stores open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, *_flags(), "-c", _PROGRAM],
            env=os.environ | {IN_CHILD: "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A group of its own is orphaned when this process dies, however it dies: then the
            # system ends (SIGHUP) and continues the one that was stopped, which sees no pipe
            # close. A Ctrl-C comes to this process alone, which ends the others.
            process_group=0 if hasattr(os, "setpgid") else None,
        )
        send(self._questions, [os.path.abspath(part) for part in sys.path])  # noqa: PTH100

    @property
    def _questions(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdin)

    @property
    def _answers(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdout)

    def open(self, opener: Opener) -> Stores:
        """Open stores over there, and return their stand-ins."""
        methods = cast("dict[str, frozenset[str]]", self.ask("open", opener))
        journal = _Remote(self, "journal", methods["journal"])
        transcripts = _Remote(self, "transcripts", methods["transcripts"])
        return Stores(cast("JournalStore", journal), cast("TranscriptStore", transcripts))

    def run(self, function: Callable[..., object], *arguments: object) -> object:
        """Call ``function(stores, tell, *arguments)`` over there and wait for its value."""
        return self.ask("run", function, arguments)

    def ask(self, *message: object) -> object:
        """Send one message and wait for the answer. Raises what was raised over there."""
        with self._lock:
            self.begin(*message)
            return self.answer()

    def begin(self, *message: object) -> None:
        """Send one message without waiting."""
        try:
            send(self._questions, message)
        except (BrokenPipeError, OSError) as error:
            message_of_death = "the other process is gone"
            raise ChildDied(message_of_death) from error

    def told(self) -> object:
        """Wait for the next value that a running function tells. Raises `ChildDied`."""
        kind, value = self._receive()
        if kind == "told":
            return value
        return self.finish(kind, value)

    def answer(self) -> object:
        """Wait for the answer to the last message; what is told meanwhile is dropped."""
        while True:
            kind, value = self._receive()
            if kind != "told":
                return self.finish(kind, value)

    def _receive(self) -> tuple[str, object]:
        try:
            return cast("tuple[str, object]", receive(self._answers))
        except (EOFError, ValueError, OSError) as error:
            message = f"the other process ended with {self._process.poll()}"
            raise ChildDied(message) from error

    def finish(self, kind: str, value: object) -> object:
        """Return what the other process returned, or raise what was raised there."""
        if kind == "raised":
            raise cast("Exception", value)
        return value

    def kill(self) -> None:
        """End it at once, as the system does when memory runs out (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Freeze it wherever it is (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `stop`."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it and let go of its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # an unsent rest goes nowhere
                    continue


def _flags() -> list[str]:
    return ["-O"] * sys.flags.optimize


class Children:
    """Processes that are used again: starting Python costs more than most clauses."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._all: list[Child] = []
        self._lock = threading.Lock()

    def take(self) -> Child:
        """Return an idle process, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            child = Child()
            self._all.append(child)
            return child

    def give_back(self, child: Child) -> None:
        """Close what it has open, and keep it if it is well."""
        if not child.alive:
            return
        try:
            child.ask("close")
        except Exception:  # noqa: BLE001 - one that cannot close is not used again
            child.end()
            return
        with self._lock:
            self._idle.append(child)

    def end(self) -> None:
        """End every process that was started."""
        with self._lock:
            for child in self._all:
                child.end()
            self._all.clear()
            self._idle.clear()
