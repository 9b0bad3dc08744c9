"""An exception of the application's code as a failure, whatever its class does when it is asked."""

from __future__ import annotations

import inspect
import logging
import os
import traceback
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.engine.code.calling import original
from rulvar.core.engine.kernel.outcome import Failure
from rulvar.core.errors import RunFailedError, StepFailedError
from rulvar.core.failures import FailureMember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Caught", "caught", "describe_error", "failure_of", "one_line", "raised_at"]

_log = logging.getLogger("rulvar.engine")

_LONGEST_MESSAGE = 8_000
_LONGEST_PART = 1_000
"""Of a note, or of the message of one member of a group, in characters."""

_MOST_NOTES = 20
_MOST_MEMBERS = 50
_DEEPEST_GROUP = 5
_LONGEST_TRACEBACK = 16_000
_MOST_FRAMES = 40
_LONGEST_CHAIN = 10

_ENGINE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # noqa: PTH118, PTH120 - frames have strings


@dataclass(frozen=True, slots=True)
class Caught:
    """The failure of a call, and the lines that its exception came by in this life."""

    failure: Failure
    came_by: tuple[tuple[str, int], ...]

    def raised_again(self, error: BaseException) -> BaseException:
        """Return ``error``, made of what was journalled, as the one that stands for this."""
        _CAME_BY[error] = self.came_by
        return error


_CAME_BY: weakref.WeakKeyDictionary[BaseException, tuple[tuple[str, int], ...]] = (
    weakref.WeakKeyDictionary()
)
"""Beside the exceptions, not in them: a replay has no lines, and a body must not see that."""


def caught(name: str, error: BaseException, *, attempts: int = 1) -> Caught:
    """Return what a call came to that raised ``error``."""
    error = original(error)
    kind, text = describe_error(error)
    failure = Failure(
        code=StepFailedError.code,
        message=f"step {name!r} failed: {kind}: {text}",
        error_type=kind,
        step=name,
        attempts=attempts,
        notes=_notes(error),
        members=_members(error),
        traceback=_traceback(error),
    )
    _log.info("step %r failed after %d attempts\n%s", name, attempts, failure.traceback)
    return Caught(failure, _lines(error))


def failure_of(error: BaseException) -> Failure:
    """Return the failure of a body that raised."""
    error = original(error)
    if isinstance(error, StepFailedError):
        return Failure(
            code=StepFailedError.code,
            message=str(error),
            error_type=error.error_type,
            step=error.step,
            attempts=error.attempts,
            notes=_notes(error),
            members=error.members,
            traceback=_traceback(error),
        )
    name, text = describe_error(error)
    return Failure(
        code=RunFailedError.code,
        message=f"{name}: {text}",
        error_type=name,
        notes=_notes(error),
        members=_members(error),
        traceback=_traceback(error),
    )


# --- an exception as text, whatever its class does when it is asked -------------------------------


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return an exception's class and message, as text that crosses the journal.

    The message of a group names its members.
    """
    name, text = _own_text(error)
    members = "; ".join(map(str, _members(error)))
    if members:
        text = f"{text} [{members}]"
    return name, _shortened(text, _LONGEST_MESSAGE)


def one_line(error: BaseException) -> str:
    """Return class and message as one line for a log or an event."""
    name, text = describe_error(error)
    return _shortened(" ".join(f"{name}: {text}".split()), _LONGEST_PART)


def _own_text(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)
        name = _utf8(name)
    except BaseException:  # noqa: BLE001 - the failure must be told all the same
        name = "unknown"
    try:
        text = _utf8(str(error))
    except BaseException as unreadable:  # noqa: BLE001 - the same
        text = f"its message cannot be read: {type(unreadable).__name__}"
    return name, text


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _qualified(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _notes(error: BaseException) -> tuple[str, ...]:
    try:
        notes = list(getattr(error, "__notes__", ()))
    except BaseException:  # noqa: BLE001 - the same
        return ()
    told = [_shortened(_utf8(note), _LONGEST_PART) for note in notes if isinstance(note, str)]
    return tuple(told[:_MOST_NOTES])


def _members(error: BaseException) -> tuple[FailureMember, ...]:
    room = [_MOST_MEMBERS]
    return _members_within(error, room, _DEEPEST_GROUP)


def _members_within(
    error: BaseException, room: list[int], levels: int
) -> tuple[FailureMember, ...]:
    if not isinstance(error, BaseExceptionGroup) or not levels:
        return ()
    try:
        inner = tuple(error.exceptions)
    except BaseException:  # noqa: BLE001 - the same
        return ()
    told = []
    for each in inner:
        if not room[0]:
            break
        room[0] -= 1
        name, text = _own_text(each)
        members = _members_within(each, room, levels - 1)
        told.append(
            FailureMember(error_type=name, message=_shortened(text, _LONGEST_PART), members=members)
        )
    return tuple(told)


def _traceback(error: BaseException) -> str:
    """Return the traceback from the first line of user code on; its end, if it is long."""
    try:
        text = _utf8("".join(_told(error, [_MOST_MEMBERS], _DEEPEST_GROUP)))
    except BaseException:  # noqa: BLE001 - the same
        return ""
    cut = len(text) - _LONGEST_TRACEBACK
    return text if cut <= 0 else f"... ({cut} characters before)\n{text[cut:]}"


def _told(error: BaseException, room: list[int], levels: int) -> Iterator[str]:
    """Yield the tracebacks of an exception, of what came before it and of a group's members.

    Not by `traceback.TracebackException`: it looks at all of a group that holds one group
    many times, which never ends.
    """
    for each, why in reversed(list(_chain(error))):
        trace = each.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_ENGINE):
            trace = trace.tb_next
        if trace is not None:
            yield "Traceback (most recent call last):\n"
            yield from traceback.format_tb(trace, limit=-_MOST_FRAMES)
        name, text = _own_text(each)
        yield f"{name}: {_shortened(text, _LONGEST_PART)}\n"
        yield from (f"{note}\n" for note in _notes(each))
        if isinstance(each, BaseExceptionGroup) and levels:
            for member in each.exceptions[: room[0]]:
                room[0] -= 1
                lines = "".join(_told(member, room, levels - 1)).splitlines()
                yield from (f"  | {line}\n" for line in lines)
        if why:
            yield f"\n{why}\n\n"


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception and those behind it, with what each of those was to the one before."""
    why, seen = "", set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(following))
        yield following, why
        if following.__cause__ is not None or following.__suppress_context__:
            why = "The above exception was the direct cause of the following exception:"
            following = following.__cause__
        else:
            why = "During handling of the above exception, another exception occurred:"
            following = following.__context__


def _lines(error: BaseException) -> tuple[tuple[str, int], ...]:
    frames = traceback.walk_tb(error.__traceback__)
    return tuple((frame.f_code.co_filename, line) for frame, line in frames)


def raised_at(error: BaseException, body: Callable[..., object]) -> str:
    """Return the last line of the body's own file that an exception came by, ``FILE:LINE``.

    Of a failed step it is the step's line, where that is in this file; else the body's.
    Empty where the body's file is not known, or was not come by.
    """
    function = inspect.unwrap(body)
    if not inspect.isfunction(function):
        return ""
    file = function.__code__.co_filename
    error = original(error)
    steps = _CAME_BY.get(error, ()) if isinstance(error, StepFailedError) else ()
    for came_by in (steps, _lines(error)):
        lines = [line for where, line in came_by if where == file]
        if lines:
            return f"{file}:{lines[-1]}"
    return ""
