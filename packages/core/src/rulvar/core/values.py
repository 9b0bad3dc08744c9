"""Values that cross the journal are I-JSON, and their hashes are over RFC 8785 form.

I-JSON (RFC 7493): integers within plus or minus 2^53-1, finite floats, string keys, no lone
surrogates. Anything else is refused with the path inside the value (contract.md#values):
what one language writes another must read back as the same value.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NoReturn, cast

from rulvar.core.errors import ConfigError
from rulvar.core.wire import json_text, parse_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MAX_INTEGER", "check_value", "content_hash", "normalize"]

MAX_INTEGER = 2**53 - 1
MAX_VALUE_BYTES = 15 * 1024 * 1024
"""How large a value may be as JSON: what an entry adds stays within the payload's 16 MiB."""

MAX_VALUE_DEPTH = 180
"""How deep a value may nest: what an entry wraps around it stays within the payload's 200."""


def check_value(value: object, *, path: str = "$") -> None:
    """Refuse what is not I-JSON, naming the place inside the value.

    Tuples count as arrays. Raises `ConfigError` whose ``path`` is a JSONPath-like place
    (``$.files[3].size``).
    """
    _check(value, path, 0)


def _check(value: object, path: str, depth: int) -> None:  # noqa: C901 - one branch a type
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        _check_text(value, path, "the string")
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            _refuse(path, "an integer outside plus or minus 2^53-1", "send it as a string")
    elif isinstance(value, float):
        if not math.isfinite(value):
            _refuse(path, f"{value}", "JSON has no such number: use null or a string")
    elif isinstance(value, list | tuple):
        _check_level(path, depth)
        for index, item in enumerate(cast("Sequence[object]", value)):
            _check(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, dict):
        _check_level(path, depth)
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                _refuse(path, f"the key {key!r} of type {type(key).__name__}", "use string keys")
            _check_text(key, path, "the key")
            _check(item, f"{path}.{key}", depth + 1)
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        _refuse(path, f"a value of type {kind}", "return what JSON can hold")


def _check_text(text: str, path: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        _refuse(
            path,
            f"{what} with a lone surrogate at {error.start}",
            "decode it with errors='replace'",
        )


def _check_level(path: str, depth: int) -> None:
    if depth >= MAX_VALUE_DEPTH:
        shown = path if len(path) <= 60 else f"{path[:40]}..."  # noqa: PLR2004
        _refuse(
            shown,
            f"a value nested more than {MAX_VALUE_DEPTH} deep",
            "flatten it, or break the cycle",
        )


def _refuse(path: str, what: str, remedy: str) -> NoReturn:
    message = f"{path}: {what} cannot cross the journal: {remedy}"
    raise ConfigError(message, path=path)


def normalize(value: object, *, path: str = "$") -> object:
    """Return ``value`` as a later replay will see it: checked, encoded and decoded.

    A body always receives this form, on the first run too, so that a replay cannot differ.
    Raises `ConfigError` as `check_value` does.
    """
    check_value(value, path=path)
    text = json_text(value)
    if len(text) > MAX_VALUE_BYTES // 4 and len(text.encode("utf-8")) > MAX_VALUE_BYTES:
        _refuse(
            path, f"a value of over {MAX_VALUE_BYTES} bytes of JSON", "keep it in a blob or file"
        )
    return parse_value(text)


def content_hash(value: object) -> str:
    """Return ``sha256:`` and the hash of the value's RFC 8785 form.

    Raises `ConfigError` as `check_value` does.
    """
    import rfc8785  # noqa: PLC0415 - only runs need it, not stores

    check_value(value)
    canonical = rfc8785.dumps(cast("dict[str, object]", _plain(value)))  # type: ignore[arg-type]
    return "sha256:" + hashlib.sha256(canonical).hexdigest()


def _plain(value: object) -> object:
    return parse_value(json_text(value))
