"""One database and its life: what a store and its twin share.

Writes go through the one `Committer`; reads go to a few connections of their own, each behind
a plain lock, so that they never wait for a writer and an interrupt loses none of them. In
memory there is one connection, and a read waits its turn there.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.lease_status import refuse_foreign
from rulvar.core.store_life import StoreLife
from rulvar.stores.sqlite import open_files
from rulvar.stores.sqlite.connection import BusyRetry, look
from rulvar.stores.sqlite.errors import FAILURES, translate
from rulvar.stores.sqlite.forks import remedy, watch
from rulvar.stores.sqlite.group_commit import Committer
from rulvar.stores.sqlite.os_checks import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import apsw

    from rulvar.core.clock import Clock
    from rulvar.stores.sqlite.connection import Settings
    from rulvar.stores.sqlite.job import Job
    from rulvar.stores.sqlite.open_files import OpenFiles

__all__ = ["Database"]

_T = TypeVar("_T")
_READERS = 4


class _Reader:
    """A connection for reads, opened when first needed; used under its lock alone."""

    __slots__ = ("connection", "files", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: apsw.Connection | None = None
        self.files: OpenFiles | None = None


class Database:
    """The committer, the readers and the life of one open database."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        fork_remedy = "open another one here" if settings.in_memory else remedy(settings.path)
        self.life = StoreLife(f"the store at {settings.path}", remedy=fork_remedy)
        self._readers: tuple[_Reader, ...] = ()
        self._committer = Committer(settings, clock)
        watch(self)
        if settings.in_memory:
            self.fencing_domain = f"sqlite:memory:{uuid.uuid4()}"
        else:
            self._readers = tuple(_Reader() for _ in range(_READERS))
            place = place_of(settings.path)
            self.fencing_domain = f"sqlite:{place.device}:{place.inode}:{place.folder}:{place.name}"

    def write(self, job: Job[_T]) -> _T:
        """Have a mutation committed; see `Committer.run`.

        The order of the checks is the contract's: the store's life, then a lease that names
        another run, then what the job's own statement asks. Raises `ConfigError` where the file
        was opened to read only.
        """
        self.life.check()
        if job.run_id is not None:
            refuse_foreign(job.run_id, job.lease)
        if self.settings.read_only:
            message = (
                f"{self.settings.path} was opened with read_only, and this call would write: "
                "nothing was changed; open it without read_only"
            )
            raise ConfigError(message)
        return self._committer.run(job)

    def read(self, read: Callable[[apsw.Connection], _T], run_id: str | None = None) -> _T:
        """Return what a read returns, from committed data alone, retrying while it is locked."""
        self.life.check()
        committer = self._committer
        if committer.unsettled:
            committer.settle()
        try:
            if self.settings.in_memory:
                return committer.read_in_memory(read)
            retry = BusyRetry(self.settings.busy_timeout_ms)
            return retry.run(lambda: self._read(read), self.settings.path)
        except UnicodeDecodeError as error:
            message = (
                f"{self.settings.path} has a text that is not UTF-8 ({error}): another writer left "
                "it there; correct that row"
            )
            raise StoreCorruptError(message, run_id=run_id) from error
        except FAILURES as error:
            raise translate(error, path=self.settings.path, run_id=run_id) from error

    def _read(self, read: Callable[[apsw.Connection], _T]) -> _T:
        reader = self._choose()
        with reader.lock:
            self.life.check()
            if reader.connection is None:
                reader.connection, reader.files = look(self.settings)
            elif reader.files is not None:
                reader.files.check()
            try:
                return read(reader.connection)
            finally:
                # An interrupt may have left a snapshot open, which would pin the log.
                if reader.connection.in_transaction:
                    reader.connection.execute("ROLLBACK")

    def _choose(self) -> _Reader:
        for reader in self._readers:
            if not reader.lock.locked():
                return reader
        return self._readers[threading.get_ident() % len(self._readers)]

    def close(self) -> None:
        """Wait for the calls in flight, then close everything; idempotent."""
        self.life.close()
        try:
            for reader in self._readers:
                with reader.lock:
                    if reader.connection is not None:
                        open_files.close(reader.connection)
                        reader.connection = None
            self._committer.close()
        except FAILURES as error:
            raise translate(error, path=self.settings.path) from error

    def connections(self) -> Iterator[apsw.Connection]:
        """Return every connection that is open."""
        for reader in self._readers:
            if reader.connection is not None:
                yield reader.connection
        yield from self._committer.connections()

    def locks(self) -> Iterator[threading.Lock]:
        """Return every lock that is held while this process is inside SQLite."""
        for reader in self._readers:
            yield reader.lock
        yield from self._committer.locks()

    def cursors(self) -> Iterator[apsw.Cursor]:
        """Return every cursor that outlives its call, for the same reason."""
        yield from self._committer.cursors()
