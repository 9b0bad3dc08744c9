"""What the broken stores over the SQLite store are made with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar, cast

import apsw
from gallery_defects import sqlite

from rulvar.core import Lease
from rulvar.core.lease_status import refusal, refuse_foreign
from rulvar.stores.sqlite import SqliteStore, schema
from rulvar.stores.sqlite.database import Database
from rulvar.stores.sqlite.job import Job
from rulvar.stores.sqlite.lease_status import read_lease_state, refuse_if_dead
from rulvar.stores.sqlite.mutations import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rulvar.conformance import Home
    from rulvar.core import Stores

__all__ = ["check_alone", "granted", "laid_out", "refuse_if_held", "worded", "written"]

_T = TypeVar("_T")


# --- a check or a write by itself -------------------------------------------------------------


def check_alone(database: Database, run_id: str, lease: Lease | None) -> None:
    """Ask the fence in a transaction of its own: what no store may rely on."""
    refuse_foreign(run_id, lease)
    if lease is not None:
        now = database.clock.now_ms()
        database.read(lambda connection: refuse_if_dead(connection, run_id, lease, now), run_id)


def written(store: SqliteStore, run_id: str, work: Callable[[Transaction], _T]) -> _T:
    """Commit a mutation in a transaction of its own."""
    return store._database.write(Job(work, run_id=run_id, grants=True))


def refuse_if_held(tx: Transaction, run_id: str) -> None:
    """Refuse a grant while somebody has the run."""
    at = read_lease_state(tx.connection, run_id)
    if at.live_at(tx.now):
        raise refusal(at, "held", tx.now)


def granted(tx: Transaction, run_id: str, owner: str, epoch: int, ttl_ms: int) -> Lease:
    """Grant the run under this very epoch, whatever was before."""
    tx.connection.execute(schema.SEIZE, (run_id, owner, epoch))
    tx.connection.execute(schema.GRANT, (run_id, owner, epoch, tx.now + ttl_ms))
    return Lease(run_id=run_id, owner=owner, epoch=epoch)


# --- one statement in other words -------------------------------------------------------------


class _Words:
    """A connection that says some statements otherwise."""

    def __init__(self, connection: apsw.Connection, instead: Mapping[str, str]) -> None:
        self._connection = connection
        self._instead = instead

    def execute(self, statement: str, bindings: tuple[apsw.SQLiteValue, ...] = ()) -> apsw.Cursor:
        said = self._instead.get(statement)
        if said is None:
            return self._connection.execute(statement, bindings)
        # The other words may ask for fewer values.
        wanted = max((int(number) for number in re.findall(r"\?(\d+)", said)), default=0)
        return self._connection.execute(said, bindings[:wanted])

    def changes(self) -> int:
        return self._connection.changes()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction


class _WordedDatabase(Database):
    instead: Mapping[str, str]

    def _said(self, connection: apsw.Connection) -> apsw.Connection:
        return cast("apsw.Connection", _Words(connection, self.instead))

    def write(self, job: Job[_T]) -> _T:
        work = job.work
        job.work = lambda tx: work(Transaction(self._said(tx.connection), tx.now))
        return super().write(job)

    def read(self, read: Callable[[apsw.Connection], _T], run_id: str | None = None) -> _T:
        return super().read(lambda connection: read(self._said(connection)), run_id)


def worded(home: Home, **instead: str | tuple[str, ...]) -> Stores:
    """Build a pair that says some statements otherwise, each under its name in `schema`."""
    stores = sqlite(home)
    database = cast("SqliteStore", stores.journal)._database
    database.__class__ = _WordedDatabase
    pairs: dict[str, str] = {}
    for name, said in instead.items():
        usual = getattr(schema, name)
        assert said != usual, f"{name} is said as ever: nothing is broken"
        if isinstance(said, str):
            pairs[usual] = said
        else:
            pairs.update(zip(usual, said, strict=True))
    cast("_WordedDatabase", database).instead = pairs
    return stores


# --- one table in another form ----------------------------------------------------------------


def laid_out(
    home: Home, *statements: str, store: type[SqliteStore] = SqliteStore, **instead: str
) -> Stores:
    """Build a pair whose file had these tables before the store looked for its own."""
    connection = apsw.Connection(str(home.folder / "runs.db"))
    connection.set_busy_timeout(10_000)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return worded(home, **instead) if instead else sqlite(home, store)
