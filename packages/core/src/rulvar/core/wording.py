"""How a message spells a moment, a number of things, and a command that can be pasted."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

__all__ = ["command_line", "counted", "format_time"]


def command_line(command: str, *arguments: str, options: str = "") -> str:
    """Return ``rulvar COMMAND ARGUMENTS OPTIONS`` as a POSIX shell takes it.

    ``command`` and ``options`` are ours and go out as they are. An argument is quoted where
    the shell would read more into it, and kept from being read as an option.
    """
    quoted = [shlex.quote(each) for each in arguments]
    if any(each.startswith("-") for each in arguments):
        words = ["rulvar", command, options, "--", *quoted]
    else:
        words = ["rulvar", command, *quoted, options]
    return " ".join(word for word in words if word)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, ``1 run`` or ``2 runs``; ``plural`` is for odd ones."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def format_time(unix_ms: int) -> str:
    """Return Unix milliseconds as ISO 8601 UTC with milliseconds and a ``Z``."""
    whole = datetime.fromtimestamp(unix_ms // 1000, tz=UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{unix_ms % 1000:03d}Z"
