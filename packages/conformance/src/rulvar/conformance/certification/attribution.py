"""Whose fault it is when a check ends in an error that it did not expect.

The checks are tried on sound stores, where none of them does. On another store the error came
out of one of its calls, or the check could not read what the store answered: the store broke
the clause, and the kit says so with the timeline instead of a traceback. What is left is an
error of the kit: its processes, its threads, the place where the store was to be opened. A
module of the kit that handles no answer of a store says so: ``HANDLES_ANSWERS = False``.
"""

from __future__ import annotations

import linecache
import os
from typing import TYPE_CHECKING

from rulvar.conformance.harness.children import Child, ChildDied
from rulvar.conformance.harness.code_origin import in_kit, in_stdlib, short_name
from rulvar.core.errors import RulvarError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Fault", "fault_of"]

Fault = tuple[str, str]
"""What was expected of the store, and what came instead."""

_HYPOTHESIS = f"{os.sep}hypothesis{os.sep}"
_STUMBLES = (TypeError, AttributeError, LookupError, ValueError)
"""What reading a malformed answer raises."""


def fault_of(error: Exception) -> Fault | None:
    """Return what the store did wrong, or None when the error is the kit's own."""
    frames = list(_frames(error))
    here = next((n for n in reversed(range(len(frames))) if _in_kit(frames[n][0])), None)
    if here is None or isinstance(error, ChildDied):
        return None
    frame, line = frames[here]
    where = f"{short_name(frame.f_code.co_filename)}:{line}: {_source(frame, line)}"
    told = f"{_told(error)} ({where})"
    if here + 1 < len(frames):
        return _fault_below(frames[here + 1][0], told)
    if frame.f_code is Child.finish.__code__:
        return ("the call in the other process returns", _told(error))
    if not frame.f_globals.get("HANDLES_ANSWERS", True):
        return None
    if isinstance(error, RulvarError) or type(error).__module__ != "builtins":
        return ("the call returns", told)
    stumbled = isinstance(error, _STUMBLES)
    return ("an answer of the type that the SPI says", told) if stumbled else None


def _fault_below(frame: FrameType, told: str) -> Fault | None:
    """Judge an error that came out of what the kit had called."""
    name = frame.f_code.co_filename
    if _HYPOTHESIS in name or in_stdlib(name):
        return None
    return ("the call returns, with an answer of the type that the SPI says", told)


def _told(error: Exception) -> str:
    kind = type(error)
    if isinstance(error, RulvarError):
        return f"{kind.__name__}: {error}"
    return f"{kind.__module__}.{kind.__qualname__}: {error}"


def _frames(error: Exception) -> Iterator[tuple[FrameType, int]]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame, step.tb_lineno
        step = step.tb_next


def _in_kit(frame: FrameType) -> bool:
    return in_kit(frame.f_code.co_filename)


def _source(frame: FrameType, line: int) -> str:
    return linecache.getline(frame.f_code.co_filename, line).strip() or frame.f_code.co_name
