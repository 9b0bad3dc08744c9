"""Broken stores over the SQLite store: where the epochs come from, and what forgets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gallery_defects import defect, sqlite
from gallery_sqlite_tools import granted, laid_out, refuse_if_held, worded, written

from rulvar.core.checks import check_lease, check_owner, check_run_id
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.lease_status import read_lease_state

if TYPE_CHECKING:
    from rulvar.conformance import Home
    from rulvar.core import Lease, Stores
    from rulvar.stores.sqlite.mutations import Transaction

__all__: list[str] = []


class _Numbers(SqliteStore):
    """A store that is told the next epoch by one function: nothing is wrong with this one."""

    def _next(self, tx: Transaction, run_id: str) -> int:
        at = read_lease_state(tx.connection, run_id)
        return 1 + max(at.tombstone or 0, at.epoch or 0)

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        return self._number(run_id, owner, by_force=False)

    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        if over is not None:
            return super().seize(run_id, owner, over=over)
        return self._number(run_id, owner, by_force=True)

    def _number(self, run_id: str, owner: str, *, by_force: bool) -> Lease:
        check_run_id(run_id)
        check_owner(owner)
        self._database.life.check()

        def work(tx: Transaction) -> Lease:
            if not by_force:
                refuse_if_held(tx, run_id)
            return granted(tx, run_id, owner, self._next(tx, run_id), self.lease_ttl_ms)

        return written(self, run_id, work)


class _FromRow(_Numbers):
    def _next(self, tx: Transaction, run_id: str) -> int:
        insert = "INSERT INTO grants (run_id) VALUES (?1) RETURNING id"
        return cast("int", tx.connection.execute(insert, (run_id,)).get)

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        clear = "DELETE FROM grants WHERE run_id = ?1"
        written(self, run_id, lambda tx: tx.connection.execute(clear, (run_id,)))


def _with_grants(home: Home) -> Stores:
    # Without AUTOINCREMENT the highest id is given again once its row is gone.
    table = "CREATE TABLE IF NOT EXISTS grants (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL)"
    return laid_out(home, table, store=_FromRow)


defect(
    "sqlite-epoch-from-reused-rowid",
    "an epoch is a row's number, and the highest is given again once its row is deleted",
    breaks="L-epoch",
    build=_with_grants,
    storm=True,
)


class _InLeaseRow(_Numbers):
    def _next(self, tx: Transaction, run_id: str) -> int:
        return 1 + (read_lease_state(tx.connection, run_id).epoch or 0)


defect(
    "sqlite-epoch-in-lease-row",
    "the last epoch is kept in the lease row, and goes with it",
    breaks="L-epoch",
    build=lambda home: sqlite(home, _InLeaseRow),
    storm=True,
)


class _InMemory(_Numbers):
    _highest: dict[str, int] | None = None

    def _next(self, tx: Transaction, run_id: str) -> int:
        del tx
        epoch = 1 + (self._highest or {}).get(run_id, 0)
        self._highest = (self._highest or {}) | {run_id: epoch}
        return epoch


defect(
    "sqlite-epoch-in-memory",
    "the last epoch is kept in the memory of the process",
    breaks="L-epoch-reopen",
    build=lambda home: sqlite(home, _InMemory),
    storm=True,
)


class _FromClock(_Numbers):
    def _next(self, tx: Transaction, run_id: str) -> int:
        del run_id
        return tx.now


defect(
    "sqlite-epoch-from-clock",
    "an epoch is the time of its grant",
    breaks="L-epoch",
    build=lambda home: sqlite(home, _FromClock),
    storm=True,
)


class _LosesTombstone(SqliteStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        forget = "DELETE FROM epochs WHERE run_id = ?1"
        written(self, run_id, lambda tx: tx.connection.execute(forget, (run_id,)))


defect(
    "sqlite-delete-loses-tombstone",
    "a deleted run begins at epoch 1 again",
    breaks="L-epoch",
    build=lambda home: sqlite(home, _LosesTombstone),
    storm=True,
)


def _tidied(home: Home) -> Stores:
    stores = sqlite(home)
    forget = (
        "DELETE FROM epochs WHERE run_id NOT IN (SELECT run_id FROM leases "
        "UNION SELECT run_id FROM entries)"
    )
    store = cast("SqliteStore", stores.journal)
    written(store, "", lambda tx: tx.connection.execute(forget))
    return stores


defect(
    "sqlite-open-tidies-tombstones",
    "opening the store clears the tombstones of runs of which nothing else is left",
    breaks="L-epoch-reopen",
    build=_tidied,
)

defect(
    "sqlite-raise-epoch-lowers",
    "raise_epoch sets the high-water mark to what it is told",
    breaks="L-floor",
    build=lambda home: worded(
        home,
        RAISE_EPOCH=(
            "INSERT INTO epochs (run_id, epoch) SELECT ?1, ?3 WHERE ?3 > 0 "
            "ON CONFLICT (run_id) DO UPDATE SET epoch = excluded.epoch"
        ),
    ),
)


class _RevivesSameEpoch(SqliteStore):
    def revive(self, lease: Lease, /) -> Lease:
        check_lease(lease)
        later = super().revive(lease)
        return written(
            self,
            lease.run_id,
            lambda tx: granted(tx, lease.run_id, later.owner, lease.epoch, self.lease_ttl_ms),
        )


defect(
    "sqlite-revive-keeps-epoch",
    "a revived lease goes on under the epoch that it had",
    breaks="L-revive",
    build=lambda home: sqlite(home, _RevivesSameEpoch),
)
