"""The process that forks: everything is imported in it, and no store is ever open in it.

Starting Python costs more than most workloads, and hundreds of processes die here. So one
process of the kit imports what the workloads need, and every process that plays a part in
one is forked from it *before* it opens a store: it lives, works and dies as any other, under
a process id of its own, and shares nothing with the others but the store's own state.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from rulvar.conformance.crash.phases import perform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from rulvar.conformance.crash.phases import Job
    from rulvar.core.stores import Stores

__all__ = ["Ended", "in_a_fork", "preload"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a forked process ended: ``value`` if it returned, ``text`` if it did not."""

    how: Literal["returned", "raised", "killed", "hung", "ended"]
    value: object = None
    text: str = ""

    @property
    def reason(self) -> str:
        """The last line of ``text``: of a traceback, what was raised."""
        return self.text.rpartition("\n")[2]


def preload(stores: Stores | None, tell: Callable[[object], None], names: Iterable[str]) -> None:
    """Import modules that a forked process had to import, so that the next ones need not."""
    del stores, tell
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # made by something else than an import; a fork will manage


def in_a_fork(stores: Stores | None, tell: Callable[[object], None], job: Job) -> Ended:
    """Do a job in a process of its own, and say how that one ended."""
    del stores, tell
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _live(job, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return _ended(os.waitstatus_to_exitcode(status), said, job)


def _live(job: Job, writer: int) -> NoReturn:
    """Be the process of one job; never return into the process that was forked."""
    status = 1
    try:
        # Whatever becomes of the others, this one does not stay.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(job.deadline_s)
        _use_temp_folder(str(job.folder / "tmp"))
        said = pickle.dumps(("returned", perform(job)))
        status = 0
    except BaseException:  # noqa: BLE001 - told to the one who judges
        said = pickle.dumps(("raised", traceback.format_exc(limit=-12)))
    try:
        while said:
            said = said[os.write(writer, said) :]
    finally:
        sys.stderr.flush()
        os._exit(status)


def _use_temp_folder(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - also for what was forked
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _ended(status: int, said: bytes, job: Job) -> Ended:
    if status == -signal.SIGKILL:
        return Ended("killed")
    if status == -signal.SIGALRM:
        return Ended("hung", text=f"it had not ended after {job.deadline_s} s")
    if not said:
        return Ended("ended", text=f"it ended with status {status} without an answer")
    kind, value = cast("tuple[str, object]", pickle.loads(said))  # noqa: S301 - our own process
    if kind == "raised":
        return Ended("raised", text=str(value).rstrip())
    return Ended("returned", value)
