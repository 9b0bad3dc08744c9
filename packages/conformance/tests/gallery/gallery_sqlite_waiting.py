"""Broken stores over the SQLite store: how long they wait, and what they say then."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import apsw
from gallery_defects import defect, sqlite

from rulvar.core import Stores
from rulvar.core.errors import StoreBusyError
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from rulvar.conformance import Home
    from rulvar.core.spi import JournalRecord, Lease

__all__: list[str] = []


class _WaitsLonger(SqliteStore):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._database._committer._busy_s *= 3


defect(
    "sqlite-waits-longer-than-it-says",
    "a call waits three times as long as the busy timeout that is declared",
    breaks="B-stopped",
    build=lambda home: sqlite(home, _WaitsLonger),
)


class _WaitsForEver(SqliteStore):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._database._committer._busy_s = 1_000_000


defect(
    "sqlite-waits-for-ever",
    "a call waits until the file is free, however long that takes",
    breaks="B-stopped",
    build=lambda home: sqlite(home, _WaitsForEver),
)


class _LetsBusyOut(SqliteStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except StoreBusyError as error:
            message = "BusyError: database is locked"
            raise apsw.BusyError(message) from error


defect(
    "sqlite-busy-is-the-drivers-own",
    "a locked file is answered with the driver's exception",
    breaks="B-stopped",
    build=lambda home: sqlite(home, _LetsBusyOut),
)


class _LandsLater(SqliteStore):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._behind = ThreadPoolExecutor(1)

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except StoreBusyError:
            self._behind.submit(self._insist, run_id, record, lease)
            raise

    def _insist(self, run_id: str, record: JournalRecord, lease: Lease | None) -> None:
        while True:
            with contextlib.suppress(StoreBusyError):
                return super().append(run_id, record, lease=lease)


defect(
    "sqlite-busy-call-lands-later",
    "a call that was answered with StoreBusyError goes on trying, and lands",
    breaks="B-stopped",
    build=lambda home: sqlite(home, _LandsLater),
    storm=True,
)


class _DeclaresTooMuch(SqliteStore):
    @property
    def busy_timeout_ms(self) -> int:
        return self.lease_ttl_ms


defect(
    "sqlite-waits-longer-than-a-lease",
    "a call may wait for as long as a lease lives",
    breaks="B-bound",
    build=lambda home: sqlite(home, _DeclaresTooMuch),
)


def _impatient(home: Home) -> Stores:
    path = home.folder / "runs.db"
    store = SqliteStore(path, clock=home.clock, lease_ttl_ms=home.lease_ttl_ms, open_timeout_ms=0)
    return Stores(store, store.transcripts())


defect(
    "sqlite-open-does-not-wait",
    "opening a new file fails while another process makes it",
    breaks="P-first-open",
    build=_impatient,
)
