"""The exit codes: one table, used by code, help and docs.

A status says what a script may do next: 3 and 5 are worth retrying; 4 and 6 need nothing
(another worker has the run, or the run waits); 1 and 2 need a person.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from rulvar.core.errors import (
    ConfigError,
    InvalidResolutionError,
    JournalCompatibilityError,
    LeaseHeldError,
    PluginError,
    SettlementError,
    StoreError,
    SupersededError,
)

if TYPE_CHECKING:
    from rulvar.core.errors import (
        RulvarError,
    )

__all__ = ["MEANINGS", "ExitStatus", "status_of_error", "status_of_run"]


class ExitStatus(IntEnum):
    """The exit statuses of every `rulvar` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    HELD = 3
    SUPERSEDED = 4
    STORE = 5
    UNFINISHED = 6
    INTERNAL = 70
    OUTPUT_LOST = 74
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[ExitStatus, str] = {
    ExitStatus.DONE: "done: the run ended ok, the check passed, the listing is complete",
    ExitStatus.FAILED: "the run ended as error, cancelled or exhausted; or: a check did not pass",
    ExitStatus.USAGE: "nothing was done: wrong usage or configuration, unknown run, broken plugin",
    ExitStatus.HELD: "another worker holds the run: wait, or take it over (rulvar runs take-over)",
    ExitStatus.SUPERSEDED: "superseded: a successor holds the run and continues it",
    ExitStatus.STORE: "the store failed: busy, full, corrupt, or the outcome was not recorded",
    ExitStatus.UNFINISHED: "not finished: the run is suspended, or was released before its end",
    ExitStatus.INTERNAL: "an unexpected exception, with its traceback",
    ExitStatus.OUTPUT_LOST: "standard output could not be written; the operation is not affected",
    ExitStatus.HUNG_UP: "stopped by SIGHUP, its terminal was closed; the run was released",
    ExitStatus.INTERRUPTED: "stopped by Ctrl-C (SIGINT); the run was released",
    ExitStatus.TERMINATED: "stopped by SIGTERM; the run was released",
}


def status_of_error(error: RulvarError) -> ExitStatus:
    """Return the exit status for an error."""
    if isinstance(error, LeaseHeldError):
        return ExitStatus.HELD if error.reason == "held" else ExitStatus.SUPERSEDED
    if isinstance(error, SupersededError):
        return ExitStatus.SUPERSEDED
    if isinstance(error, StoreError | SettlementError):
        return ExitStatus.STORE
    refused = (ConfigError, PluginError, InvalidResolutionError, JournalCompatibilityError)
    if isinstance(error, refused):
        return ExitStatus.USAGE
    return ExitStatus.FAILED


def status_of_run(status: str) -> ExitStatus:
    """Return the exit status for a run's status."""
    if status == "ok":
        return ExitStatus.DONE
    if status in {"suspended", "running"}:
        return ExitStatus.UNFINISHED
    return ExitStatus.FAILED
