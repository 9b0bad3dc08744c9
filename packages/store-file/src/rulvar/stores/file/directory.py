"""One folder and its life: what a journal store and its transcripts share.

Every call on a run stands behind that run's stripe, one of a few plain locks. What is in
flight when the store closes is waited for by passing through all of them. An interrupt that
leaves a call leaves no lock behind.

**Doubt.** A change to the disk takes several steps, and each may fail or be cut short. Before
the first one the change leaves a *recovery action* with the directory: what makes its outcome
final whatever has happened until then (take a half-written record away, finish a deletion). It
is withdrawn when the change is whole. One that is still there at the next call on the run is
carried out first, so that no read sees a change that may yet come or go, and no write follows
half a record.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

from rulvar.core.errors import (
    ConfigError,
    OutcomeUnknownError,
    StoreCorruptError,
    StoreError,
)
from rulvar.core.store_life import StoreLife
from rulvar.stores.file.errors import translate
from rulvar.stores.file.filesystem import CREATE, exists, opened, write_all
from rulvar.stores.file.forks import REMEDY, forget, identity_of, refuse_inherited, watch
from rulvar.stores.file.layout import Layout, Names, name_document
from rulvar.stores.file.lock import WriterLock
from rulvar.stores.file.names import encode_name, is_digest_name
from rulvar.stores.file.opening import prepare, require_folders, require_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.clock import Clock
    from rulvar.stores.file.filesystem import FileSystem
    from rulvar.stores.file.forks import Identity

__all__ = ["Durability", "Permissions", "RecoveryAction", "Settings", "StoreDirectory"]

Durability = Literal["full", "normal"]
Permissions = Literal["private", "umask"]
"""Who may read what the store makes: its user alone, or whom the process's umask lets in."""

RecoveryAction = Callable[[], None]
"""Makes the outcome of a change final; may be carried out more than once."""

_STRIPES = 64
_SURELY_ANOTHER_TICK_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a folder was asked to be opened."""

    root: str
    durability: Durability
    read_only: bool
    permissions: Permissions = "private"


class StoreDirectory:
    """The folder, the right to write in it, and the changes whose outcome is open."""

    def __init__(self, settings: Settings, files: FileSystem, clock: Clock) -> None:
        self.settings = settings
        self.files = files
        files.stay_below(settings.root)
        if settings.permissions == "umask":
            files.share_by_umask()
        self.clock = clock
        self.layout = Layout(settings.root)
        self.names = Names(files, self.layout)
        self.life = StoreLife(f"the store at {settings.root}", remedy=REMEDY)
        self._ending = threading.Lock()
        self._lists = threading.Lock()
        self._stripes = tuple(threading.Lock() for _ in range(_STRIPES))
        self._temporaries = itertools.count()
        self._recoveries: dict[str, RecoveryAction] = {}
        self._changed: set[str] = set()
        self._lock: WriterLock | None = None
        self._confirmed: tuple[int, int, int] | None = None
        self._identity: Identity | None = None
        self._folders: tuple[Identity, ...] = ()
        try:
            refuse_inherited(files, settings.root)
            if settings.read_only:
                require_store(files, self.layout)
            else:
                self._lock = WriterLock(files, self.layout, clock)
                prepare(files, self.layout, self._lock)
                self._folders = require_folders(files, self.layout)
            self._identity = identity_of(files.look(settings.root))
            watch(self)
        except OSError as error:
            self._give_back()
            raise translate(error, path=settings.root) from error
        except BaseException:
            self._give_back()
            raise

    @property
    def full(self) -> bool:
        """Whether what is answered survives power loss."""
        return self.settings.durability == "full"

    @property
    def read_only(self) -> bool:
        """Whether nothing is ever written."""
        return self.settings.read_only

    @property
    def identity(self) -> Identity | None:
        """What distinguishes the folder from every other one, once it is open."""
        return self._identity

    # --- calls ------------------------------------------------------------------------------

    def _confirm(self) -> None:
        """See that the folder is still the one that was opened, whole and this writer's alone.

        What was removed must not be taken for empty, and what was put in its place must not be
        written to. Whoever adds, moves or removes a name in the root changes its ctime, so as
        long as that stands still, one look is enough.
        """
        now = self.files.look(self.layout.root)
        seen = (now.st_dev, now.st_ino, now.st_ctime_ns)
        if seen == self._confirmed:
            return
        if self._lock is not None:
            self._lock.confirm()
        folders = require_folders(self.files, self.layout)
        if self._lock is not None and folders != self._folders:
            at = next(i for i, each in enumerate(folders) if each != self._folders[i])
            message = (
                f"{self.layout.folders[at]} is not the folder that this store opened: it was moved "
                "away and another one put in its place, perhaps by a restore: close this store, "
                "see to the folder, and open it again"
            )
            raise StoreCorruptError(message)
        # A change within the same tick of the file system's clock would leave no mark.
        if os.name != "nt" and abs(time.time_ns() - now.st_ctime_ns) > _SURELY_ANOTHER_TICK_NS:
            self._confirmed = seen

    @contextmanager
    def reading(self, run_id: str) -> Iterator[None]:
        """Hold the run's stripe for a call that changes nothing, all outcomes final."""
        self.life.check()
        with self._stripe(run_id):
            self.life.check()
            try:
                self._confirm()
                self.recover(run_id)
                yield
            except OSError as error:
                raise translate(error, path=self.settings.root, run_id=run_id) from error

    @contextmanager
    def writing(self, run_id: str) -> Iterator[None]:
        """Hold the run's stripe for a change. Raises `ConfigError` on a read-only store."""
        self.life.check()
        if self.read_only:
            message = f"{self.settings.root} was opened read-only: open it without read_only"
            raise ConfigError(message)
        with self.reading(run_id):
            self._changed.add(run_id)
            yield

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Stand around a call on the whole folder, one at a time; it takes stripes as it goes."""
        self.life.check()
        with self._lists:
            self.life.check()
            try:
                self._confirm()
                yield
            except OSError as error:
                raise translate(error, path=self.settings.root) from error

    def _stripe(self, run_id: str) -> threading.Lock:
        return self._stripes[hash(run_id) % _STRIPES]

    # --- changes ----------------------------------------------------------------------------

    def set_recovery(self, run_id: str, action: RecoveryAction) -> None:
        """Register what makes the change that now begins final, wherever it is stopped."""
        self._recoveries[run_id] = action

    def clear_recovery(self, run_id: str) -> None:
        """Withdraw the action: the change is whole."""
        del self._recoveries[run_id]

    def recover(self, run_id: str) -> None:
        """Make an outcome final that is still open. Raises ``OSError`` when that fails."""
        action = self._recoveries.get(run_id)
        if action is not None:
            action()
            del self._recoveries[run_id]

    def fail(self, run_id: str, error: OSError, *, landed: bool) -> NoReturn:
        """Raise for a change that failed, having made its outcome final where that works.

        ``landed`` says that the change was to be seen already when it failed.
        """
        unknown: OSError | None = error if landed else None
        try:
            self.recover(run_id)
        except OSError as second:
            unknown = second
        if unknown is None:
            raise translate(error, path=self.settings.root, run_id=run_id) from error
        message = (
            f"a write for run {run_id!r} below {self.settings.root} failed "
            f"({error.strerror or error}) and may have landed all the same: read, then decide"
        )
        raise OutcomeUnknownError(message, run_id=run_id) from error

    def changed_runs(self) -> tuple[str, ...]:
        """Return the runs that were changed, or meant to be, since they were last `seen`."""
        return tuple(self._changed.copy())

    def seen(self, run_id: str) -> None:
        """Forget that the run was changed; inside `reading` alone."""
        self._changed.discard(run_id)

    # --- files ------------------------------------------------------------------------------

    def new_temporary(self) -> str:
        """Return a path for a file that is not yet in its place."""
        return f"{self.layout.temporary}{os.sep}{next(self._temporaries)}"

    def write_new(self, path: str, data: bytes, *, sync: bool) -> None:
        """Write a file that is not there yet."""
        with opened(self.files, path, CREATE) as descriptor:
            write_all(self.files, descriptor, data)
            if sync:
                self.files.sync(descriptor)

    def discard(self, path: str) -> None:
        """Remove a file that may not be there."""
        if exists(self.files, path):
            self.files.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable, where that was asked for."""
        if self.full:
            self.files.sync_folder(path)

    def replace(self, run_id: str, target: str, data: bytes) -> None:
        """Put a whole file in its place: at any time the old one is there or the new one.

        Its bytes are synced at every durability: a name must never stand for less.
        """
        folder = os.path.dirname(target)  # noqa: PTH120 - text in, text out
        path = self.new_temporary()
        self.set_recovery(run_id, partial(self.discard, path))
        moving = False
        try:
            self.write_new(path, data, sync=True)
            self.set_recovery(run_id, partial(self._recover_move, path, folder))
            moving = True
            self.files.rename(path, target)
            self.sync_folder(folder)
        except OSError as error:
            self.fail(run_id, error, landed=moving and self.is_gone(path))
        self.clear_recovery(run_id)

    def _recover_move(self, path: str, folder: str) -> None:
        self.discard(path)
        self.sync_folder(folder)

    def is_gone(self, path: str) -> bool:
        """Whether nothing of that name is left, or it cannot be known."""
        try:
            return not exists(self.files, path)
        except OSError:
            return True

    def remove(self, run_id: str, path: str) -> None:
        """Take a file away."""
        if not exists(self.files, path):
            return
        folder = os.path.dirname(path)  # noqa: PTH120
        self.set_recovery(run_id, partial(self.sync_folder, folder))
        try:
            self.files.unlink(path)
            self.sync_folder(folder)
        except OSError as error:
            self.fail(run_id, error, landed=self.is_gone(path))
        self.clear_recovery(run_id)

    def register(self, text: str) -> None:
        """Write down what a shortened name stands for, before there is a file of that name."""
        digest = is_digest_name(encode_name(text))
        if digest is None or self.names.is_known(digest):
            return
        path = self.new_temporary()
        try:
            self.write_new(path, name_document(text), sync=True)
            self.files.rename(path, self.layout.name_file(digest))
        except OSError:
            if not self.is_gone(path):
                self.files.unlink(path)
            raise
        self.files.sync_folder(self.layout.names)
        self.names.learn(text)

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the calls in flight, make what is open final, and let others write."""
        self.life.close()
        for lock in (*self._stripes, self._lists):
            with lock:
                pass
        with self._ending:
            try:
                if self._recoveries:
                    self._confirm()
                for run_id in tuple(self._recoveries):
                    self.recover(run_id)
            except (OSError, StoreError):
                # The next opening finds the same: a tail to judge, a deletion to finish.
                self._recoveries.clear()
            self._give_back()

    def _give_back(self) -> None:
        forget(self)
        if self._lock is None:
            return
        try:
            self._lock.give_back()
        except OSError as error:
            raise translate(error, path=self.settings.root) from error
