"""Durations as applications give them: seconds as a number, or a `timedelta`."""

from __future__ import annotations

import math
from datetime import timedelta

from rulvar.core.errors import ConfigError

__all__ = ["Duration", "milliseconds_of", "positive_seconds_of", "seconds_of"]

Duration = float | timedelta

_LONGEST_SECONDS = 100 * 365 * 24 * 3600


def seconds_of(what: str, duration: object) -> float:
    """Return a duration in seconds. Raises `ConfigError` for none, or one over a hundred years."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        message = f"{what} must be seconds (a number) or a timedelta, not {duration!r}"
        raise ConfigError(message)
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_SECONDS:
        message = f"{what} must be between 0 and {_LONGEST_SECONDS} seconds, not {duration!r}"
        raise ConfigError(message)
    return seconds


def positive_seconds_of(what: str, duration: object) -> float:
    """Return a duration above 0 in seconds. Raises as `seconds_of`."""
    seconds = seconds_of(what, duration)
    if not seconds:
        message = f"{what} must be above 0, not {duration!r}"
        raise ConfigError(message)
    return seconds


def milliseconds_of(what: str, duration: object) -> int:
    """Return a duration in whole milliseconds. Raises as `seconds_of`."""
    return round(seconds_of(what, duration) * 1000)
