"""Journal lines: how a record is written, and what the end of a file is worth.

One record is one line of JSON. A payload stands there as it is; one that holds a line break
(JSON allows it between members) stands there as a JSON string of its text, so that it still
comes back byte for byte. A line that begins with ``"`` is of that kind: no payload does.

Nothing here reads or writes. Two questions are answered: is this line a record
(`decode_line`), and what is to be made of the last line of a file (`classify_tail`). A crash
leaves its mark at the end alone, since every append follows a whole one:

============  ==========================================================================
``clean``     a record and its line break
``unended``   a whole record without its line break: kept
``torn``      the beginning of a record: dropped; its append was not acknowledged
``nul-run``   bytes that the file system never wrote: dropped, as torn is
``joined``    records on one line, as a writer leaves them that appends behind a torn one:
              what is whole is kept, what is torn is dropped; where a whole one may as well be
              a part of the torn one, nothing is guessed: it is damage
============  ==========================================================================

A last line that *ends* and is not a record is none of these. Its append may have been
acknowledged, so it is damage, as anywhere else in the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rulvar.core.checks import MAX_INTEGER
from rulvar.core.records import JournalRecord
from rulvar.core.wire import Digits, InvalidJSONError, parse_json

__all__ = [
    "DamageKind",
    "LastLine",
    "LineError",
    "Parts",
    "Tail",
    "TailKind",
    "classify_tail",
    "decode_line",
    "encode_line",
    "last_line",
    "refuse_order",
    "salvage",
    "take_apart",
]

DamageKind = Literal["nul-run", "joined", "undecodable", "no-record", "out-of-order"]
"""What is wrong with a line that should be a record and is not."""

TailKind = Literal["clean", "unended", "torn", "nul-run", "joined"]

_BEGINNING = re.compile(r'\{|"(?=\{|\\[nrt]| )')
_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHITE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_MOST_ATTEMPTS = 2_000


class LineError(ValueError):
    """A line is not a valid record; ``kind`` says how."""

    def __init__(self, kind: DamageKind, why: str) -> None:
        super().__init__(why)
        self.kind: DamageKind = kind


def encode_line(record: JournalRecord) -> bytes:
    """Return the record's line, with its line break."""
    payload = record.payload
    if b"\n" in payload or b"\r" in payload:
        payload = json.dumps(payload.decode("utf-8"), ensure_ascii=False).encode("utf-8")
    return payload + b"\n"


def decode_line(line: bytes) -> JournalRecord:
    """Return the record of a line without its line break. Raises `LineError`."""
    try:
        return _read(line)
    except InvalidJSONError as error:
        raise LineError(*_diagnose(line, str(error))) from error


def _read(line: bytes) -> JournalRecord:
    value = parse_json(line)
    payload = line
    if isinstance(value, str) and not isinstance(value, Digits):
        try:
            payload = value.encode("utf-8")
        except UnicodeEncodeError as error:
            message = "its text holds a lone surrogate"
            raise InvalidJSONError(message) from error
        value = parse_json(payload)
    seq = value.get("seq") if isinstance(value, dict) else None
    if type(seq) is not Digits or not seq.isdigit() or len(seq) > len(str(MAX_INTEGER)):
        kind: DamageKind = "no-record"
        raise LineError(kind, "it is not an object whose member 'seq' is written in digits")
    return JournalRecord(seq=int(seq), payload=payload)


def _diagnose(line: bytes, why: str) -> tuple[DamageKind, str]:
    if b"\0" in line:
        return "nul-run", "it holds NUL bytes, which no writer wrote"
    parts = take_apart(line)
    if parts.whole or parts.last is not None:
        return "joined", "it holds a record and more"
    return "undecodable", why


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last line of a journal is worth.

    ``records`` are kept, ``dropped`` counts the bytes that are not, and ``prefix`` is how
    many of the line's first bytes can stay as they are; None when the records have to be
    written anew, each on its own line.
    """

    kind: TailKind
    records: tuple[JournalRecord, ...]
    dropped: int = 0
    prefix: int | None = None


def classify_tail(line: bytes, *, ended: bool, after: int | None) -> Tail:
    """Say what to make of a last line, whose predecessor's seq is ``after``.

    ``ended`` tells whether a line break follows it. Raises `LineError` for damage.
    """
    tail = _classify(line, ended=ended)
    for record in tail.records:
        refuse_order(record.seq, after)
        after = record.seq
    return tail


class LastLine(NamedTuple):
    """A stretch of a journal, its last line apart; ``at`` is where that line begins."""

    before: list[bytes]
    line: bytes
    ended: bool
    at: int


def last_line(data: bytes) -> LastLine:
    """Split a stretch of a journal that begins with a line."""
    ended = data.endswith(b"\n")
    lines = (data[:-1] if ended else data).split(b"\n")
    return LastLine(lines[:-1], lines[-1], ended, len(data) - len(lines[-1]) - ended)


def refuse_order(seq: int, after: int | None) -> None:
    """Raise `LineError` when a seq is not above the one before it."""
    if after is not None and seq <= after:
        kind: DamageKind = "out-of-order"
        raise LineError(kind, f"its seq {seq} is not above {after}, which stands before it")


def _classify(line: bytes, *, ended: bool) -> Tail:
    if ended:
        try:
            return Tail("clean", (decode_line(line),), prefix=len(line))
        except LineError as error:
            if error.kind not in {"joined", "nul-run"}:
                raise
    elif not line:
        return Tail("clean", (), prefix=0)
    body = line.rstrip(b"\0")
    nuls = len(line) - len(body)
    if not body:
        return Tail("nul-run", (), nuls, 0)
    try:
        record = _read(body)
    except (InvalidJSONError, LineError):
        return _classify_parts(take_apart(body), nuls, ended=ended)
    return Tail("nul-run" if nuls else "unended", (record,), nuls, len(body))


def _classify_parts(parts: Parts, nuls: int, *, ended: bool) -> Tail:
    torn: Literal["nul-run", "torn"] = "torn"
    if nuls or b"\0" in parts.fragment:
        torn = "nul-run"
    if parts.last is not None and not _may_hold_a_value(parts.fragment):
        if b"\0" in parts.fragment:
            hidden: DamageKind = "nul-run"
            raise LineError(hidden, "a record follows NUL bytes, which may hide others")
        return Tail("joined", (*parts.whole, parts.last), len(parts.fragment) + nuls)
    if not parts.fragment:
        return Tail("joined", parts.whole, nuls)
    if ended and torn == "torn":
        kind: DamageKind = "joined"
        raise LineError(kind, "its last line is not a whole record, and yet ends")
    prefix = parts.whole_bytes if len(parts.whole) <= 1 else None
    fragment = len(parts.fragment) + parts.last_bytes
    return Tail(torn, parts.whole, nuls + fragment, prefix)


def _may_hold_a_value(fragment: bytes) -> bool:
    """Whether a JSON value may follow here: then what looks like a record may be a part of it."""
    text = fragment.decode("utf-8", "replace")
    in_string = _STRINGS.sub("", text).find('"') >= 0
    return not in_string and text.rstrip().endswith((":", "[", ",", "{"))


@dataclass(frozen=True, slots=True)
class Parts:
    """One line taken apart: whole records, then a fragment, then perhaps one more record."""

    whole: tuple[JournalRecord, ...]
    whole_bytes: int
    fragment: bytes = b""
    last: JournalRecord | None = None
    last_bytes: int = 0


def take_apart(line: bytes) -> Parts:
    """Find the whole records on one line.

    Those at its beginning are taken one by one; then, behind a fragment, the one that ends
    with the line. No other can be told from a part of a torn record's own value.
    """
    # A torn record may end inside a character; what stands around it must still be found.
    text = line.decode("utf-8", "surrogateescape")
    whole: list[JournalRecord] = []
    at = 0
    while at < len(text):
        piece = _whole_at(text, at)
        if piece is None:
            break
        at, record = piece
        whole.append(record)
    kept = tuple(whole)
    size = len(_raw(text[:at]))
    if at == len(text):
        return Parts(kept, size)
    for tried, begin in enumerate(_BEGINNING.finditer(text, at + 1)):
        if tried == _MOST_ATTEMPTS:
            break
        piece = _whole_at(text, begin.start())
        if piece is not None and piece[0] == len(text):
            fragment, last = _raw(text[at : begin.start()]), _raw(text[begin.start() :])
            return Parts(kept, size, fragment, piece[1], len(last))
    return Parts(kept, size, _raw(text[at:]))


def salvage(line: bytes) -> tuple[tuple[JournalRecord, ...], bytes]:
    """Return the records of a line that is none, and the rest of it, for a repair."""
    parts = take_apart(line.rstrip(b"\0"))
    if parts.last is None or _may_hold_a_value(parts.fragment):
        return parts.whole, line[parts.whole_bytes :]
    return (*parts.whole, parts.last), parts.fragment


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _whole_at(text: str, at: int) -> tuple[int, JournalRecord] | None:
    """Return where the whole record that begins at ``at`` ends, and the record."""
    try:
        _, end = _DECODER.raw_decode(text, _end_of_white(text, at))
        end = _end_of_white(text, end)
        return end, _read(_raw(text[at:end]))
    except (ValueError, RecursionError):
        return None


def _end_of_white(text: str, at: int) -> int:
    found = _WHITE.match(text, at)
    return at if found is None else found.end()
