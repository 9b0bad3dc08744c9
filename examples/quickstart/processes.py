"""Real worker processes: started, frozen in the middle of anything, thawed, and put away."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Cast", "Child", "Report", "StoryError"]

Report = dict[str, Any]

_WORKER = Path(__file__).with_name("worker_process.py")


class StoryError(Exception):
    """The story cannot go on: somebody died, or never came."""


class Child:
    """One worker process; its reports come in the cast's queue."""

    def __init__(
        self, name: str, arguments: list[str], reports: queue.Queue[tuple[Child, Report]]
    ) -> None:
        self.name = name
        self._reports = reports
        # A group of its own: Ctrl-C reaches the parent alone, which puts the children away;
        # and when the parent dies unheard, the kernel wakes and ends a stopped child.
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def _listen(self) -> None:
        stdout = self._process.stdout
        if stdout is not None:
            for line in stdout:
                self._reports.put((self, json.loads(line)))
        self._reports.put((self, {"kind": "gone"}))

    def freeze(self) -> None:
        """Stop the process where it stands; return when the kernel says that it has stopped.

        Raises `StoryError` when it has died instead.
        """
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            message = f"{self.name} ended with exit status {self._process.returncode}"
            raise StoryError(message)

    def thaw(self) -> None:
        """Let a stopped process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def go_on(self) -> None:
        """Answer the read in which the process waits in the middle of its step."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def put_away(self) -> int:
        """Kill the process if it lives, stopped or not, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.wait()

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the process to end by itself; return its exit status."""
        return self._process.wait(timeout_seconds)


class Cast:
    """The children of one story; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self.hear: Callable[[Child, Report], None] = lambda _child, _report: None
        self._reports: queue.Queue[tuple[Child, Report]] = queue.Queue()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.put_away()

    def start(self, name: str, *arguments: str) -> Child:
        """Start a worker process."""
        child = Child(name, list(arguments), self._reports)
        self._children.append(child)
        return child

    def wait_for(self, child: Child, kind: str, *, within_seconds: float = 30) -> Report:
        """Hear everybody until ``child`` reports ``kind``, and return that report.

        Raises `StoryError` when it ends without, or takes longer than that.
        """
        give_up_at = time.monotonic() + within_seconds
        while True:
            try:
                who, told = self._reports.get(timeout=max(0.01, give_up_at - time.monotonic()))
            except queue.Empty:
                message = f"{child.name} did not report {kind!r} within {within_seconds:g} s"
                raise StoryError(message) from None
            self.hear(who, told)
            if who is child and told["kind"] == kind:
                return told
            if who is child and told["kind"] in {"gone", "failed"}:
                why = told.get("message", "its process ended")
                message = f"{child.name} did not come to {kind!r}: {why}"
                raise StoryError(message)
