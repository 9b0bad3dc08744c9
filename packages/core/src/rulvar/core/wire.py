"""JSON on disk, in one place: the strict reader, the catalogue row, and times.

The strict reader takes RFC 8259 and nothing else. The standard library's takes UTF-16, a
byte order mark, NaN, and a member name twice; SQLite's takes JSON5 and stops at a NUL. A
payload that one reader takes and another refuses is a run that one language cannot load, so
the narrowest reading is checked at the front door (promise A4).
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn, cast

from rulvar.core.formatting import format_time
from rulvar.core.records import Blocked, JsonMembers, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAX_DEPTH",
    "Digits",
    "InvalidJSONError",
    "decode_meta",
    "encode_meta",
    "format_time",
    "json_text",
    "parse_json",
    "parse_time",
    "parse_value",
]

MAX_DEPTH = 200
"""How deep arrays and objects may nest in a payload or a row."""

# Possessive, and the closing quote optional: an unclosed string is read over once, not from
# each of its escaped quotes again.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_MAX_COUNT = 2**53 - 1


class InvalidJSONError(ValueError):
    """The bytes are not JSON as this module takes it; the message says where and why."""


class Digits(str):
    """An integer literal as it was written: no size limit, no other spelling hidden."""

    __slots__ = ()


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                message = f"the member name {name!r} occurs twice in one object"
                raise InvalidJSONError(message)
            seen.add(name)
    return members


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON (RFC 8259)"
    raise InvalidJSONError(message)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=Digits, parse_constant=_refuse_constant
)
_VALUE_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                message = f"nested more than {MAX_DEPTH} deep"
                raise InvalidJSONError(message)
        elif mark in "]}":
            depth -= 1


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}"
        raise InvalidJSONError(message) from error


_WHITE = " \t\n\r"
"""JSON's white space, which is less than Python's."""


def _decode(data: bytes | str, decoder: json.JSONDecoder) -> object:
    text = _text(data)
    if text.startswith("\ufeff"):
        message = "begins with a byte order mark"
        raise InvalidJSONError(message)
    # Counting is enough for nearly every payload; the scan is for the rest.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    try:
        if text[:1] == "{":  # as nearly every payload: no need to look for white space before it
            value, end = decoder.raw_decode(text)
            if end == len(text) or not text[end:].strip(_WHITE):
                return cast("object", value)
        return cast("object", decoder.decode(text))
    except InvalidJSONError:
        raise
    except ValueError as error:
        message = f"not JSON: {error}"
        raise InvalidJSONError(message) from error


def parse_json(data: bytes | str) -> object:
    """Read one JSON text strictly; integers come as `Digits`, so none is too long.

    Raises `InvalidJSONError` for anything that RFC 8259 does not allow, for bytes that are
    not UTF-8 or begin with a byte order mark, for a member name twice, and for more than
    `MAX_DEPTH` levels.
    """
    return _decode(data, _DECODER)


def parse_value(data: bytes | str) -> object:
    """Read one JSON text strictly, integers as ``int``.

    Raises `InvalidJSONError` as `parse_json` does, and for an integer of more digits than
    Python converts.
    """
    return _decode(data, _VALUE_DECODER)


def json_text(value: object) -> str:
    """Return ``value`` as compact JSON text; NaN and Infinity raise ``ValueError``."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# --- times -----------------------------------------------------------------------------


def parse_time(text: str) -> int:
    """Return an ISO 8601 time as Unix milliseconds; one without a zone is UTC.

    Raises ``ValueError`` when ``text`` is no such time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


# --- the catalogue row -------------------------------------------------------------------

_META_NAMES: dict[str, str] = {
    "run_id": "runId",
    "status": "status",
    "updated_at": "updatedAt",
    "name": "name",
    "tags": "tags",
    "workflow_name": "workflowName",
    "workflow_hash": "workflowHash",
    "workflow_source_ref": "workflowSourceRef",
    "segments": "segments",
    "genesis": "genesis",
    "args_provided": "argsProvided",
    "args_hash": "argsHash",
    "hash_version_low": "hashVersionLow",
    "hash_version_high": "hashVersionHigh",
    "wake_at": "wakeAt",
    "parent_run_id": "parentRunId",
    "workflow_version": "workflowVersion",
    "recoveries": "recoveries",
    "blocked": "blocked",
    "stopped": "stopped",
}
"""Field of `RunMeta` to member of the row, in the order of writing."""


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= mark <= "\udfff" for mark in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _is_blocked(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"reason", "since", "codes"}
        and _is_text(value["reason"])
        and _is_text(value["since"])
        and _is_texts(value["codes"])
    )


_META_TYPES: dict[str, Callable[[object], bool]] = {
    "tags": _is_texts,
    "segments": _is_count,
    "hash_version_low": _is_count,
    "hash_version_high": _is_count,
    "args_provided": _is_flag,
    "recoveries": _is_count,
    "blocked": _is_blocked,
    "stopped": _is_count,
}


def _from_row(value: object) -> object:
    """Return a member's value as the record holds it."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return Blocked(reason=value["reason"], since=value["since"], codes=tuple(value["codes"]))
    return value


def _to_row(value: object) -> object:
    """Return a field's value as the row holds it."""
    if isinstance(value, Blocked):
        return {"reason": value.reason, "since": value.since, "codes": list(value.codes)}
    return value


def encode_meta(meta: RunMeta) -> str:
    """Return the row's JSON text: what is known in a fixed order, then ``extra`` verbatim.

    A field that is None, and empty ``tags``, are left out. A member of ``extra`` under the
    name of a field that is written loses to the field.
    """
    parts: list[str] = []
    written: set[str] = set()
    for field, name in _META_NAMES.items():
        value: object = getattr(meta, field)
        if value is None or value == ():
            continue
        parts.append(f"{json_text(name)}:{json_text(_to_row(value))}")
        written.add(name)
    parts += [f"{json_text(n)}:{text}" for n, text in meta.extra.items() if n not in written]
    return "{" + ",".join(parts) + "}"


def decode_meta(run_id: str, data: bytes | str) -> RunMeta:
    """Read a row; a member that is unknown, or known with another type, goes to ``extra``.

    So does a known one whose value could not be written again (a lone surrogate, a count
    outside 0 to 2^53-1). ``run_id`` is the key that the row is stored under, and wins over
    the row's own. Raises `InvalidJSONError` when the row is not an object with a string
    ``status`` and a string ``updatedAt`` (promise M2).
    """
    text = _text(data)
    ours = _ours(run_id, text)
    if ours is not None:
        return ours
    members = dict(_members(text))
    known: dict[str, object] = {}
    for field, name in _META_NAMES.items():
        if name not in members:
            continue
        value = _plain_value(members[name])
        if _META_TYPES.get(field, _is_text)(value):
            known[field] = _from_row(value)
            del members[name]
    for field in ("status", "updated_at"):
        if field not in known:
            message = f"the row has no string member {_META_NAMES[field]!r}"
            raise InvalidJSONError(message)
    known["run_id"] = run_id
    members.pop("runId", None)
    return RunMeta(**known, extra=JsonMembers(members))  # type: ignore[arg-type] # checked above


def _ours(run_id: str, text: str) -> RunMeta | None:
    """Read a row that has nothing but known members of their own types, at one pass.

    Most rows are such. None is no answer: the row may be another writer's, or none at all.
    """
    try:
        members = parse_value(text)
    except InvalidJSONError:
        return None
    if not isinstance(members, dict) or not _REQUIRED <= members.keys() <= _FIELD_OF.keys():
        return None
    known: dict[str, object] = {}
    for name, value in members.items():
        field = _FIELD_OF[name]
        if not _META_TYPES.get(field, _is_text)(value):
            return None
        known[field] = _from_row(value)
    known["run_id"] = run_id
    return RunMeta(**known)  # type: ignore[arg-type] # checked above


_FIELD_OF = {name: field for field, name in _META_NAMES.items()}
_REQUIRED = frozenset({"status", "updatedAt"})


def _plain_value(text: str) -> object:
    """Return a member's value; None for an integer of more digits than Python converts."""
    try:
        return parse_value(text)
    except InvalidJSONError:
        return None


def _members(text: str) -> list[tuple[str, str]]:
    """Return an object's members, each value as the text that stands there."""
    if not isinstance(parse_json(text), dict):
        message = "the row is not a JSON object"
        raise InvalidJSONError(message)
    # The whole text is valid JSON: what follows only finds where the members' values stand.
    found: list[tuple[str, str]] = []
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        found.append((cast("str", name), text[start:end]))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


_FIELDS = {field.name for field in fields(RunMeta)} - {"extra"}
if set(_META_NAMES) != _FIELDS:  # pragma: no cover - a slip of ours, found at import
    _slip = f"the row's names miss or invent fields: {set(_META_NAMES) ^ _FIELDS}"
    raise AssertionError(_slip)
