"""What a segment hands back: a journalled outcome, or what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.errors import (
    RunCancelledError,
    RunError,
    RunFailedError,
    RunTimeoutError,
    StepFailedError,
)
from rulvar.core.failures import members_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rulvar.core.failures import FailureMember

__all__ = ["Failure", "RunOutcome", "Suspension", "run_timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a step or a run failed, in a form that crosses the journal.

    ``code`` is stable (``step-failed``, ``run-failed``); ``error_type`` is the class that
    was raised; ``step`` and ``attempts`` are there for a failed step. ``notes`` are those of
    the exception, ``members`` what an exception group was made of, ``traceback`` is text for
    operators. All of them are bounded.
    """

    code: str
    message: str
    error_type: str
    step: str | None = None
    attempts: int | None = None
    notes: tuple[str, ...] = ()
    members: tuple[FailureMember, ...] = ()
    traceback: str = field(default="", repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the entry's ``error`` member."""
        data: dict[str, object] = {"type": self.error_type}
        if self.step is not None:
            data["step"] = self.step
        if self.attempts is not None:
            data["attempts"] = self.attempts
        if self.notes:
            data["notes"] = list(self.notes)
        if self.members:
            data["members"] = [member.to_json() for member in self.members]
        if self.traceback:
            data["traceback"] = self.traceback
        return {"code": self.code, "message": self.message, "retryable": False, "data": data}

    @classmethod
    def from_json(cls, error: Mapping[str, object]) -> Failure:
        """Read an entry's ``error`` member, tolerating what another writer left out."""
        data = error.get("data")
        facts = data if isinstance(data, dict) else {}
        step, attempts, notes = facts.get("step"), facts.get("attempts"), facts.get("notes")
        return cls(
            code=str(error.get("code", "run-failed")),
            message=str(error.get("message", "")),
            error_type=str(facts.get("type", "unknown")),
            step=step if isinstance(step, str) else None,
            attempts=attempts if isinstance(attempts, int) else None,
            notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
            members=members_from_json(facts.get("members")),
            traceback=str(facts.get("traceback", "")),
        )

    def to_error(self, run_id: str) -> RunError:
        """Return the exception that stands for this failure: the same one in every life."""
        error: RunError
        if self.code == StepFailedError.code:
            error = StepFailedError(
                self.message,
                run_id=run_id,
                step=self.step or "",
                error_type=self.error_type,
                attempts=self.attempts or 1,
                members=self.members,
            )
        elif self.code == RunTimeoutError.code:
            error = RunTimeoutError(self.message, run_id=run_id)
        else:
            error = RunFailedError(self.message, run_id=run_id, error_type=self.error_type)
        for note in self.notes:
            error.add_note(note)
        return error


def run_timeout(deadline_at: str | None) -> Failure:
    """Return the failure of a run whose deadline has passed."""
    return Failure(
        code=RunTimeoutError.code,
        message=f"the run was not over at its deadline, {deadline_at}",
        error_type=RunTimeoutError.__name__,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """What a suspended run waits for: a key to resolve, or a deadline, or both.

    ``deadline_at`` is ISO 8601 UTC. ``seq`` names this wait and no other of the same key: give
    it to `Engine.resolve`.
    """

    kind: str
    key: str
    deadline_at: str | None
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a segment ended.

    ``status`` is the journalled one (``ok``, ``error``, ``cancelled``, ``exhausted``,
    ``suspended``), or ``running`` for a segment that was asked to stop and let the run go.
    ``executed`` counts the steps that ran in this segment, ``replayed`` the calls that the
    journal answered; ``epoch`` is this segment's last fencing token, None without a lease.
    """

    run_id: str
    status: str
    value: object = None
    error: Failure | None = None
    segment: int = 0
    epoch: int | None = None
    executed: int = 0
    replayed: int = 0
    waiting_for: tuple[Suspension, ...] = ()
    wake_at: str | None = None

    def unwrap(self) -> object:
        """Return the body's result.

        Raises `StepFailedError` or `RunFailedError` for a failed run, `RunCancelledError`
        for a cancelled one, and `RunError` for one that is not finished.
        """
        if self.status == "ok":
            return self.value
        if self.status == "error" and self.error is not None:
            raise self.error.to_error(self.run_id)
        if self.status == "cancelled":
            message = f"run {self.run_id!r} was cancelled"
            raise RunCancelledError(message, run_id=self.run_id)
        message = f"run {self.run_id!r} is {self.status}: it has no result"
        if self.status == "suspended":
            keys = ", ".join(repr(s.key) for s in self.waiting_for) or "nothing it names"
            message += f" yet; it waits for {keys}"
        raise RunError(message, run_id=self.run_id)
