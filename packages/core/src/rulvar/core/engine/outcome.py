"""What a segment hands back: a journalled outcome, or what it waits for."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.errors import (
    RunCancelledError,
    RunError,
    RunFailedError,
    StepFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Failure", "RunOutcome", "Suspension", "describe_error", "failure_of", "raised_at"]

_LONGEST_MESSAGE = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a step or a run failed, in a form that crosses the journal.

    ``code`` is stable (``step-failed``, ``run-failed``); ``error_type`` is the class that
    was raised; ``step`` and ``attempts`` are there for a failed step.
    """

    code: str
    message: str
    error_type: str
    step: str | None = None
    attempts: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the entry's ``error`` member."""
        data: dict[str, object] = {"type": self.error_type}
        if self.step is not None:
            data["step"] = self.step
        if self.attempts is not None:
            data["attempts"] = self.attempts
        return {"code": self.code, "message": self.message, "retryable": False, "data": data}

    @classmethod
    def from_json(cls, error: Mapping[str, object]) -> Failure:
        """Read an entry's ``error`` member, tolerating what another writer left out."""
        data = error.get("data")
        facts = data if isinstance(data, dict) else {}
        step, attempts = facts.get("step"), facts.get("attempts")
        return cls(
            code=str(error.get("code", "run-failed")),
            message=str(error.get("message", "")),
            error_type=str(facts.get("type", "unknown")),
            step=step if isinstance(step, str) else None,
            attempts=attempts if isinstance(attempts, int) else None,
        )

    def to_error(self, run_id: str) -> RunError:
        """Return the exception that stands for this failure."""
        if self.code == StepFailedError.code:
            return StepFailedError(
                self.message,
                run_id=run_id,
                step=self.step or "",
                error_type=self.error_type,
                attempts=self.attempts or 1,
            )
        return RunFailedError(self.message, run_id=run_id, error_type=self.error_type)


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return an exception's class and message, as text that crosses the journal."""
    kind = type(error)
    name = _utf8(kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind))
    try:
        text = _utf8(str(error))
    except Exception as unreadable:  # noqa: BLE001 - the failure must be told all the same
        text = f"its message cannot be read: {type(unreadable).__name__}"
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}... ({len(text)} characters)"
    return name, text


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _qualified(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def failure_of(error: BaseException) -> Failure:
    """Return the failure of a body that raised."""
    if isinstance(error, StepFailedError):
        return Failure(
            code=StepFailedError.code,
            message=str(error),
            error_type=error.error_type,
            step=error.step,
            attempts=error.attempts,
        )
    name, text = describe_error(error)
    return Failure(code=RunFailedError.code, message=f"{name}: {text}", error_type=name)


def raised_at(error: BaseException, body: Callable[..., object]) -> str:
    """Return the last line of the body's own file that an exception came by, ``FILE:LINE``.

    Of a failed step it is the step's line, where that is in this file; else the body's.
    Empty where the body's file is not known, or was not come by.
    """
    function = inspect.unwrap(body)
    if not inspect.isfunction(function):
        return ""
    file = function.__code__.co_filename
    step = error.__cause__ if isinstance(error, StepFailedError) else None
    for each in (step, error):
        frames = traceback.walk_tb(None if each is None else each.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == file]
        if lines:
            return f"{file}:{lines[-1]}"
    return ""


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
