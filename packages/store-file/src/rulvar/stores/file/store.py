"""`FileJournalStore` and `FileStores`: journals and rows that a person can read, one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rulvar.core.checks import (
    check_after_seq,
    check_filter,
    check_limit,
    check_meta,
    check_record,
    check_run_id,
)
from rulvar.core.clock import SystemClock
from rulvar.core.errors import ConfigError
from rulvar.core.stores import Stores
from rulvar.stores.file.deletions import delete_run, finish_deletions, is_being_deleted
from rulvar.stores.file.directory import Settings, StoreDirectory
from rulvar.stores.file.errors import translate
from rulvar.stores.file.filesystem import FileSystem
from rulvar.stores.file.journals import Journals
from rulvar.stores.file.opening import resolve
from rulvar.stores.file.rows import Rows
from rulvar.stores.file.transcripts import FileTranscriptStore

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import TracebackType

    from rulvar.core.clock import Clock
    from rulvar.core.records import JournalRecord, Lease, RunFilter, RunMeta
    from rulvar.stores.file.directory import Durability, Permissions

__all__ = ["FileJournalStore", "FileStores"]


class FileJournalStore:
    """Journals and rows in one folder, written by one process at a time (contract.md#journalstore).

    It grants no leases and declares no fence: what keeps a second writer out is a lock of the
    operating system on the folder, held until the store is closed or its process ends. A
    store object may be shared by any number of threads.

    ``root`` is the folder, made when it is not there. ``durability`` is ``"full"`` (what is
    answered survives power loss) or ``"normal"`` (it survives the end of the process; power
    loss may take the last of it, and leave a journal that has to be repaired). ``read_only``
    opens a store beside its writer and never writes a byte. ``permissions`` is ``"private"``
    (new files and folders are for this user alone, 0600 and 0700, whatever the umask) or
    ``"umask"``; what is there keeps what it has. ``clock`` gives the time since which the
    folder is held. ``filesystem`` is what everything goes through, for injecting faults.

    Raises `ConfigError` for a wrong option, for a folder that is not a store's, and for one
    that is not there when ``read_only``; `StoreInUseError` naming the present writer, before
    anything is touched; `StoreForkedError` in a child of a process that had it open at the
    fork; `StoreFullError` and `StoreError` as the disk has it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        read_only: bool = False,
        permissions: Permissions = "private",
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
    ) -> None:
        settings = Settings(
            root=resolve(root),
            durability=_durability(durability),
            read_only=_flag("read_only", read_only),
            permissions=_permissions(permissions),
        )
        files = FileSystem() if filesystem is None else filesystem
        self._directory = StoreDirectory(settings, files, SystemClock() if clock is None else clock)
        self._journals = Journals(self._directory)
        self._rows = Rows(self._directory)
        self._twin = FileTranscriptStore(self._directory)
        if not read_only:
            self._finish_deletions()

    def _finish_deletions(self) -> None:
        try:
            finish_deletions(self._directory)
        except BaseException as error:
            self._directory.close()
            if isinstance(error, OSError):
                raise translate(error, path=self.root) from error
            raise

    # --- what it is ------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The absolute path of the folder."""
        return self._directory.settings.root

    @property
    def durability(self) -> Durability:
        """What an answered write survives: ``full`` power loss, ``normal`` the process's end."""
        return self._directory.settings.durability

    @property
    def read_only(self) -> bool:
        """Whether every change is refused."""
        return self._directory.read_only

    def transcripts(self) -> FileTranscriptStore:
        """Return the twin: blobs in the same folder, of the same life."""
        return self._twin

    def close(self) -> None:
        """Wait for the calls in flight, refuse every later one, let others write; idempotent.

        Raises: `StoreForkedError` in a forked child, where nothing is closed.
        """
        self._directory.close()

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
        return f"FileJournalStore({self.root!r})"

    # --- journals --------------------------------------------------------------------------

    def append(self, run_id: str, record: JournalRecord, /) -> None:
        """Add a record; it is on the medium when this returns, at full durability (A1, A3, A5).

        Raises: `JournalOrderViolation` when ``record.seq`` is not above the stored tail;
        `StoreCorruptError` when the end of the journal is damaged, or when the journal is less
        than this store left there: removed, cut or restored under it. Nothing lands then.
        """
        check_run_id(run_id)
        check_record(record)
        with self._directory.writing(run_id):
            self._journals.append(run_id, record)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        """Return the run's records in the order of their appends; none when unknown (A2).

        Raises: `StoreCorruptError` with run, position and kind for a line that is not a record,
        and for a journal that is less than this store left there.
        """
        check_run_id(run_id)
        with self._directory.reading(run_id):
            if self._is_deleted(run_id):
                return []
            return self._journals.load(run_id)

    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        """Return at most ``limit`` records whose seq is above ``after_seq`` (-1: all).

        Reads from the end of the file, and only as far as it must.

        Raises: `StoreCorruptError` when a line that it read is not a record.
        """
        check_run_id(run_id)
        check_after_seq(after_seq)
        check_limit(limit)
        with self._directory.reading(run_id):
            if self._is_deleted(run_id):
                return []
            return self._journals.load_after(run_id, after_seq, limit)

    # --- rows ------------------------------------------------------------------------------

    def put_meta(self, meta: RunMeta, /) -> None:
        """Replace the run's row as a whole; every field round-trips (M1, M2).

        Raises: only what every store call may.
        """
        text = check_meta(meta)
        with self._directory.writing(meta.run_id):
            self._rows.put(meta.run_id, text)

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        """Return the row or None.

        Raises: `StoreCorruptError` for a row that cannot be read (M2).
        """
        check_run_id(run_id)
        with self._directory.reading(run_id):
            if self._is_deleted(run_id):
                return None
            return self._rows.get(run_id)

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        """Return matching rows by the run id's UTF-8 bytes; reads no journal (M1, M2).

        A row that cannot be read is left out. Raises: only what every store call may.
        """
        wanted = check_filter(run_filter)
        with self._directory.listing():
            return self._rows.list_runs(wanted)

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        """Return at most ``limit`` ids with entries, row or blobs, by UTF-8 bytes.

        Raises: only what every store call may.
        """
        if after_run_id is not None:
            check_run_id(after_run_id)
        check_limit(limit)
        with self._directory.listing():
            return self._rows.list_run_ids(after_run_id, limit)

    # --- deletion --------------------------------------------------------------------------

    def delete(self, run_id: str, /) -> None:
        """Remove journal and row, all or nothing; an unknown run is a no-op, blobs stay (D1).

        Raises: only what every store call may.
        """
        check_run_id(run_id)
        self._delete(run_id, blobs=False)

    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        """Remove journal, row and blobs, all or nothing; an unknown run is a no-op.

        Raises: `ConfigError` for a lease, since this store grants none.
        """
        check_run_id(run_id)
        if lease is not None:
            message = f"{self.root} grants no leases: leave the lease out, or use sqlite:///<path>"
            raise ConfigError(message)
        self._delete(run_id, blobs=True)

    def _delete(self, run_id: str, *, blobs: bool) -> None:
        with self._directory.writing(run_id):
            delete_run(self._directory, self._journals, run_id, blobs=blobs)

    def _is_deleted(self, run_id: str) -> bool:
        # The writer finishes a deletion before it answers anything else about the run.
        return self._directory.read_only and is_being_deleted(self._directory, run_id)


class FileStores(Stores):
    """A `FileJournalStore` and its transcripts as a pair; options as there."""

    __slots__ = ()

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        read_only: bool = False,
        permissions: Permissions = "private",
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
    ) -> None:
        journal = FileJournalStore(
            root,
            durability=durability,
            read_only=read_only,
            permissions=permissions,
            clock=clock,
            filesystem=filesystem,
        )
        super().__init__(journal, journal.transcripts())


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


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    message = f"{name} must be True or False, not {value!r}"
    raise ConfigError(message)
