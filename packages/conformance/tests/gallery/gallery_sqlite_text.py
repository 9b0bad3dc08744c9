"""Broken stores over the SQLite store: what is kept of texts, ids and orders."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

import apsw
from gallery_defects import defect, sqlite
from gallery_sqlite_tools import laid_out, worded

from rulvar.core.checks import check_filter, check_meta, check_run_id
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.records import JournalRecord, JsonMembers
from rulvar.stores.sqlite import SqliteStore, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.records import RunFilter
    from rulvar.core.spi import Lease, RunMeta

__all__: list[str] = []

_INSERT = "INSERT INTO entries (run_id, payload) SELECT ?1, ?2 WHERE"

# --- payloads and rows ------------------------------------------------------------------------


class _EncodesAgain(SqliteStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return [
            JournalRecord(seq=each.seq, payload=json.dumps(json.loads(each.payload)).encode())
            for each in super().load(run_id)
        ]


defect(
    "sqlite-load-encodes-again",
    "a payload is decoded and encoded again",
    breaks="A4-bytes",
    build=lambda home: sqlite(home, _EncodesAgain),
)

defect(
    "sqlite-append-minifies",
    "a payload is kept as JSON, without its white space",
    breaks="A4-bytes",
    build=lambda home: worded(
        home,
        APPEND=schema.APPEND.replace("SELECT ?1, ?2", "SELECT ?1, json(?2)"),
    ),
)

defect(
    "sqlite-fenced-append-minifies",
    "a payload that comes under a lease is kept without its white space",
    breaks="A4-bytes",
    build=lambda home: worded(
        home, APPEND_FENCED=schema.APPEND_FENCED.replace("SELECT ?1, ?5", "SELECT ?1, json(?5)")
    ),
)


class _DropsUnknown(SqliteStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        super().put_meta(replace(meta, extra=JsonMembers({})), lease=lease)


defect(
    "sqlite-put-meta-knows-its-columns",
    "a row keeps the fields that have a column, and no other",
    breaks="M1-unknown",
    build=lambda home: sqlite(home, _DropsUnknown),
)

defect(
    "sqlite-put-meta-patches",
    "a row is patched into the one before",
    breaks="M2-replace",
    build=lambda home: worded(
        home,
        PUT_META=(
            "INSERT INTO meta (run_id, payload) VALUES (?1, ?2) ON CONFLICT (run_id) "
            "DO UPDATE SET payload = json_patch(payload, excluded.payload)"
        ),
    ),
)

defect(
    "sqlite-fenced-put-meta-patches",
    "a row that comes under a lease is patched into the one before",
    breaks="M2-replace",
    build=lambda home: worded(
        home,
        PUT_META_FENCED=schema.PUT_META_FENCED.replace(
            "payload = excluded.payload", "payload = json_patch(payload, excluded.payload)"
        ),
    ),
)

defect(
    "sqlite-put-meta-keeps-first",
    "a row that is there already stays as it is",
    breaks="M2-replace",
    build=lambda home: worded(
        home, PUT_META="INSERT OR IGNORE INTO meta (run_id, payload) VALUES (?1, ?2)"
    ),
)

# --- the guard and the order ------------------------------------------------------------------

defect(
    "sqlite-append-guard-counts",
    "a seq is compared with the number of records",
    breaks="A5-guard",
    build=lambda home: worded(
        home, APPEND=f"{_INSERT} ?3 >= (SELECT count(*) FROM entries WHERE run_id = ?1)"
    ),
)

defect(
    "sqlite-append-guard-is-uniqueness",
    "a seq is refused only when it is there already",
    breaks="A5-guard",
    build=lambda home: worded(
        home,
        APPEND=(
            f"{_INSERT} NOT EXISTS (SELECT 1 FROM entries WHERE run_id = ?1 AND {schema.SEQ} = ?3)"
        ),
    ),
)

defect(
    "sqlite-append-guard-compares-text",
    "the largest seq is found among texts, where 9 is above 10",
    breaks="A5-guard",
    build=lambda home: worded(
        home,
        APPEND=(
            f"{_INSERT} ?3 > coalesce((SELECT CAST(max(CAST({schema.SEQ} AS TEXT)) AS INTEGER) "
            "FROM entries WHERE run_id = ?1), -1)"
        ),
    ),
)

_LAST_OF_ALL = f"SELECT {schema.SEQ} FROM entries WHERE ?1 IS NOT NULL ORDER BY id DESC LIMIT 1"

defect(
    "sqlite-append-guard-of-all-runs",
    "a seq is compared with the last row of the table, whosever it is",
    breaks="A5-first",
    build=lambda home: worded(
        home, APPEND=f"{_INSERT} ?3 > coalesce(({_LAST_OF_ALL}), -1)", TAIL=_LAST_OF_ALL
    ),
)


class _LetsConstraintOut(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except JournalOrderViolation as error:
            message = "UNIQUE constraint failed: entries.run_id, entries.seq"
            raise apsw.ConstraintError(message) from error


defect(
    "sqlite-append-guard-is-the-drivers-own",
    "a stale seq is answered with the driver's exception",
    breaks="A5-guard",
    build=lambda home: sqlite(home, _LetsConstraintOut),
)

defect(
    "sqlite-load-orders-text",
    "a journal is loaded in the order of its seqs as texts",
    breaks="A2-order",
    build=lambda home: worded(
        home, LOAD=schema.LOAD.replace("ORDER BY id", f"ORDER BY CAST({schema.SEQ} AS TEXT)")
    ),
)

defect(
    "sqlite-list-runs-in-rowid-order",
    "rows are listed in the order in which they were first put",
    breaks="M2-order",
    build=lambda home: worded(
        home, LIST_ALL=schema.LIST_ALL.replace("ORDER BY run_id", "ORDER BY rowid")
    ),
)

_AFTER = "run_id > CAST(?1 AS TEXT)"
_ABOVE = "rowid > coalesce((SELECT rowid FROM meta WHERE run_id = CAST(?1 AS TEXT)), 0)"

defect(
    "sqlite-list-runs-pages-by-rowid",
    "a page goes on after the row's number, not after its id",
    breaks="M2-pages-move",
    build=lambda home: worded(home, LIST_ALL=schema.LIST_ALL.replace(_AFTER, _ABOVE)),
)


class _CutsBeforeTags(SqliteStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        run_filter = check_filter(run_filter)
        found = super().list_runs(replace(run_filter, tags=()))
        return [row for row in found if set(run_filter.tags) <= set(row.tags)]


defect(
    "sqlite-list-runs-cuts-before-tags",
    "a page is cut before its rows are asked for their tags",
    breaks="M2-pages",
    build=lambda home: sqlite(home, _CutsBeforeTags),
)

defect(
    "sqlite-inventory-without-blobs",
    "list_run_ids leaves out runs of which there are blobs alone",
    breaks="A-inventory",
    build=lambda home: worded(
        home, LIST_RUN_IDS=(*schema.LIST_RUN_IDS[:3], f"{schema.LIST_RUN_IDS[3]} OFFSET 1000")
    ),
)

# --- ids --------------------------------------------------------------------------------------


def _other(table: str, before: str, after: str) -> str:
    usual = schema.OBJECTS[table]
    assert before in usual
    return usual.replace(before, after)


defect(
    "sqlite-runs-without-case",
    "run ids that differ by case share a journal",
    breaks="I-apart",
    build=lambda home: laid_out(
        home, _other("entries", "run_id TEXT NOT NULL", "run_id TEXT NOT NULL COLLATE NOCASE")
    ),
)

defect(
    "sqlite-rows-without-last-space",
    "run ids that differ by spaces at the end share a row",
    breaks="I-apart",
    build=lambda home: laid_out(
        home, _other("meta", "run_id TEXT PRIMARY KEY", "run_id TEXT PRIMARY KEY COLLATE RTRIM")
    ),
)

defect(
    "sqlite-leases-without-case",
    "run ids that differ by case share a lease",
    breaks="I-leases-apart",
    build=lambda home: laid_out(
        home, _other("leases", "run_id TEXT PRIMARY KEY", "run_id TEXT PRIMARY KEY COLLATE NOCASE")
    ),
)

defect(
    "sqlite-owners-without-case",
    "owners that differ by case are one",
    breaks="I-owners",
    build=lambda home: laid_out(
        home, _other("leases", "owner TEXT NOT NULL", "owner TEXT NOT NULL COLLATE NOCASE")
    ),
)

defect(
    "sqlite-owners-are-numbers",
    "owners that look like one number are one",
    breaks="I-owners",
    build=lambda home: laid_out(
        home, _other("leases", "owner TEXT NOT NULL", "owner NUMERIC NOT NULL")
    ),
)


class _Normalises(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        super().append(unicodedata.normalize("NFC", run_id), record, lease=lease)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        check_run_id(run_id)
        return super().load(unicodedata.normalize("NFC", run_id))


defect(
    "sqlite-runs-are-normalised",
    "run ids that look alike share a journal",
    breaks="I-apart",
    build=lambda home: sqlite(home, _Normalises),
)
