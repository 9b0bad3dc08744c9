"""One journal entry and its JSON form (contract.md#journal-entries).

An entry either opens a call (``ref`` is None) or answers one (``ref`` is the opening entry's
seq). A call's identity is (scope, key, ordinal); the ``epoch`` says which tenure wrote the
entry and is never part of the identity. An opening keeps a short hash of the call's arguments,
and the caller's own key where it gave one (`replay`). Readers tolerate unknown kinds and fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal.losses import first_loss
from rulvar.core.wire import InvalidJSONError, json_text, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rulvar.core.records import JournalRecord

__all__ = [
    "HASH_VERSION",
    "HASH_WINDOW",
    "JournalEntry",
    "decode_entry",
    "encode_entry",
    "read_entries",
    "read_journal",
]

HASH_VERSION = 102
"""What this engine writes. Versions start at 101, outside the other engine's window."""

HASH_WINDOW = (102, 102)
"""The lowest and the highest hash version that this engine reads and continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """The engine's form of one record's payload."""

    seq: int
    kind: str
    status: str
    scope: str = ""
    key: str = ""
    ordinal: int = 0
    value: object = None
    error: Mapping[str, object] | None = None
    ref: int | None = None
    args_hash: str | None = None
    call_key: str | None = None
    deadline_at: str | None = None
    span_id: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    epoch: int | None = None
    hash_version: int = HASH_VERSION

    @property
    def identity(self) -> tuple[str, str, int]:
        """What a call is known by across replays."""
        return (self.scope, self.key, self.ordinal)


_NAMES = {
    "hash_version": "hashVersion",
    "seq": "seq",
    "ref": "ref",
    "args_hash": "argsHash",
    "call_key": "callKey",
    "scope": "scope",
    "key": "key",
    "ordinal": "ordinal",
    "kind": "kind",
    "status": "status",
    "value": "value",
    "error": "error",
    "deadline_at": "deadlineAt",
    "span_id": "spanId",
    "started_at": "startedAt",
    "ended_at": "endedAt",
    "epoch": "epoch",
}


def encode_entry(entry: JournalEntry) -> bytes:
    """Return the payload: compact JSON in UTF-8, what is None left out."""
    members = {
        name: value
        for field, name in _NAMES.items()
        if (value := getattr(entry, field)) is not None
    }
    return json_text(members).encode("utf-8")


def _corrupt(run_id: str, position: int, seq: int, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"run {run_id!r}: the record at position {position} (seq {seq}) is not a valid journal "
        f"entry: {why}; nothing was changed: audit the run",
        run_id=run_id,
        position=position,
    )


_TEXT = (str, type(None))
_TEXTS = (
    "kind",
    "status",
    "scope",
    "key",
    "argsHash",
    "callKey",
    "deadlineAt",
    "spanId",
    "startedAt",
    "endedAt",
)
_INTEGERS = ("ordinal", "ref", "epoch", "hashVersion")


def decode_entry(run_id: str, position: int, record: JournalRecord) -> JournalEntry:
    """Read one record.

    Raises `StoreCorruptError` with ``run_id`` and ``position`` when the payload is no JSON
    object or a known member has another type than its own.
    """
    try:
        members = parse_value(record.payload)
    except InvalidJSONError as error:
        raise _corrupt(run_id, position, record.seq, str(error)) from error
    if not isinstance(members, dict):
        raise _corrupt(run_id, position, record.seq, "not a JSON object")
    for name in _TEXTS:
        if not isinstance(members.get(name), _TEXT):
            raise _corrupt(run_id, position, record.seq, f"its member {name!r} is not a string")
    for name in _INTEGERS:
        value = members.get(name, 0)
        if value is not None and type(value) is not int:
            raise _corrupt(run_id, position, record.seq, f"its member {name!r} is not an integer")
    error_member = members.get("error")
    if error_member is not None and not isinstance(error_member, dict):
        raise _corrupt(run_id, position, record.seq, "its member 'error' is not an object")
    known = {
        field: members[name]
        for field, name in _NAMES.items()
        if members.get(name) is not None and name != "seq"
    }
    known.setdefault("kind", "")
    known.setdefault("status", "")
    known.setdefault("hash_version", 0)
    return JournalEntry(seq=record.seq, **known)


def read_entries(run_id: str, records: Iterable[JournalRecord]) -> list[JournalEntry]:
    """Read every record of a journal in its order, whether or not some are missing.

    Raises `StoreCorruptError` as `decode_entry` does.
    """
    return [decode_entry(run_id, position, record) for position, record in enumerate(records)]


def read_journal(run_id: str, records: Iterable[JournalRecord]) -> list[JournalEntry]:
    """Read a whole journal in its order, and see that nothing of this engine's is missing.

    Raises `StoreCorruptError` as `decode_entry` does, and for lost records (`first_loss`).
    """
    entries = read_entries(run_id, records)
    loss = first_loss(entries)
    if loss is not None:
        message = (
            f"run {run_id!r}: records are missing from its journal: {loss.message}; nothing was "
            "changed and nothing is executed, for what they said may be a step that was paid: "
            "restore the journal, or audit the run and start another one"
        )
        raise StoreCorruptError(message, run_id=run_id, position=loss.position)
    return entries
