"""Broken stores over the SQLite store: the check and the write in two transactions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_defects import defect, sqlite
from gallery_sqlite_tools import check_alone, granted, written

from rulvar.core.checks import (
    check_blob,
    check_lease,
    check_record,
    check_ref,
    check_run_id,
    run_of_ref,
)
from rulvar.core.errors import LeaseHeldError
from rulvar.core.lease_status import lease_status, refusal, refuse_foreign
from rulvar.stores.sqlite import SqliteStore, SqliteTranscripts, schema
from rulvar.stores.sqlite.connection import connect
from rulvar.stores.sqlite.errors import BUSY
from rulvar.stores.sqlite.lease_status import read_lease_state, refuse_if_dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.records import BlobStat
    from rulvar.core.spi import JournalRecord, Lease, RunMeta
    from rulvar.stores.sqlite.database import Database

__all__: list[str] = []


class _ChecksAppendFirst(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        check_alone(self._database, run_id, lease)
        super().append(run_id, record)


defect(
    "sqlite-append-checks-first",
    "append checks the fence in one transaction and writes in the next",
    breaks="F-append-atomic",
    build=lambda home: sqlite(home, _ChecksAppendFirst),
    storm=True,
)


class _ChecksRowFirst(SqliteStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_alone(self._database, meta.run_id, lease)
        super().put_meta(meta)


defect(
    "sqlite-put-meta-checks-first",
    "put_meta checks the fence in one transaction and writes in the next",
    breaks="F-put_meta-atomic",
    build=lambda home: sqlite(home, _ChecksRowFirst),
    storm=True,
)


class _ChecksDeletionFirst(SqliteStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_alone(self._database, run_id, lease)
        super().delete(run_id)


defect(
    "sqlite-delete-checks-first",
    "delete checks the fence in one transaction and deletes in the next",
    breaks="F-delete-atomic",
    build=lambda home: sqlite(home, _ChecksDeletionFirst),
    storm=True,
)


class _ChecksWholeDeletionFirst(SqliteStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_alone(self._database, run_id, lease)
        super().delete_whole_run(run_id)


defect(
    "sqlite-delete-whole-run-checks-first",
    "delete_whole_run checks the fence in one transaction and deletes in the next",
    breaks="F-delete_whole_run-atomic",
    build=lambda home: sqlite(home, _ChecksWholeDeletionFirst),
)


class _ChecksRenewalFirst(SqliteStore):
    def renew(self, lease: Lease, /) -> None:
        check_lease(lease)
        check_alone(self._database, lease.run_id, lease)
        move = "UPDATE leases SET expires_at = ?2 WHERE run_id = ?1"
        written(
            self,
            lease.run_id,
            lambda tx: tx.connection.execute(move, (lease.run_id, tx.now + self.lease_ttl_ms)),
        )


defect(
    "sqlite-renew-checks-first",
    "renew checks the fence in one transaction and moves the run's expiry in the next",
    breaks="F-renew-atomic",
    build=lambda home: sqlite(home, _ChecksRenewalFirst),
)


class _ChecksReleaseFirst(SqliteStore):
    def release(self, lease: Lease, /) -> None:
        check_lease(lease)
        check_alone(self._database, lease.run_id, lease)
        written(
            self,
            lease.run_id,
            lambda tx: tx.connection.execute(schema.END_LEASE, (lease.run_id,)),
        )


defect(
    "sqlite-release-checks-first",
    "release checks the fence in one transaction and ends the run's lease in the next",
    breaks="F-release-atomic",
    build=lambda home: sqlite(home, _ChecksReleaseFirst),
)


class _ChecksBlobFirst(SqliteTranscripts):
    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        check_alone(self._database, run_of_ref(ref), lease)
        super().put(ref, blob)


defect(
    "sqlite-blob-put-checks-first",
    "a blob's put checks the fence in one transaction and writes in the next",
    breaks="F-blob-put-atomic",
    build=lambda home: sqlite(home, twin=_ChecksBlobFirst),
    storm=True,
)


class _ChecksBlobRemovalFirst(SqliteTranscripts):
    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_alone(self._database, run_of_ref(ref), lease)
        super().delete(ref)


defect(
    "sqlite-blob-delete-checks-first",
    "a blob's removal checks the fence in one transaction and removes in the next",
    breaks="F-blob-delete-atomic",
    build=lambda home: sqlite(home, twin=_ChecksBlobRemovalFirst),
    storm=True,
)


class _BeginsDeferred(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        text = check_record(record).payload.decode()
        if lease is None:
            super().append(run_id, record)
            return
        self._database.life.check()
        refuse_foreign(run_id, lease)
        with closing(connect(self._database.settings)) as connection:
            connection.execute("BEGIN")
            refuse_if_dead(connection, run_id, lease, self._database.clock.now_ms())
            try:
                connection.execute(schema.APPEND, (run_id, text, record.seq))
                landed = connection.changes() == 1
                connection.execute("COMMIT")
            except BUSY:
                landed = False
        if not landed:
            super().append(run_id, record)


defect(
    "sqlite-append-begins-deferred",
    "append begins without the write lock, and writes again without asking when it meets one",
    breaks="F-append-atomic",
    build=lambda home: sqlite(home, _BeginsDeferred),
    storm=True,
)


class _BlobsElsewhere(SqliteTranscripts):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        path = Path(database.settings.path).with_name("blobs.db")
        self._blobs = SqliteStore(path, clock=database.clock).transcripts()

    def put(self, ref: str, blob: bytes, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_blob(blob)
        check_alone(self._database, run_of_ref(ref), lease)
        self._blobs.put(ref, blob)

    def delete(self, ref: str, /, *, lease: Lease | None = None) -> None:
        check_ref(ref)
        check_alone(self._database, run_of_ref(ref), lease)
        self._blobs.delete(ref)

    def get(self, ref: str, /) -> bytes | None:
        return self._blobs.get(ref)

    def list_refs(self, run_id: str, /) -> Sequence[str]:
        return self._blobs.list_refs(run_id)

    def blob_info(self, ref: str, /) -> BlobStat | None:
        return self._blobs.blob_info(ref)

    def close(self) -> None:
        self._blobs.close()
        super().close()


defect(
    "sqlite-blobs-elsewhere",
    "blobs lie in another database than the leases, under the same fencing domain",
    breaks="F-blob-put-atomic",
    build=lambda home: sqlite(home, twin=_BlobsElsewhere),
    storm=True,
)


class _NamesAnotherDomain(SqliteTranscripts):
    @property
    def fencing_domain(self) -> str:
        return f"{super().fencing_domain}:blobs"


defect(
    "sqlite-blobs-other-domain",
    "the twin names a fencing domain of its own",
    breaks="T-domain",
    build=lambda home: sqlite(home, twin=_NamesAnotherDomain),
)


# --- grants -----------------------------------------------------------------------------------


class _ChecksGrantFirst(SqliteStore):
    def acquire(self, run_id: str, owner: str, /) -> Lease:
        self.get_lease(run_id)  # the front door
        now = self._database.clock.now_ms()
        at = self._database.read(lambda connection: read_lease_state(connection, run_id), run_id)
        if at.live_at(now):
            raise refusal(at, "held", now)
        epoch = 1 + max(at.tombstone or 0, at.epoch or 0)
        ttl_ms = self.lease_ttl_ms
        return written(self, run_id, lambda tx: granted(tx, run_id, owner, epoch, ttl_ms))


defect(
    "sqlite-acquire-checks-first",
    "acquire looks whether the run is free in one transaction and grants it in the next",
    breaks="L-one-wins",
    build=lambda home: sqlite(home, _ChecksGrantFirst),
    storm=True,
)


class _NumbersSeizureFirst(SqliteStore):
    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        if over is not None:
            return super().seize(run_id, owner, over=over)
        self.get_lease(run_id)
        at = self._database.read(lambda connection: read_lease_state(connection, run_id), run_id)
        epoch = 1 + max(at.tombstone or 0, at.epoch or 0)
        ttl_ms = self.lease_ttl_ms
        return written(self, run_id, lambda tx: granted(tx, run_id, owner, epoch, ttl_ms))


defect(
    "sqlite-seize-numbers-first",
    "seize reads the last epoch in one transaction and grants the next one in another",
    breaks="L-grants-meet",
    build=lambda home: sqlite(home, _NumbersSeizureFirst),
    storm=True,
)


class _ChecksSeizureFirst(SqliteStore):
    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        if over is not None:
            check_lease(over)
            at = self._database.read(
                lambda connection: read_lease_state(connection, run_id), run_id
            )
            now = self._database.clock.now_ms()
            if lease_status(at, over, now) not in {None, "expired"}:
                raise refusal(at, "superseded", now, offered=over)
        return super().seize(run_id, owner)


defect(
    "sqlite-seize-over-checks-first",
    "seize looks at the present lease in one transaction and grants the run in the next",
    breaks="L-seize-over-meets",
    build=lambda home: sqlite(home, _ChecksSeizureFirst),
    storm=True,
)


class _RenewsOneByOne(SqliteStore):
    def _extend(self, lease: Lease) -> None:
        until = self._database.clock.now_ms() + self.lease_ttl_ms
        row = (lease.run_id, lease.owner, lease.epoch, until)
        written(self, lease.run_id, lambda tx: tx.connection.execute(schema.GRANT, row))

    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        refusals: list[LeaseHeldError] = []
        for lease in map(check_lease, leases):
            try:
                check_alone(self._database, lease.run_id, lease)
            except LeaseHeldError as refused:
                refusals.append(refused)
                continue
            self._extend(lease)
        return refusals


defect(
    "sqlite-renew-all-checks-first",
    "a renewal of many checks in one transaction and writes in the next",
    breaks="L-batch-atomic",
    build=lambda home: sqlite(home, _RenewsOneByOne),
    storm=True,
)


class _ChecksRevivalFirst(SqliteStore):
    def revive(self, lease: Lease, /) -> Lease:
        check_lease(lease)
        run_id, now = lease.run_id, self._database.clock.now_ms()
        at = self._database.read(lambda connection: read_lease_state(connection, run_id), run_id)
        reason = lease_status(at, lease, now)
        if reason != "expired":
            raise refusal(at, reason or "held", now, offered=lease)
        return super().seize(run_id, lease.owner)


defect(
    "sqlite-revive-checks-first",
    "revive looks whether the run was taken in one transaction and grants it in the next",
    breaks="L-revive-meets",
    build=lambda home: sqlite(home, _ChecksRevivalFirst),
)
