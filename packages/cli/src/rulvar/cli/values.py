"""JSON values from the command line: as text, from a file, or from standard input."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from rulvar.core.errors import ConfigError
from rulvar.core.wire import InvalidJSONError, parse_value

__all__ = ["read_value"]

_OPENINGS = ("{", "[", '"', "'")
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}


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
        remedy = "correct it; a string stands in double quotes" if source else _as_typed(given)
        message = f"{what}{where} is not one JSON value: {error}: {remedy}"
        raise ConfigError(message) from error


def _as_typed(given: str) -> str:
    """Return how to type the value that was probably meant."""
    if given in _PYTHON_NAMES:
        return f"in JSON it is {_PYTHON_NAMES[given]}"
    if given.startswith(_OPENINGS) or not given.isprintable():
        return 'quote it for the shell, as in \'{"folder": "src"}\', or use @FILE'
    text = json.dumps(given, ensure_ascii=False)
    return f"for the string, type {shlex.quote(text)}"


def _read_file(name: str, what: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        message = f"{what} cannot be read from {name!r}: {error.strerror}: name a readable file"
        raise ConfigError(message) from error
