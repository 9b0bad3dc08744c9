"""Every read, each a function of one connection that fetches all it needs before it returns.

An open cursor pins the write-ahead log: it grows without bound behind a forgotten one.
Nothing here returns before its last row is in hand.
"""

from __future__ import annotations

import heapq
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from rulvar.core.checks import MAX_INTEGER, check_run_id
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.filters import matches
from rulvar.core.records import BlobStat, JournalRecord, LeaseInfo
from rulvar.core.wire import Digits, InvalidJSONError, decode_meta, parse_json
from rulvar.stores.sqlite import schema
from rulvar.stores.sqlite.lease_status import unreadable_lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

    from rulvar.core.records import RunFilter, RunMeta

__all__ = [
    "blob_info",
    "get_blob",
    "get_lease",
    "get_meta",
    "list_leases",
    "list_refs",
    "list_run_ids",
    "list_runs",
    "load",
    "load_after",
]

_PAGE = 500


@contextmanager
def _snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Let several statements see one state."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def load(connection: apsw.Connection, run_id: str) -> list[JournalRecord]:
    """Return the journal in the order of its appends."""
    rows = connection.execute(schema.LOAD, (run_id,)).fetchall()
    found: list[JournalRecord] = []
    before = -1
    for at, (payload,) in enumerate(rows):
        record = _record(run_id, at, cast("bytes", payload))
        if record.seq <= before:
            raise _disordered(run_id, at, record.seq, before)
        before = record.seq
        found.append(record)
    return found


def load_after(
    connection: apsw.Connection, run_id: str, after_seq: int, limit: int
) -> list[JournalRecord]:
    """Return at most ``limit`` records above ``after_seq``.

    What `load` refuses for a record that is asked for, or for one whose seq cannot be told,
    is refused here too.
    """
    with _snapshot(connection):
        odd = connection.execute(schema.WITHOUT_SEQ, (run_id,)).get
        if odd is not None:
            at = _position(connection, run_id, odd)
            raise _unreadable(run_id, at, "it has no member 'seq' that is written in digits")
        rows = connection.execute(schema.LOAD_AFTER, (run_id, after_seq, limit)).fetchall()
        found: list[JournalRecord] = []
        last_id, before = 0, after_seq
        for number, payload in cast("list[tuple[int, bytes]]", rows):
            try:
                record = _record(run_id, None, payload)
            except StoreCorruptError as error:
                error.position = _position(connection, run_id, number)
                raise
            if number <= last_id or record.seq <= before:
                later = max(number, last_id)
                raise _disordered(run_id, _position(connection, run_id, later), record.seq, before)
            last_id, before = number, record.seq
            found.append(record)
    return found


def _position(connection: apsw.Connection, run_id: str, number: object) -> int:
    return cast("int", connection.execute(schema.POSITION, (run_id, number)).get)


def _record(run_id: str, at: int | None, payload: bytes) -> JournalRecord:
    try:
        value = parse_json(payload)
    except InvalidJSONError as error:
        raise _unreadable(run_id, at, str(error)) from error
    seq = value.get("seq") if isinstance(value, dict) else None
    if type(seq) is not Digits or not seq.isdigit() or len(seq) > len(str(MAX_INTEGER)):
        raise _unreadable(run_id, at, "it is not an object whose member 'seq' is written in digits")
    return JournalRecord(seq=int(seq), payload=payload)


def _disordered(run_id: str, at: int, seq: int, before: int) -> StoreCorruptError:
    message = (
        f"record {at} in the journal of run {run_id!r} is out of order: seq {seq} stands beside "
        f"seq {before}; another writer left it there; audit the run"
    )
    return StoreCorruptError(message, run_id=run_id, position=at)


def _unreadable(run_id: str, at: int | None, why: str) -> StoreCorruptError:
    which = "a record" if at is None else f"record {at}"
    message = f"{which} in the journal of run {run_id!r} cannot be read: {why}; audit the run"
    return StoreCorruptError(message, run_id=run_id, position=at)


def get_meta(connection: apsw.Connection, run_id: str) -> RunMeta | None:
    """Return the row, or None."""
    rows = connection.execute(schema.GET_META, (run_id,)).fetchall()
    if not rows:
        return None
    try:
        return decode_meta(run_id, cast("bytes", rows[0][0]))
    except (InvalidJSONError, UnicodeDecodeError) as error:
        message = f"the row of run {run_id!r} cannot be read: {error}; audit the run"
        raise StoreCorruptError(message, run_id=run_id) from error


class _Source(NamedTuple):
    statement: str
    value: str | None


def list_runs(connection: apsw.Connection, wanted: RunFilter) -> list[RunMeta]:
    """Return matching rows; several pages, and several statuses, are one snapshot."""
    if wanted.statuses is not None and not wanted.statuses:
        return []
    with _snapshot(connection):
        rows = [_rows(connection, source, wanted) for source in _sources(wanted)]
    merged = list(heapq.merge(*rows, key=_run_id))
    return merged if wanted.limit is None else merged[: wanted.limit]


def _run_id(meta: RunMeta) -> str:
    # Code point order is UTF-8 byte order, for every string without lone surrogates.
    return meta.run_id


def _sources(wanted: RunFilter) -> list[_Source]:
    if wanted.name is not None:
        return [_Source(schema.LIST_BY_NAME, wanted.name)]
    if wanted.statuses is not None:
        statuses = dict.fromkeys(wanted.statuses)
        return [_Source(schema.LIST_BY_STATUS, status) for status in statuses]
    return [_Source(schema.LIST_ALL, None)]


def _rows(connection: apsw.Connection, source: _Source, wanted: RunFilter) -> list[RunMeta]:
    """Read pages until the limit is met by rows that match, or there are no more."""
    found: list[RunMeta] = []
    after = (wanted.after_run_id or "").encode()
    size = min(wanted.limit, _PAGE) if wanted.limit is not None else -1
    while True:
        bound = (after, size) if source.value is None else (after, size, source.value)
        page = connection.execute(source.statement, bound).fetchall()
        for run_id, payload in cast("list[tuple[bytes, bytes]]", page):
            meta = _readable(run_id, payload)
            if meta is not None and matches(meta, wanted):
                found.append(meta)
        full = wanted.limit is not None and len(found) >= wanted.limit
        if full or size < 0 or len(page) < size:
            return found
        after = cast("bytes", page[-1][0])


def _readable(run_id: bytes, payload: bytes) -> RunMeta | None:
    """Decode a row; one that is not readable is left out of listings (promise M2).

    So is one whose run id no call would take: `list_run_ids` names it, and the audit.
    """
    try:
        return decode_meta(check_run_id(run_id.decode("utf-8")), payload)
    except (ConfigError, InvalidJSONError, UnicodeDecodeError):
        return None


def get_lease(connection: apsw.Connection, run_id: str, now: int) -> LeaseInfo | None:
    """Return the run's lease row, live or not, or None."""
    rows = connection.execute(schema.GET_LEASE, (run_id,)).fetchall()
    if not rows:
        return None
    info = _lease_info(rows[0], now)
    if info is None:
        raise unreadable_lease(run_id, "a column of its row has another type")
    return info


def list_leases(
    connection: apsw.Connection, after_run_id: str | None, limit: int, now: int
) -> list[LeaseInfo]:
    """Return at most ``limit`` lease rows after a run id; an unreadable row hides no other."""
    found: list[LeaseInfo] = []
    after = after_run_id or ""
    while len(found) < limit:
        wanted = limit - len(found)
        rows = connection.execute(schema.LIST_LEASES, (after, wanted)).fetchall()
        infos = (_lease_info(row, now) for row in rows)
        found += [info for info in infos if info is not None]
        names = [name for name in map(_name, rows) if name is not None]
        if len(rows) < wanted or not names:
            break
        after = names[-1]
    return found


def _name(row: tuple[object, ...]) -> str | None:
    try:
        return cast("bytes", row[0]).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _lease_info(row: tuple[object, ...], now: int) -> LeaseInfo | None:
    """Return what a lease row says, or None when another writer has left it unreadable."""
    run_id, owner, epoch, expires_at, current = row
    if type(epoch) is not int or type(expires_at) is not int:
        return None
    try:
        return LeaseInfo(
            run_id=check_run_id(cast("bytes", run_id).decode("utf-8")),
            owner=cast("bytes", owner).decode("utf-8"),
            epoch=epoch,
            expires_at=expires_at,
            live=bool(current) and expires_at > now,
        )
    except (ConfigError, UnicodeDecodeError):
        return None


def list_run_ids(connection: apsw.Connection, after_run_id: str | None, limit: int) -> list[str]:
    """Return at most ``limit`` ids of which there is any trace, damaged ones too."""
    found: set[tuple[bytes, bool]] = set()
    with _snapshot(connection):
        for statement in schema.LIST_RUN_IDS:
            rows = connection.execute(statement, (after_run_id or "", limit)).fetchall()
            found.update((cast("bytes", run_id), kind == "text") for run_id, kind in rows)
    return [_id_of(run_id, is_text=is_text) for run_id, is_text in sorted(found)[:limit]]


def _id_of(run_id: bytes, *, is_text: bool) -> str:
    """Return an id; what no call could have written has a lone surrogate, as no id has."""
    text = run_id.decode("utf-8", "surrogateescape")
    return text if is_text else f"{text}\udc00"


def get_blob(connection: apsw.Connection, ref: str) -> bytes | None:
    """Return the blob, or None."""
    rows = connection.execute(schema.GET_BLOB, (ref,)).fetchall()
    return cast("bytes", rows[0][0]) if rows else None


def blob_info(connection: apsw.Connection, ref: str) -> BlobStat | None:
    """Return the blob's size without reading it, or None."""
    rows = connection.execute(schema.BLOB_SIZE, (ref,)).fetchall()
    return BlobStat(ref=ref, size_bytes=cast("int", rows[0][0])) if rows else None


def list_refs(connection: apsw.Connection, run_id: str) -> list[str]:
    """Return the run's refs in the order of their bytes."""
    rows = connection.execute(schema.LIST_REFS, (run_id,)).fetchall()
    return [cast("bytes", ref).decode("utf-8") for (ref,) in rows]
