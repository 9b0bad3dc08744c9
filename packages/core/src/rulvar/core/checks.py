"""The front door: every argument of every store call is checked here, before any I/O.

One module, so that the same id is taken or refused by every store in the same words
(contract.md#ids, contract.md#records). Each check returns what it was given, or raises
`ConfigError` naming the value and the remedy; none reads or writes anything.
"""

from __future__ import annotations

import unicodedata
from typing import NoReturn, TypeGuard

from rulvar.core.errors import ConfigError
from rulvar.core.records import Blocked, JournalRecord, JsonMembers, Lease, RunFilter, RunMeta
from rulvar.core.values import MAX_INTEGER
from rulvar.core.wire import Digits, InvalidJSONError, encode_meta, parse_json

__all__ = [
    "MAX_BLOB_BYTES",
    "MAX_INTEGER",
    "MAX_META_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_TTL_MS",
    "check_after_seq",
    "check_blob",
    "check_build",
    "check_call_name",
    "check_epoch",
    "check_filter",
    "check_integer",
    "check_lease",
    "check_limit",
    "check_meta",
    "check_owner",
    "check_record",
    "check_ref",
    "check_run_id",
    "check_seq",
    "check_ttl_ms",
    "check_version",
    "check_workflow_name",
    "run_of_ref",
]

MAX_ID_LENGTH = 200
_DOTS = frozenset({".", ".."})
MAX_REF_LENGTH = 1000
MAX_TAGS = 64
MAX_META_BYTES = 64 * 1024
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_TTL_MS = 2**31 - 1


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"  # noqa: PLR2004


def _check_text(what: str, value: object, *, longest: int = MAX_ID_LENGTH) -> str:
    if not isinstance(value, str):
        _refuse(f"{what} must be a string, not {_shown(value)}")
    if len(value) > longest:
        _refuse(f"{what} is at most {longest} code points, not {len(value)}: {_shown(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(f"{what} {_shown(value)} contains a lone surrogate: use valid Unicode text")
    return value


def _check_name(what: str, value: object) -> str:
    text = _check_text(what, value)
    if not text:
        _refuse(f"{what} must not be empty: give 1 to {MAX_ID_LENGTH} code points")
    if not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text):
        _refuse(f"{what} {_shown(text)} contains a control character: remove it")
    return text


def _is_plain_name(value: object) -> TypeGuard[str]:
    """Tell in few steps that nothing is wrong with a name; False says nothing."""
    # What is printable has no control character and no lone surrogate.
    return type(value) is str and value.isprintable() and 0 < len(value) <= MAX_ID_LENGTH


def check_run_id(run_id: object, /) -> str:
    """Take a run id: 1 to 200 code points, no ``/``, no control character, no lone surrogate.

    ``.`` and ``..`` are refused too. Raises `ConfigError`.
    """
    if _is_plain_name(run_id) and "/" not in run_id and run_id not in _DOTS:
        return run_id
    return _check_segment("a run id", run_id)


def _check_segment(what: str, value: object) -> str:
    text = _check_name(what, value)
    if "/" in text:
        _refuse(f"{what} must not contain '/': {_shown(text)}")
    if text in _DOTS:
        _refuse(f"{what} must not be {text!r}: choose another")
    return text


def check_ref(ref: object, /) -> str:
    """Take a blob's ref: a run id, then one or more segments under the same rules.

    At most 1,000 code points in all. Raises `ConfigError`.
    """
    text = _check_text("a ref", ref, longest=MAX_REF_LENGTH)
    segments = text.split("/")
    if len(segments) == 1:
        _refuse(f"a ref is '<run id>/<name>', not {_shown(text)}: add a name after the run id")
    for segment in segments:
        _check_segment(f"a segment of the ref {_shown(text)}", segment)
    return text


def check_workflow_name(name: object, /) -> str:
    """Take a workflow's name: 1 to 200 code points, no control character. Raises `ConfigError`."""
    return _check_name("a workflow's name", name)


def check_version(version: object, /) -> str:
    """Take a workflow's version: 1 to 200 code points, no control character.

    Raises `ConfigError`.
    """
    return _check_name("a workflow's version", version)


def check_build(build: object, /) -> str:
    """Take the name of a build, under the same rules. Raises `ConfigError`."""
    return _check_name("a build", build)


def check_call_name(name: object, /) -> str:
    """Take the name of a step or the key of a suspension, under the same rules.

    Raises `ConfigError`.
    """
    text = _check_name("the name of a call", name)
    if text.startswith("$"):
        _refuse(f"the name of a call must not begin with '$': {_shown(text)}; those are ours")
    return text


def run_of_ref(ref: str, /) -> str:
    """Return the run that a ref belongs to: the text before the first ``/``."""
    return ref.partition("/")[0]


def check_owner(owner: object, /) -> str:
    """Take an owner string: 1 to 200 code points, no control character. Raises `ConfigError`."""
    if _is_plain_name(owner):
        return owner
    return _check_name("an owner", owner)


def check_integer(what: str, value: object, lowest: int, highest: int, /) -> int:
    """Take an integer within bounds, and no bool. Raises `ConfigError` naming ``what``."""
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(f"{what} must be an integer, not {_shown(value)}")
    if not lowest <= value <= highest:
        _refuse(f"{what} must be {lowest} to {highest}, not {value}")
    return value


def check_seq(seq: object, /) -> int:
    """Take a seq: an integer from 0 to 2^53-1. Raises `ConfigError`."""
    return check_integer("a seq", seq, 0, MAX_INTEGER)


def check_after_seq(after_seq: object, /) -> int:
    """Take the seq to read after: an integer from -1 to 2^53-1. Raises `ConfigError`."""
    return check_integer("the seq to read after", after_seq, -1, MAX_INTEGER)


def check_epoch(epoch: object, /) -> int:
    """Take an epoch: an integer from 0 to 2^53-1. Raises `ConfigError`."""
    return check_integer("an epoch", epoch, 0, MAX_INTEGER)


def check_limit(limit: object, /) -> int:
    """Take a page's limit: an integer from 1 to 2^53-1. Raises `ConfigError`."""
    return check_integer("a limit", limit, 1, MAX_INTEGER)


def check_ttl_ms(ttl_ms: object, /) -> int:
    """Take a lease's time to live in milliseconds, 1 to 2147483647. Raises `ConfigError`."""
    return check_integer("lease_ttl_ms", ttl_ms, 1, MAX_TTL_MS)


def check_lease(lease: object, /) -> Lease:
    """Take a lease as a value: well-formed, whether or not it was ever granted.

    Raises `ConfigError` when it is no `Lease` or a field has the wrong form.
    """
    if not isinstance(lease, Lease):
        _refuse(f"a lease must be a Lease as acquire() returns it, not {_shown(lease)}")
    check_run_id(lease.run_id)
    check_owner(lease.owner)
    epoch = lease.epoch
    if type(epoch) is not int or not 0 <= epoch <= MAX_INTEGER:
        check_epoch(epoch)
    return lease


def check_record(record: object, /) -> JournalRecord:
    """Take a journal record whose payload is one JSON object with its ``seq`` (promise A4).

    UTF-8 without a byte order mark, RFC 8259 and nothing else around it than JSON white
    space, no member name twice, nested at most 200 deep, at most 16 MiB, ``seq`` written in
    digits alone and equal to ``record.seq``. Raises `ConfigError`.
    """
    if not isinstance(record, JournalRecord):
        _refuse(f"a record must be a JournalRecord, not {_shown(record)}")
    seq, payload = record.seq, record.payload
    if type(seq) is not int or not 0 <= seq <= MAX_INTEGER:
        check_seq(seq)
    if type(payload) is not bytes:
        _refuse(f"the payload of seq {seq} must be bytes, not {type(payload).__name__}")
    if len(payload) > MAX_PAYLOAD_BYTES:
        _refuse(
            f"the payload of seq {seq} has {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are "
            "allowed: keep large data in a blob and journal its ref"
        )
    try:
        value = parse_json(payload)
    except InvalidJSONError as error:
        _refuse(f"the payload of seq {seq} is not one JSON object: {error}")
    if not isinstance(value, dict):
        _refuse(f"the payload of seq {seq} must be a JSON object")
    inner = value.get("seq")
    if type(inner) is not Digits or not inner.isdigit():
        _refuse(f"the payload's member 'seq' must be written in digits alone, as {seq}")
    if inner != str(seq):  # JSON has no leading zeros
        _refuse(f"the payload's member 'seq' is {inner[:40]}, the record's is {seq}: make them one")
    return record


def check_blob(blob: object, /) -> bytes:
    """Take a blob: bytes, at most 256 MiB. Raises `ConfigError`."""
    if not isinstance(blob, bytes):
        _refuse(f"a blob must be bytes, not {type(blob).__name__}")
    if len(blob) > MAX_BLOB_BYTES:
        _refuse(f"a blob has at most {MAX_BLOB_BYTES} bytes, not {len(blob)}: split it")
    return blob


_TEXTS = (
    ("workflow_name", MAX_ID_LENGTH),
    ("workflow_hash", MAX_ID_LENGTH),
    ("workflow_source_ref", MAX_REF_LENGTH),
    ("genesis", MAX_ID_LENGTH),
    ("args_hash", MAX_ID_LENGTH),
    ("wake_at", MAX_ID_LENGTH),
    ("parent_run_id", MAX_ID_LENGTH),
    ("name", MAX_ID_LENGTH),
    ("workflow_version", MAX_ID_LENGTH),
)
_COUNTS = ("segments", "hash_version_low", "hash_version_high", "recoveries", "stopped")
_MAX_BLOCKED_CODES = 16
_MAX_REASON_LENGTH = 2_000


def check_meta(meta: object, /) -> str:
    """Take a catalogue row and return its JSON text, at most 64 KiB (promise M1).

    Raises `ConfigError` naming the field.
    """
    if not isinstance(meta, RunMeta):
        _refuse(f"a row must be a RunMeta, not {_shown(meta)}")
    check_run_id(meta.run_id)
    if not _check_text("status", meta.status):
        _refuse("status must not be empty: use one of rulvar.core.records.RUN_STATUSES")
    if not _check_text("updated_at", meta.updated_at):
        _refuse("updated_at must not be empty: use rulvar.core.format_time")
    for field, longest in _TEXTS:
        value: object = getattr(meta, field)
        if value is not None:
            _check_text(field, value, longest=longest)
    for field in _COUNTS:
        value = getattr(meta, field)
        if value is not None:
            check_integer(field, value, 0, MAX_INTEGER)
    if meta.args_provided is not None and not isinstance(meta.args_provided, bool):
        _refuse(f"args_provided must be a bool or None, not {_shown(meta.args_provided)}")
    _check_tags(meta.tags)
    _check_blocked(meta.blocked)
    _check_extra(meta.extra)
    text = encode_meta(meta)
    size = len(text.encode("utf-8"))
    if size > MAX_META_BYTES:
        _refuse(
            f"the row of run {meta.run_id!r} has {size} bytes, at most {MAX_META_BYTES} are "
            "allowed: keep large data in a blob"
        )
    return text


def _check_tags(tags: object) -> None:
    if not isinstance(tags, tuple):
        _refuse(f"tags must be a tuple of strings, not {_shown(tags)}")
    if len(tags) > MAX_TAGS:
        _refuse(f"a run has at most {MAX_TAGS} tags, not {len(tags)}")
    for tag in tags:
        _check_text("a tag", tag)


def _check_blocked(blocked: object) -> None:
    if blocked is None:
        return
    if not isinstance(blocked, Blocked):
        _refuse(f"blocked must be a Blocked or None, not {_shown(blocked)}")
    _check_text("blocked.reason", blocked.reason, longest=_MAX_REASON_LENGTH)
    _check_text("blocked.since", blocked.since)
    if not isinstance(blocked.codes, tuple):
        _refuse(f"blocked.codes must be a tuple of strings, not {_shown(blocked.codes)}")
    if len(blocked.codes) > _MAX_BLOCKED_CODES:
        _refuse(f"blocked.codes has at most {_MAX_BLOCKED_CODES}, not {len(blocked.codes)}")
    for code in blocked.codes:
        _check_text("a code of blocked", code)


def _check_extra(extra: object) -> None:
    if not isinstance(extra, JsonMembers):
        _refuse(f"extra must be a JsonMembers, not {_shown(extra)}")
    for name, text in extra.items():
        _check_text("the name of an extra member", name, longest=MAX_META_BYTES)
        try:
            parse_json(_check_text(f"extra[{name!r}]", text, longest=MAX_META_BYTES))
        except InvalidJSONError as error:
            _refuse(f"extra[{name!r}] is not JSON text: {error}")


def check_filter(run_filter: object, /) -> RunFilter:
    """Take a filter; None is the filter that matches every run. Raises `ConfigError`."""
    if run_filter is None:
        return RunFilter()
    if not isinstance(run_filter, RunFilter):
        _refuse(f"a filter must be a RunFilter or None, not {_shown(run_filter)}")
    statuses = run_filter.statuses
    if statuses is not None:
        if not isinstance(statuses, tuple):
            _refuse(f"statuses must be a tuple of strings or None, not {_shown(statuses)}")
        for status in statuses:
            _check_text("a status", status)
    if run_filter.name is not None:
        _check_text("name", run_filter.name)
    _check_tags(run_filter.tags)
    if run_filter.limit is not None:
        check_limit(run_filter.limit)
    if run_filter.after_run_id is not None:
        check_run_id(run_filter.after_run_id)
    return run_filter
