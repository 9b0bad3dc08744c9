"""Broken stores over the SQLite store: what is committed when, and who sees it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

from gallery_defects import defect, sqlite
from gallery_sqlite_tools import check_alone, written

from rulvar.core.checks import check_record, check_run_id
from rulvar.core.errors import JournalOrderViolation, StoreForkedError
from rulvar.stores.sqlite import SqliteStore, forks, reads, schema
from rulvar.stores.sqlite.connection import connect
from rulvar.stores.sqlite.group_commit import Committer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from rulvar.conformance import Home
    from rulvar.core.spi import JournalRecord, Lease, Stores

__all__: list[str] = []


class _AnswersEarly(SqliteStore):
    """Its own loads wait until everything is written: nobody else's do."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._behind = ThreadPoolExecutor(1)
        self._tails: dict[str, int] = {}

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        check_alone(self._database, run_id, lease)
        tail = self._database.read(lambda db: db.execute(schema.TAIL, (run_id,)).get, run_id)
        tail = max(-1 if tail is None else tail, self._tails.get(run_id, -1))
        if record.seq <= tail:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail)
        self._tails[run_id] = record.seq
        self._behind.submit(super().append, run_id, record, lease=lease)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        self._behind.submit(int).result()
        return super().load(run_id)

    def close(self) -> None:
        self._behind.shutdown()
        super().close()


defect(
    "sqlite-append-answers-early",
    "append returns once its record is in a queue that another thread writes from",
    breaks="P-killed",
    build=lambda home: sqlite(home, _AnswersEarly),
    storm=True,
)

_ON_THEIR_WAY: dict[tuple[str, str], list[JournalRecord]] = {}


class _ShowsUncommitted(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        waiting = _ON_THEIR_WAY.setdefault((self.path, run_id), [])
        waiting.append(record)
        try:
            super().append(run_id, record, lease=lease)
        finally:
            waiting.remove(record)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        waiting = list(_ON_THEIR_WAY.get((self.path, run_id), ()))
        found = list(super().load(run_id))
        return [*found, *(each for each in waiting if each not in found)]


defect(
    "sqlite-load-shows-uncommitted",
    "the handles of a process show each other what is on its way and not committed",
    breaks="L-refused-unseen",
    build=lambda home: sqlite(home, _ShowsUncommitted),
)


class _KeepsSnapshot(SqliteStore):
    """Its own appends end the snapshot, so that it sees at least those."""

    _snapshot: apsw.Connection | None = None

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        super().append(run_id, record, lease=lease)
        self._snapshot = None

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        check_run_id(run_id)
        self._database.life.check()
        if self._snapshot is None:
            self._snapshot = connect(self._database.settings)
            self._snapshot.execute("BEGIN")
        return reads.load(self._snapshot, run_id)


defect(
    "sqlite-load-keeps-snapshot",
    "a reader's transaction stays open, and shows what was there when it began",
    breaks="A3-other-handle",
    build=lambda home: sqlite(home, _KeepsSnapshot),
)


class _DeletesInTwo(SqliteStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        if lease is None:
            clear = "DELETE FROM entries WHERE run_id = ?1"
            written(self, run_id, lambda tx: tx.connection.execute(clear, (run_id,)))
        super().delete(run_id, lease=lease)


defect(
    "sqlite-delete-in-two-steps",
    "the journal goes in one transaction, the row in the next",
    breaks="D1-one-step",
    build=lambda home: sqlite(home, _DeletesInTwo),
)


class _DeletesBlobsFirst(SqliteStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        for ref in self.transcripts().list_refs(run_id):
            self.transcripts().delete(ref, lease=lease)
        super().delete(run_id, lease=lease)


defect(
    "sqlite-delete-whole-run-in-two-steps",
    "the blobs go first, each in a transaction of its own",
    breaks="D-whole-one-step",
    build=lambda home: sqlite(home, _DeletesBlobsFirst),
)


class _RollsNeighboursBack(Committer):
    def _commit(self) -> None:
        assert self._connection is not None
        if any(job.error is not None for job in self._batch):
            self._connection.execute("ROLLBACK")
        else:
            super()._commit()


defect(
    "sqlite-refusal-rolls-neighbours-back",
    "a refused call rolls back its whole batch, whose other members are told that they landed",
    breaks="A5-threads",
    build=lambda home: _committing(home, _RollsNeighboursBack),
)


class _RefusesAll(Committer):
    def _commit(self) -> None:
        super()._commit()
        for refusal in [job.error for job in self._batch if job.error is not None][:1]:
            for job in self._batch:
                job.error = refusal


defect(
    "sqlite-refusal-goes-to-all",
    "the refusal of one call is the answer to its whole batch, whose other members have landed",
    breaks="A5-threads",
    build=lambda home: _committing(home, _RefusesAll),
)


def _committing(home: Home, committer: type[Committer]) -> Stores:
    stores = sqlite(home)
    assert isinstance(stores.journal, SqliteStore)
    stores.journal._database._committer.__class__ = committer
    return stores


class _ClosesAtOnce(SqliteStore):
    def close(self) -> None:
        self._database.life.close()
        with self._database._committer._leader:
            for connection in self._database._committer.connections():
                connection.close()


defect(
    "sqlite-close-cuts-calls-off",
    "close takes the connections away from the calls in flight",
    breaks="E-close-meets",
    build=lambda home: sqlite(home, _ClosesAtOnce),
)


class _ClosesLater(SqliteStore):
    def close(self) -> None:
        self._database.life.close()
        Thread(target=super().close).start()


defect(
    "sqlite-close-does-not-wait",
    "close returns while calls are in flight, which land afterwards",
    breaks="E-close-meets",
    build=lambda home: sqlite(home, _ClosesLater),
)


class _DropsInForkedChild(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        with suppress(StoreForkedError):
            super().append(run_id, record, lease=lease)


defect(
    "sqlite-append-in-forked-child",
    "an append in a forked child is dropped and not refused",
    breaks="E-forked",
    build=lambda home: sqlite(home, _DropsInForkedChild),
    storm=True,
)


class _OpensInForkedChild(SqliteStore):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        forks._inherited.clear()
        super().__init__(path, **options)


defect(
    "sqlite-opens-in-forked-child",
    "a forked child opens the file anew with locks that it does not have",
    breaks="P-fork-opens",
    build=lambda home: sqlite(home, _OpensInForkedChild),
)


class _OpensACopy(SqliteStore):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        try:
            super().__init__(path, **options)
        except StoreForkedError:
            super().__init__(f"{os.fspath(path)}-{os.getpid()}", **options)


defect(
    "sqlite-forked-child-has-a-copy",
    "a forked child opens a file that no other process ever reads",
    breaks="P-fork-opens",
    build=lambda home: sqlite(home, _OpensACopy),
    storm=True,
)


class _RemembersClosed(SqliteStore):
    seen: ClassVar[dict[str, int]] = {}

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        if self.seen.setdefault(os.fspath(path), os.getpid()) != os.getpid():
            message = "this file was open in the parent at some time"
            raise StoreForkedError(message)
        super().__init__(path, **options)


defect(
    "sqlite-refuses-child-of-closed",
    "a child that was forked after the parent had closed is refused all the same",
    breaks="P-fork-closed",
    build=lambda home: sqlite(home, _RemembersClosed),
)
