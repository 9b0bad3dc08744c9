"""Every error that rulvar raises, in one tree.

Split by whose fault it is, and by what is known to have happened::

    RulvarError
    ├── ConfigError                  the caller's: nothing was read or written
    ├── PluginError                  a provider is missing, broken or claimed twice
    ├── StoreError                   what a store answers
    │   ├── LeaseHeldError           refused by the fence: nothing changed
    │   ├── JournalOrderViolation    refused by the sequence guard: nothing changed
    │   ├── StoreBusyError           nothing happened: retry
    │   ├── StoreFullError           nothing happened: make room, then retry
    │   ├── OutcomeUnknownError      it may have landed: read, then decide
    │   ├── StoreCorruptError        what is stored cannot be read
    │   ├── StoreInUseError          another writer has the store
    │   ├── StoreClosedError         the store was closed
    │   └── StoreForkedError         the store belongs to the parent process
    └── RunError                     what became of a run or of one of its segments
        ├── SupersededError          this segment lost the run: a successor owns it
        ├── SettlementError          the outcome could not be recorded
        ├── StepFailedError          a step failed for good
        ├── RunFailedError           the body raised
        ├── RunTimeoutError          the run was not over at its deadline
        ├── RunCancelledError        the run was cancelled
        ├── JournalCompatibilityError  the journal is outside this version's window
        ├── NonDeterminismError      the body took another way than its journal
        └── InvalidResolutionError   a resolution that does not fit its suspension
            ├── NotAskedError        the run has not asked for it yet: try again later
            └── AlreadyAnsweredError the first answer counts, and is there

Each class has a stable ``code``, carries its facts as attributes, survives pickling, and
says in one sentence what happened and what to do (contract.md#errors).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from rulvar.core.formatting import command_line, format_time

if TYPE_CHECKING:
    from rulvar.core.failures import FailureMember
    from rulvar.core.records import Lease

__all__ = [
    "AlreadyAnsweredError",
    "ConfigError",
    "InvalidResolutionError",
    "JournalCompatibilityError",
    "JournalOrderViolation",
    "LeaseHeldError",
    "NonDeterminismError",
    "NotAskedError",
    "OutcomeUnknownError",
    "PluginError",
    "RefusalReason",
    "RulvarError",
    "RunCancelledError",
    "RunError",
    "RunFailedError",
    "RunTimeoutError",
    "SettlementError",
    "StepFailedError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreForkedError",
    "StoreFullError",
    "StoreInUseError",
    "SupersededError",
]

RefusalReason = Literal["held", "foreign-run", "unknown", "superseded", "released", "expired"]
"""Why the fence refused (contract.md#reasons-for-a-refusal).

``held``         somebody has the run; from ``acquire`` alone, and alone worth a retry
``foreign-run``  the lease names another run than the one it was offered for
``unknown``      this store never granted that epoch to that owner
``superseded``   a later epoch was granted since
``released``     the lease was given back, or its run deleted
``expired``      its time ran out and nobody has taken the run since
"""


def _rebuild(cls: type[RulvarError], args: tuple[object, ...], facts: dict[str, object]) -> object:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class RulvarError(Exception):
    """The root of the tree: everything that rulvar raises on purpose."""

    code: ClassVar[str] = "rulvar"

    @property
    def retryable(self) -> bool:
        """Whether the same call, made again later, may succeed."""
        return False

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state, so that keyword-only constructors survive a process boundary."""
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


class ConfigError(RulvarError):
    """An argument, an option or a combination is wrong; nothing was read or written.

    ``path`` names the offending place inside a value, where there is one.
    """

    code = "config"

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class PluginError(RulvarError):
    """A provider is not installed, cannot be imported, or is claimed by two distributions."""

    code = "plugin"

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class StoreError(RulvarError):
    """A store answered with something other than success."""

    code = "store"

    def __init__(self, message: str, *, run_id: str | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id


class LeaseHeldError(StoreError):
    """The fence refused, and nothing changed.

    ``reason`` says why; ``offered`` is the lease that was refused (None from ``acquire``);
    ``holder``, ``epoch`` and ``expires_at`` (Unix milliseconds) describe the lease that is
    live now, where the store knows one; all are None when nobody holds the run, and for
    ``foreign-run``, which is refused before anything is read.
    """

    code = "lease-held"

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str,
        reason: RefusalReason,
        offered: Lease | None = None,
        holder: str | None = None,
        epoch: int | None = None,
        expires_at: int | None = None,
    ) -> None:
        if message is None:
            message = _explain(
                run_id, reason, offered, holder=holder, epoch=epoch, expires_at=expires_at
            )
        super().__init__(message, run_id=run_id)
        self.reason: RefusalReason = reason
        self.offered = offered
        self.holder = holder
        self.epoch = epoch
        self.expires_at = expires_at

    @property
    def retryable(self) -> bool:
        """Only ``held`` is: the present lease may end; a dead one never lives again."""
        return self.reason == "held"


_YEAR_10000_MS = 253_402_300_800_000
"""The first moment that ISO 8601 with four digits cannot name."""


def _explain(
    run_id: str,
    reason: str,
    offered: Lease | None,
    *,
    holder: str | None,
    epoch: int | None,
    expires_at: int | None,
) -> str:
    now = "it has no holder now"
    if holder is not None:
        now = f"{holder!r} holds it under epoch {epoch}"
    if reason == "held":
        until = ""
        if expires_at is not None and 0 <= expires_at < _YEAR_10000_MS:
            until = f", until {format_time(expires_at)} if it is not renewed"
        return (
            f"run {run_id!r} is held by {holder!r} under epoch {epoch}{until}: wait, or take it "
            f"over with {command_line('runs take-over', run_id)}"
        )
    what = f"the lease of {offered.owner!r}, epoch {offered.epoch}," if offered else "the lease"
    because = {
        "foreign-run": f"is for run {offered.run_id!r}" if offered else "is for another run",
        "unknown": "was never granted by this store",
        "superseded": "was superseded",
        "released": "was released, or its run was deleted",
        "expired": "has expired, and the run was not taken since",
    }[reason]
    return (
        f"refused for run {run_id!r}: {what} {because} ({now}); nothing changed: "
        "stop this segment; to continue the run, acquire it again"
    )


class JournalOrderViolation(StoreError):  # noqa: N818 - the name is part of the contract
    """The record's seq is not above the stored tail; it was not written.

    ``seq`` was offered, ``tail_seq`` is stored where the store knows it. ``landed`` says that
    the very record that was offered is the journal's last: an append that was tried again.
    Never answered with a higher seq: where another writer has appended, what the caller
    decided is stale.
    """

    code = "journal-order"

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str,
        seq: int,
        tail_seq: int | None = None,
        landed: bool = False,
    ) -> None:
        if message is None and landed:
            message = (
                f"run {run_id!r}: this very record of seq {seq} is the journal's last already: an "
                "earlier try has landed, nothing was written, and nothing needs to be"
            )
        elif message is None:
            message = (
                f"run {run_id!r}: seq {seq} is not above the stored tail {tail_seq}; another "
                "writer has appended: load the journal again and decide anew"
            )
        super().__init__(message, run_id=run_id)
        self.seq = seq
        self.tail_seq = tail_seq
        self.landed = landed


class StoreBusyError(StoreError):
    """The store was locked for longer than its busy timeout; nothing happened: retry.

    ``waited_ms`` is how long the call waited; ``blocker`` names who holds the lock, where
    the operating system tells.
    """

    code = "store-busy"

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        waited_ms: int | None = None,
        blocker: str | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.waited_ms = waited_ms
        self.blocker = blocker

    @property
    def retryable(self) -> bool:
        """It is: nothing happened."""
        return True


class StoreFullError(StoreError):
    """There is no room; nothing was written. Make room: the next write works."""

    code = "store-full"


class OutcomeUnknownError(StoreError):
    """The write may have landed; its outcome is final now: read, then decide."""

    code = "outcome-unknown"


class StoreCorruptError(StoreError):
    """What is stored cannot be read back as what the contract says.

    ``position`` is the record's place in the journal, counted from 0, where there is one.
    """

    code = "store-corrupt"

    def __init__(
        self, message: str, *, run_id: str | None = None, position: int | None = None
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.position = position


class StoreInUseError(StoreError):
    """Another writer has the single-writer store; nothing was touched."""

    code = "store-in-use"

    def __init__(self, message: str, *, holder: str | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class StoreClosedError(StoreError):
    """The store was closed; open it again."""

    code = "store-closed"


class StoreForkedError(StoreError):
    """The store was open in the parent process at the fork: close it before, or spawn."""

    code = "store-forked"


class RunError(RulvarError):
    """What became of a run, or of one of its segments."""

    code = "run"

    def __init__(self, message: str, *, run_id: str | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id


class SupersededError(RunError):
    """This segment lost the run, stopped, and wrote nothing more: a successor owns it.

    ``reason`` is the fence's; ``epoch`` was this segment's last; ``holder`` and
    ``holder_epoch`` describe the present owner where it is known. The run itself is fine.
    """

    code = "superseded"

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str,
        reason: RefusalReason,
        epoch: int,
        holder: str | None = None,
        holder_epoch: int | None = None,
    ) -> None:
        if message is None:
            then = "its present owner continues the run: nothing to do here"
            if holder is None:
                then = "it has no holder now: resume it to continue, if it still exists"
            to = f" to {holder!r} under epoch {holder_epoch}" if holder is not None else ""
            message = (
                f"run {run_id!r}: this segment (epoch {epoch}) lost the run{to} ({reason}) and "
                f"has stopped; {then}"
            )
        super().__init__(message, run_id=run_id)
        self.reason: RefusalReason = reason
        self.epoch = epoch
        self.holder = holder
        self.holder_epoch = holder_epoch


class SettlementError(RunError):
    """The body ended but its outcome could not be recorded; resume the run to settle it."""

    code = "settlement"


class StepFailedError(RunError):
    """A step failed for good, after its retries.

    ``step`` is its name, ``error_type`` the class that it raised, ``attempts`` how often
    it was tried in the segment that gave up, ``members`` what an exception group held. All
    of it, and the notes, come from the journal, in the first life too: ``__cause__`` is None.
    """

    code = "step-failed"

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        step: str,
        error_type: str,
        attempts: int = 1,
        members: tuple[FailureMember, ...] = (),
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.step = step
        self.error_type = error_type
        self.attempts = attempts
        self.members = members


class RunFailedError(RunError):
    """The body raised; ``error_type`` is the class that it raised."""

    code = "run-failed"

    def __init__(self, message: str, *, run_id: str | None = None, error_type: str) -> None:
        super().__init__(message, run_id=run_id)
        self.error_type = error_type


class RunTimeoutError(RunError):
    """The run was not over at its deadline."""

    code = "run-timeout"


class RunCancelledError(RunError):
    """The run was cancelled, or deleted from the inside."""

    code = "run-cancelled"


class JournalCompatibilityError(RunError):
    """The journal was written under a hash version outside this library's window.

    ``found`` lists the versions met, ``window`` is what this library reads and writes.
    Nothing was appended: run it with the version that wrote it.
    """

    code = "journal-compatibility"

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        found: tuple[int, ...],
        window: tuple[int, int],
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.found = found
        self.window = window


class NonDeterminismError(RunError):
    """The body took another way than its journal says it took before.

    ``scope``, ``key`` and ``ordinal`` name the call.
    """

    code = "non-determinism"

    def __init__(
        self, message: str, *, run_id: str | None = None, scope: str, key: str, ordinal: int
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.scope = scope
        self.key = key
        self.ordinal = ordinal


class InvalidResolutionError(RunError):
    """A resolution that does not fit what a run waits for, or waits for nothing any more.

    ``path`` names the place inside the value that does not fit the schema.
    """

    code = "invalid-resolution"

    def __init__(
        self, message: str, *, run_id: str | None = None, key: str, path: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id)
        self.key = key
        self.path = path


class NotAskedError(InvalidResolutionError):
    """The run does not wait for that key, or not at that place, yet: it may later."""

    code = "not-asked"

    @property
    def retryable(self) -> bool:
        """True: the run may ask for it yet."""
        return True


class AlreadyAnsweredError(InvalidResolutionError):
    """That wait is answered: the first answer counts, and this one changed nothing."""

    code = "already-answered"
