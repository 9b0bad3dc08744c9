"""JSON values from the command line: as text, from a file, or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from rulvar.core.errors import ConfigError
from rulvar.core.wire import InvalidJSONError, parse_value

__all__ = ["read_value"]


def read_value(given: str, *, what: str) -> object:
    """Return the JSON value that ``given`` stands for: JSON text, ``@FILE``, or ``-``.

    ``what`` names the option or argument in messages. Raises `ConfigError` when the file
    cannot be read, and when the text is not one strict JSON value.
    """
    if given == "-":
        source, data = "standard input", sys.stdin.buffer.read()
    elif given.startswith("@"):
        source, data = given[1:], _read_file(given[1:], what)
    else:
        source, data = "", given.encode("utf-8", "surrogateescape")
    try:
        return parse_value(data)
    except InvalidJSONError as error:
        where = f" from {source}" if source else f" {given!r}"
        message = (
            f"{what}{where} is not one JSON value: {error}: quote it for the shell, as in "
            '\'{"folder": "src"}\', or use @FILE'
        )
        raise ConfigError(message) from error


def _read_file(name: str, what: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        message = f"{what} cannot be read from {name!r}: {error.strerror}: name a readable file"
        raise ConfigError(message) from error
