"""`SqliteStore`: journals, rows and leases, fenced on every surface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from rulvar.core.checks import (
    check_after_seq,
    check_epoch,
    check_filter,
    check_lease,
    check_limit,
    check_meta,
    check_owner,
    check_record,
    check_run_id,
    check_ttl_ms,
)
from rulvar.core.clock import SystemClock
from rulvar.core.errors import ConfigError
from rulvar.core.stores import Stores
from rulvar.stores.sqlite import mutations, reads
from rulvar.stores.sqlite.connection import Settings, require_sqlite, resolve
from rulvar.stores.sqlite.database import Database
from rulvar.stores.sqlite.job import Job
from rulvar.stores.sqlite.transcripts import SqliteTranscripts

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import TracebackType

    from rulvar.core.clock import Clock
    from rulvar.core.errors import LeaseHeldError
    from rulvar.core.records import JournalRecord, Lease, LeaseInfo, RunFilter, RunMeta
    from rulvar.stores.sqlite.connection import Durability, Permissions

__all__ = ["SqliteStore", "SqliteStores"]

_DEFAULT_BUSY_MS = 5_000


class SqliteStore:
    """A store in one SQLite file: the holder of a dead lease changes nothing in it.

    The store and its twin, `transcripts`, commit in the same database, so that one lease
    fences journal, row, blobs and deletion alike (contract.md#the-fence). A store
    object may be shared by any number of threads, whose calls share transactions; any number
    of processes may open the same file.

    ``path`` is the file, made when it is not there, or ``":memory:"``. ``lease_ttl_ms`` is
    how long a lease lives. ``busy_timeout_ms`` is how long a call waits while other processes
    have the file locked (default: a fifth of the ttl, at most 5,000; it must be below a third
    of the ttl). ``durability`` is ``"full"`` (what is answered survives power loss) or
    ``"normal"`` (survives a crash of the process; epoch grants survive power loss all the
    same). ``clock`` judges expiry. ``open_timeout_ms`` bounds how long opening may wait.
    ``allow_network_filesystem`` takes a file that lies on one, when you know that only one
    machine ever opens it. ``read_only`` opens a file that is there, to look at it: neither the
    database nor its log is ever written, also when it closes, and every call that would change
    something is refused as `ConfigError`. ``permissions`` is who may use the files of a new
    database: ``"private"`` (its user alone) or ``"umask"`` (whom the process lets by its
    umask); a file that is there keeps its own.

    Raises `ConfigError` for a wrong option or path, `StoreBusyError` when others kept the
    file locked while it was opened, `StoreCorruptError` for what is not a database.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_ttl_ms: int = 60_000,
        busy_timeout_ms: int | None = None,
        durability: Durability = "full",
        clock: Clock | None = None,
        open_timeout_ms: int = 10_000,
        allow_network_filesystem: bool = False,
        read_only: bool = False,
        permissions: Permissions = "private",
    ) -> None:
        check_ttl_ms(lease_ttl_ms)
        settings = Settings(
            path=resolve(path, allow_network_filesystem=allow_network_filesystem),
            lease_ttl_ms=lease_ttl_ms,
            busy_timeout_ms=_busy_timeout(busy_timeout_ms, lease_ttl_ms),
            open_timeout_ms=_milliseconds("open_timeout_ms", open_timeout_ms),
            durability=_durability(durability),
            read_only=read_only,
            permissions=_permissions(permissions),
        )
        if read_only and settings.in_memory:
            message = "a database in memory has nothing to read only: leave read_only out"
            raise ConfigError(message)
        require_sqlite()
        self._database = Database(settings, SystemClock() if clock is None else clock)
        self._twin = SqliteTranscripts(self._database)

    # --- what it is ------------------------------------------------------------------------

    @property
    def fenced_writes(self) -> Literal[True]:
        """The marker: every mutation that carries a lease is fenced by it."""
        return True

    @property
    def lease_ttl_ms(self) -> int:
        """How long a lease lives, in milliseconds."""
        return self._database.settings.lease_ttl_ms

    @property
    def busy_timeout_ms(self) -> int:
        """How long a call waits for a locked file, in milliseconds."""
        return self._database.settings.busy_timeout_ms

    @property
    def fencing_domain(self) -> str:
        """Equal exactly for stores that commit in the same database."""
        return self._database.fencing_domain

    @property
    def durability(self) -> Durability | None:
        """What power loss may take (``"full"``: nothing that was answered); None in memory."""
        settings = self._database.settings
        return None if settings.in_memory else settings.durability

    @property
    def path(self) -> str:
        """The absolute path of the file, or ``":memory:"``."""
        return self._database.settings.path

    def transcripts(self) -> SqliteTranscripts:
        """Return the twin: blobs in the same database, of the same life."""
        return self._twin

    def close(self) -> None:
        """Wait for the calls in flight, then refuse every later one; idempotent.

        Raises: `StoreForkedError` in a forked child, where nothing is closed.
        """
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"

    # --- journal and rows ------------------------------------------------------------------

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        """Add a record if the lease is live: the check and the write are one unit (A1, A3, A5).

        Raises: `LeaseHeldError` for any dead lease, before the seq guard is asked;
        `JournalOrderViolation` when ``record.seq`` is not above the stored tail.
        """
        check_run_id(run_id)
        payload = check_record(record).payload
        if lease is not None:
            check_lease(lease)
        seq, text = record.seq, payload.decode("utf-8")
        self._database.write(
            Job(
                lambda tx: mutations.append(tx, run_id, seq, text, lease),
                run_id=run_id,
                lease=lease,
                size=len(payload),
            )
        )

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in the order of their appends; none when unknown (A2).

        Raises: `StoreCorruptError` with run and position when a record cannot be decoded.
        """
        check_run_id(run_id)
        return self._database.read(lambda connection: reads.load(connection, run_id), run_id)

    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        """Return at most ``limit`` records whose seq is above ``after_seq`` (-1: from the start).

        Raises: `StoreCorruptError` when one of them cannot be decoded.
        """
        check_run_id(run_id)
        check_after_seq(after_seq)
        check_limit(limit)
        return self._database.read(
            lambda connection: reads.load_after(connection, run_id, after_seq, limit), run_id
        )

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        """Replace the run's row as a whole if the lease is live (M1, M2).

        Raises: `LeaseHeldError` for any dead lease.
        """
        text = check_meta(meta)
        if lease is not None:
            check_lease(lease)
        run_id = meta.run_id
        self._database.write(
            Job(
                lambda tx: mutations.put_meta(tx, run_id, text, lease),
                run_id=run_id,
                lease=lease,
                size=len(text),
            )
        )

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        """Return the row or None.

        Raises: `StoreCorruptError` for a row that cannot be read (M2).
        """
        check_run_id(run_id)
        return self._database.read(lambda connection: reads.get_meta(connection, run_id), run_id)

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return matching rows by the run id's UTF-8 bytes, one snapshot (M1, M2).

        A row that cannot be read is left out. Raises: only what every store call may.
        """
        wanted = check_filter(run_filter)
        return self._database.read(lambda connection: reads.list_runs(connection, wanted))

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        """Return at most ``limit`` ids with entries, row, lease or blobs, by UTF-8 bytes.

        Raises: only what every store call may.
        """
        if after_run_id is not None:
            check_run_id(after_run_id)
        check_limit(limit)
        return self._database.read(
            lambda connection: reads.list_run_ids(connection, after_run_id, limit)
        )

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row and lease, all or nothing; keep the tombstone and blobs (D1).

        Raises: `LeaseHeldError` for any dead lease.
        """
        self._delete(run_id, lease, blobs=False)

    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row, lease and blobs in one transaction; keep the tombstone.

        Raises: `LeaseHeldError` for any dead lease.
        """
        self._delete(run_id, lease, blobs=True)

    def _delete(self, run_id: str, lease: Lease | None, *, blobs: bool) -> None:
        check_run_id(run_id)
        if lease is not None:
            check_lease(lease)
        self._database.write(
            Job(
                lambda tx: mutations.delete_run(tx, run_id, lease, blobs=blobs),
                run_id=run_id,
                lease=lease,
            )
        )

    # --- leases ----------------------------------------------------------------------------

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        """Grant the run under an epoch higher than it has ever had.

        Raises: `LeaseHeldError` (``held``) while a lease is live, the same owner's too.
        """
        check_run_id(run_id)
        check_owner(owner)
        ttl_ms = self.lease_ttl_ms
        return self._database.write(
            Job(
                lambda tx: mutations.acquire(tx, run_id, owner, ttl_ms),
                run_id=run_id,
                grants=True,
            )
        )

    def renew(self, lease: Lease, /) -> None:
        """Move the expiry of a live lease to now plus the time to live.

        Raises: `LeaseHeldError` for any dead lease; the successor's is never touched.
        """
        check_lease(lease)
        ttl_ms = self.lease_ttl_ms
        self._database.write(
            Job(
                lambda tx: mutations.renew(tx, lease, ttl_ms),
                run_id=lease.run_id,
                urgent=True,
            )
        )

    def renew_all(self, leases: Sequence[Lease], /) -> Sequence[LeaseHeldError]:
        """Renew every live lease in one transaction; return a refusal for each dead one.

        Raises: only what every store call may.
        """
        renewed = tuple(map(check_lease, leases))
        if not renewed:
            self._database.life.check()
            return ()
        ttl_ms = self.lease_ttl_ms
        return self._database.write(
            Job(
                lambda tx: mutations.renew_all(tx, renewed, ttl_ms),
                run_id=None,
                urgent=True,
            )
        )

    def release(self, lease: Lease, /) -> None:
        """End a live lease.

        Raises: `LeaseHeldError` for any dead lease; the successor's is never touched.
        """
        check_lease(lease)
        self._database.write(
            Job(
                lambda tx: mutations.release(tx, lease),
                run_id=lease.run_id,
                urgent=True,
            )
        )

    def revive(self, lease: Lease, /) -> Lease:
        """Grant the next epoch to the holder of an expired lease whose run was not taken since.

        Raises: `LeaseHeldError` for every other lease, with its reason, changing nothing; a
        live one is refused as ``held`` naming its own owner and epoch.
        """
        check_lease(lease)
        ttl_ms = self.lease_ttl_ms
        return self._database.write(
            Job(
                lambda tx: mutations.revive(tx, lease, ttl_ms),
                run_id=lease.run_id,
                urgent=True,
                grants=True,
            )
        )

    def seize(self, run_id: str, owner: str, /, *, over: Lease | None = None) -> Lease:
        """Grant a new, higher epoch even while a lease is live: safe because of the fence.

        Raises: with ``over``, `LeaseHeldError` (``superseded``) unless exactly that lease is
        the run's present one, live or expired; ``foreign-run`` when it names another run.
        """
        check_run_id(run_id)
        check_owner(owner)
        if over is not None:
            check_lease(over)
        ttl_ms = self.lease_ttl_ms
        return self._database.write(
            Job(
                lambda tx: mutations.seize(tx, run_id, owner, ttl_ms, over),
                run_id=run_id,
                lease=over,
                grants=True,
            )
        )

    def raise_epoch(self, run_id: str, at_least: int, /) -> None:
        """Make the run's high-water mark at least ``at_least``, and end the run's lease.

        Raises: only what every store call may.
        """
        check_run_id(run_id)
        check_epoch(at_least)
        self._database.write(
            Job(
                lambda tx: mutations.raise_epoch(tx, run_id, at_least),
                run_id=run_id,
                grants=True,
            )
        )

    def get_lease(self, run_id: str, /) -> LeaseInfo | None:
        """Return the run's lease row, live or not, or None.

        Raises: only what every store call may.
        """
        check_run_id(run_id)
        now_ms = self._database.clock.now_ms
        return self._database.read(
            lambda connection: reads.get_lease(connection, run_id, now_ms()), run_id
        )

    def list_leases(self, after_run_id: str | None, limit: int, /) -> Sequence[LeaseInfo]:
        """Return at most ``limit`` lease rows after a run id, by the id's UTF-8 bytes.

        Raises: only what every store call may.
        """
        if after_run_id is not None:
            check_run_id(after_run_id)
        check_limit(limit)
        now_ms = self._database.clock.now_ms
        return self._database.read(
            lambda connection: reads.list_leases(connection, after_run_id, limit, now_ms())
        )


class SqliteStores(Stores):
    """A `SqliteStore` and its transcripts as a pair; options and errors as there."""

    __slots__ = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_ttl_ms: int = 60_000,
        busy_timeout_ms: int | None = None,
        durability: Durability = "full",
        clock: Clock | None = None,
        open_timeout_ms: int = 10_000,
        allow_network_filesystem: bool = False,
        read_only: bool = False,
        permissions: Permissions = "private",
    ) -> None:
        store = SqliteStore(
            path,
            lease_ttl_ms=lease_ttl_ms,
            busy_timeout_ms=busy_timeout_ms,
            durability=durability,
            clock=clock,
            open_timeout_ms=open_timeout_ms,
            allow_network_filesystem=allow_network_filesystem,
            read_only=read_only,
            permissions=permissions,
        )
        super().__init__(store, store.transcripts())


def _milliseconds(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        message = f"{name} must be an integer from 0 to 2147483647, not {value!r}"
        raise ConfigError(message)
    return value


def _busy_timeout(value: int | None, lease_ttl_ms: int) -> int:
    if value is None:
        return min(_DEFAULT_BUSY_MS, lease_ttl_ms // 5)
    busy_timeout_ms = _milliseconds("busy_timeout_ms", value)
    if busy_timeout_ms * 3 >= lease_ttl_ms:
        message = (
            f"busy_timeout_ms={busy_timeout_ms} must be below a third of "
            f"lease_ttl_ms={lease_ttl_ms}, or a renewal that waits outlives its lease: use at "
            f"most {max(0, (lease_ttl_ms - 1) // 3)}"
        )
        raise ConfigError(message)
    return busy_timeout_ms


def _durability(value: object) -> Durability:
    if value == "full":
        return "full"
    if value == "normal":
        return "normal"
    message = f"durability must be 'full' or 'normal', not {value!r}"
    raise ConfigError(message)


def _permissions(value: object) -> Permissions:
    if value == "private":
        return "private"
    if value == "umask":
        return "umask"
    message = f"permissions must be 'private' or 'umask', not {value!r}"
    raise ConfigError(message)
