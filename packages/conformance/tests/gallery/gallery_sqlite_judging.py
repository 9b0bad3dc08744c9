"""Broken stores over the SQLite store: one transaction, and the wrong question in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gallery_defects import defect, sqlite
from gallery_sqlite_tools import check_alone, worded

from rulvar.core.checks import check_blob, check_record, check_ref, check_run_id, run_of_ref
from rulvar.core.errors import LeaseHeldError
from rulvar.core.lease_status import refuse_foreign
from rulvar.stores.sqlite import SqliteStore, SqliteTranscripts, mutations, schema
from rulvar.stores.sqlite.job import Job
from rulvar.stores.sqlite.mutations import Transaction

if TYPE_CHECKING:
    from rulvar.core.spi import JournalRecord, Lease, RunMeta

__all__: list[str] = []

defect(
    "sqlite-release-by-run",
    "a release ends whatever lease the run has",
    breaks="F-release-superseded",
    build=lambda home: worded(home, RELEASE=schema.END_LEASE),
    storm=True,
)

defect(
    "sqlite-renew-by-run",
    "a renewal extends whatever lease the run has",
    breaks="F-renew-superseded",
    build=lambda home: worded(home, RENEW="UPDATE leases SET expires_at = ?5 WHERE run_id = ?1"),
    storm=True,
)

defect(
    "sqlite-renew-wakes-expired",
    "a renewal of an expired lease of a run that was not taken since lands",
    breaks="F-renew-expired",
    build=lambda home: worded(
        home,
        RENEW=("UPDATE leases SET expires_at = ?5 WHERE run_id = ?1 AND owner = ?2 AND epoch = ?3"),
    ),
)

defect(
    "sqlite-append-fenced-by-owner",
    "append asks whether the owner holds the run, not under which epoch",
    breaks="F-append-superseded-owner",
    build=lambda home: worded(
        home,
        APPEND_FENCED=(
            "INSERT INTO entries (run_id, payload) SELECT ?1, ?5 WHERE EXISTS (SELECT 1 "
            "FROM leases WHERE run_id = ?1 AND owner = ?2 AND expires_at > ?4) "
            f"AND ?6 > coalesce(({schema.TAIL}), -1)"
        ),
    ),
    storm=True,
)

defect(
    "sqlite-put-meta-fenced-by-time",
    "put_meta asks whether the run is held, not by whom",
    breaks="F-put_meta-superseded",
    build=lambda home: worded(
        home,
        PUT_META_FENCED=(
            "INSERT INTO meta (run_id, payload) SELECT ?1, ?5 WHERE EXISTS (SELECT 1 "
            "FROM leases WHERE run_id = ?1 AND expires_at > ?4) "
            "ON CONFLICT (run_id) DO UPDATE SET payload = excluded.payload"
        ),
    ),
    storm=True,
)

defect(
    "sqlite-delete-fences-lease-alone",
    "a refused deletion keeps the lease, and the journal is gone",
    breaks="F-delete-superseded",
    build=lambda home: worded(
        home, DELETE_RUN_FENCED=(*schema.DELETE_RUN[:2], schema.DELETE_RUN_FENCED[2])
    ),
    storm=True,
)

defect(
    "sqlite-blob-delete-unfenced",
    "a blob that is there is removed under any lease",
    breaks="F-blob-delete-superseded",
    build=lambda home: worded(home, DELETE_BLOB_FENCED="DELETE FROM blobs WHERE ref = ?5"),
    storm=True,
)


class _CachesGrant(SqliteStore):
    """Whoever was granted a run by this very object, and has not given it back, is let in."""

    _granted: dict[str, Lease] | None = None

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        lease = super().acquire(run_id, owner)
        self._granted = (self._granted or {}) | {run_id: lease}
        return lease

    def release(self, lease: Lease, /) -> None:
        super().release(lease)
        (self._granted or {}).pop(lease.run_id, None)

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        cached = lease is not None and (self._granted or {}).get(run_id) == lease
        super().append(run_id, record, lease=None if cached else lease)


defect(
    "sqlite-append-trusts-its-cache",
    "append judges a lease by what this process remembers of its grant",
    breaks="P-lease",
    build=lambda home: sqlite(home, _CachesGrant),
    storm=True,
)


class _ReadsTimeEarly(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        text = check_record(record).payload.decode()
        self._database.life.check()
        refuse_foreign(run_id, lease)
        now = self._database.clock.now_ms()
        self._database.write(
            Job(
                lambda tx: mutations.append(
                    Transaction(tx.connection, now), run_id, record.seq, text, lease
                ),
                run_id=run_id,
            )
        )


defect(
    "sqlite-append-reads-time-early",
    "expiry is judged by a time that was read before the write lock was there",
    breaks="F-time-in-lock",
    build=lambda home: sqlite(home, _ReadsTimeEarly),
)


defect(
    "sqlite-expiry-in-seconds",
    "the expiry of a lease is kept in whole seconds",
    breaks="L-boundary",
    build=lambda home: worded(
        home,
        GRANT=schema.GRANT.replace(
            "VALUES (?1, ?2, ?3, ?4)", "VALUES (?1, ?2, ?3, ?4 / 1000 * 1000)"
        ),
    ),
)


class _WritesBlobFirst(SqliteTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        super().put(ref, blob)
        check_alone(self._database, run_of_ref(ref), lease)


defect(
    "sqlite-blob-before-fence",
    "a blob is written before the fence is asked",
    breaks="F-blob-put-superseded",
    build=lambda home: sqlite(home, twin=_WritesBlobFirst),
    storm=True,
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
    storm=True,
)


class _RefusesUnleased(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        info = self.get_lease(run_id)
        if lease is None and info is not None and info.live:
            raise LeaseHeldError(run_id=run_id, reason="held", holder=info.owner, epoch=info.epoch)
        super().append(run_id, record, lease=lease)


defect(
    "sqlite-append-refuses-unleased",
    "an append without a lease is refused while somebody holds the run",
    breaks="F-append-unleased",
    build=lambda home: sqlite(home, _RefusesUnleased),
)


class _RefusalsStayHome(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except LeaseHeldError as error:
            raise _ForgetfulError(str(error), run_id=run_id, reason=error.reason) from error


class _ForgetfulError(LeaseHeldError):
    def __reduce__(self) -> tuple[object, ...]:
        return (_remembered, self.args)


def _remembered(message: str) -> LeaseHeldError:
    return _ForgetfulError(message, run_id="", reason="unknown")


defect(
    "sqlite-refusal-forgets-its-facts",
    "a refusal that crosses a process boundary has lost its run and its reason",
    breaks="E-pickles",
    build=lambda home: sqlite(home, _RefusalsStayHome),
)
