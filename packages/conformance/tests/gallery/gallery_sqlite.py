"""Broken stores over the SQLite store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gallery_defects import defect, sqlite

from rulvar.core.checks import check_blob, check_record, check_ref, check_run_id, run_of_ref
from rulvar.core.errors import LeaseHeldError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore, SqliteTranscripts
from rulvar.stores.sqlite.fence import refuse_foreign, refuse_if_dead

if TYPE_CHECKING:
    from rulvar.core import Lease, RunMeta
    from rulvar.stores.sqlite.database import Database


def _check_alone(database: Database, run_id: str, lease: Lease | None) -> None:
    """Check the fence in a transaction of its own: what no store may rely on."""
    refuse_foreign(run_id, lease)
    if lease is not None:
        now = database.clock.now_ms()
        database.read(lambda connection: refuse_if_dead(connection, run_id, lease, now), run_id)


class _ChecksAppendFirst(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        _check_alone(self._database, run_id, lease)
        super().append(run_id, record)


defect(
    "sqlite-append-checks-first",
    "append checks the fence in one transaction and writes in the next",
    breaks="F-append-atomic",
    build=lambda home: sqlite(home, _ChecksAppendFirst),
)


class _ChecksRowFirst(SqliteStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        _check_alone(self._database, meta.run_id, lease)
        super().put_meta(meta)


defect(
    "sqlite-put-meta-checks-first",
    "put_meta checks the fence in one transaction and writes in the next",
    breaks="F-put_meta-atomic",
    build=lambda home: sqlite(home, _ChecksRowFirst),
)


class _WritesBlobFirst(SqliteTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        super().put(ref, blob)
        _check_alone(self._database, run_of_ref(ref), lease)


defect(
    "sqlite-blob-before-fence",
    "a blob is written before the fence is asked",
    breaks="F-blob-put-superseded",
    build=lambda home: sqlite(home, twin=_WritesBlobFirst),
)


class _EncodesAgain(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_record(record)
        again = json.dumps(json.loads(record.payload)).encode()
        super().append(run_id, JournalRecord(seq=record.seq, payload=again), lease=lease)


defect(
    "sqlite-append-encodes-again",
    "a payload is decoded and encoded again",
    breaks="A4-bytes",
    build=lambda home: sqlite(home, _EncodesAgain),
)


class _SwallowsRefusal(SqliteStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        try:
            super().put_meta(meta, lease=lease)
        except LeaseHeldError:
            return


defect(
    "sqlite-put-meta-swallows-refusal",
    "a refused row is dropped without a word",
    breaks="F-put_meta-superseded",
    build=lambda home: sqlite(home, _SwallowsRefusal),
)
