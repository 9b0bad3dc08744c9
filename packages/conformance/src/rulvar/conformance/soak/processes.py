"""The processes of a storm from the coordinator's side: workers, and two that disturb them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.harness.children import Child
from rulvar.conformance.soak.local_faults import StopNotice
from rulvar.core.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.conformance.soak.orders import WorkerConfig

__all__ = ["SpareProcesses", "WorkerProcess"]

_TRIES = 20
"""How often a store that is busy is opened again."""


class _Spare:
    """A process that opens the stores, however busy they are, and then waits to be used."""

    def __init__(self, opener: Opener) -> None:
        self.child = Child()
        self._opener = opener
        self._opened = threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        try:
            for tries_left in reversed(range(_TRIES)):
                try:
                    self.child.open(self._opener)
                except StoreBusyError:
                    if not tries_left:
                        raise
                else:
                    return
        except Exception as error:  # noqa: BLE001 - raised where it is used
            self._error = error
        finally:
            self._opened.set()

    def begin(self, *message: object) -> None:
        """Send a message once the stores are open. Raises what opening raised."""
        self._opened.wait()
        if self._error is not None:
            raise self._error
        self.child.begin(*message)


class SpareProcesses:
    """One process in reserve: starting Python takes longer than a lease."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._spare: _Spare | None = None

    def prepare(self) -> None:
        """Start it, unless there is one."""
        if self._spare is None:
            self._spare = _Spare(self._opener)

    def take(self) -> _Spare:
        """Return it."""
        self.prepare()
        spare, self._spare = self._spare, None
        assert spare is not None
        return spare

    def end(self) -> None:
        """End it."""
        if self._spare is not None:
            self._spare.child.end()
            self._spare = None


class WorkerProcess:
    """One process number, and its present life. ``work`` is what it does."""

    def __init__(
        self, config: WorkerConfig, spares: SpareProcesses, work: Callable[..., object]
    ) -> None:
        self.process = config.process
        self.notice = StopNotice(Path(config.folder), config.process)
        self.life = 0
        self.frozen = False
        self.error: Exception | None = None
        self._spares = spares
        self._work = work
        self._config = config
        self._ended = threading.Event()
        self._child: Child | None = None
        self._waiting: threading.Thread | None = None

    def start(self) -> None:
        """Begin the next life."""
        self.life += 1
        self.frozen = False
        spare = self._spares.take()
        self._child = spare.child
        ended = self._ended = threading.Event()
        config = replace(self._config, life=self.life)
        self._waiting = threading.Thread(target=self._run, args=(spare, config, ended), daemon=True)
        self._waiting.start()

    def _run(self, spare: _Spare, config: WorkerConfig, ended: threading.Event) -> None:
        try:
            spare.begin("run", self._work, (config,))
            spare.child.answer()
        except Exception as error:  # noqa: BLE001 - the coordinator judges it
            if spare.child is self._child:
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
