"""Group commit: concurrent callers of one store share transactions.

Each caller is fenced by itself: it brings a `Job` whose work is one mutation with its own
condition. One of the callers *leads*: it begins, takes the callers that wait by then, runs their
work, commits once, and hands out the answers, refusals too, after the COMMIT. Then it names the
next leader among those who wait, so that newcomers do not barge in.

The rules that keep an interrupt (KeyboardInterrupt, at any instruction of the main thread)
from leaving anything torn or stuck:

- leadership is a plain lock in a ``with``; nothing else is ever waited for without a bound;
- a caller waits on its own lock, a short while at a time, and leads when no other does;
- the leader looks at the queue; a job leaves it only when it is finished or withdrawn;
- the stage is written down before COMMIT, and the next leader repairs what was left:
  an open transaction is rolled back (its jobs are still queued, and run again), one whose
  COMMIT may have happened ends its jobs with `OutcomeUnknownError`;
- an interrupted caller withdraws its job before the interrupt goes on, and when the job was
  in the batch, only under the leader's lock: nothing of it lands later.

A COMMIT that fails on a disk error may leave a whole commit on the disk that no reader sees and
that a crash would bring back. One more commit overwrites it: the *barrier*, made before such a
batch runs again, before the outcome is called unknown, and before the next read is answered.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeVar

from rulvar.core.checks import MAX_INTEGER, check_integer
from rulvar.core.errors import OutcomeUnknownError, StoreClosedError, StoreCorruptError, StoreError
from rulvar.stores.sqlite import open_files, schema
from rulvar.stores.sqlite.connection import (
    BusyRetry,
    busy_error,
    create_or_open,
    pause,
    set_durability,
)
from rulvar.stores.sqlite.errors import (
    BUSY,
    FAILURES,
    DefectError,
    is_doubtful_commit,
    translate,
    was_rolled_back,
)
from rulvar.stores.sqlite.mutations import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from rulvar.core.clock import Clock
    from rulvar.stores.sqlite.connection import Durability, Settings
    from rulvar.stores.sqlite.job import Job

__all__ = ["Committer"]

_T = TypeVar("_T")

_LOOK_AGAIN_S = 0.05
_MOST_TRIES = 1_000
_MOST_JOBS = 256
_MOST_BYTES = 8 * 1024 * 1024

Stage = Literal["working", "committing", "committed"]


class Committer:
    """The one writer of a store object, shared by all of its threads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._busy_s = settings.busy_timeout_ms / 1000
        self._jitter = random.Random()  # noqa: S311 - jitter, no secret
        self._leader = threading.Lock()
        self._gate = threading.Lock()
        self._queue: deque[Job[object]] = deque()
        self._batch: tuple[Job[object], ...] = ()
        self._stage: Stage = "working"
        self._led = False
        self._closed = False
        self._durability: Durability = settings.durability
        self.unsettled = False
        opened = create_or_open(settings)
        self._connection: apsw.Connection | None = opened.connection
        self._cursor: apsw.Cursor | None = None
        self._files = opened.files

    # --- the caller's side -----------------------------------------------------------------

    def run(self, job: Job[_T]) -> _T:
        """Have the job's work committed and return its result, or raise its refusal.

        Raises `StoreBusyError` when the file stayed locked for the busy timeout.
        """
        entry: Job[object] = job  # type: ignore[assignment] # the queue never reads a result
        try:
            self._queue.append(entry)
            if not self._led:
                self._lead(entry)
            while not job.done:
                if self._must_lead(entry):
                    self._lead(entry)
        except BaseException:
            job.abandoned = True
            tries = 0
            while not job.gone and tries < _MOST_TRIES:
                # A second interrupt must not leave the job behind: the first one goes on.
                tries += 1
                with contextlib.suppress(BaseException):
                    self._withdraw(entry)
            raise
        return job.answer()

    def _must_lead(self, job: Job[object]) -> bool:
        """Wait a while for the answer; return whether the job must see to it by itself."""
        named = job.wait(_LOOK_AGAIN_S)
        return not job.done and (named or not self._leader.locked())

    def read_in_memory(self, read: Callable[[apsw.Connection], _T]) -> _T:
        """Run a read on the one connection that a database in memory has."""
        with self._leader:
            connection = self._open()
            self._repair()
            return read(connection)

    def settle(self) -> None:
        """Make the outcome of every commit that failed so far final; cheap when there is none.

        Raises what the disk still reports.
        """
        with self._leader:
            self._open()
            self._repair()
            if self.unsettled:
                self._barrier()

    def close(self) -> None:
        """Finish the waiting calls, close the connection, and refuse every later call."""
        while True:
            with self._leader:
                if not self._closed:
                    self._repair()
                    self._closed = not self._waiting()
                if self._closed:
                    self._close_connection()  # again, where an interrupt stopped it
                    return
                self._hand_over()
            time.sleep(0.001)

    def _close_connection(self) -> None:
        if self._connection is not None:
            mine = self._files is None or not self._files.moved()
            open_files.close(self._connection, checkpoint=mine)
            self._connection = None

    def locks(self) -> tuple[threading.Lock, ...]:
        """Return the lock that is held while the one connection is at work."""
        return (self._leader,)

    def connections(self) -> tuple[apsw.Connection, ...]:
        """Return the connection, if it is open."""
        connection = self._connection
        return () if connection is None else (connection,)

    def cursors(self) -> tuple[apsw.Cursor, ...]:
        """Return the cursor that is kept, if there is one."""
        cursor = self._cursor
        return () if cursor is None else (cursor,)

    # --- leading ---------------------------------------------------------------------------

    def _lead(self, job: Job[object]) -> None:
        with self._leader:
            job.led = True
            self._led = True
            self._open()
            self._repair()
            if not job.done:
                self._serve(job)
            self._hand_over()

    def _open(self) -> apsw.Connection:
        if self._closed:
            message = f"the store at {self._settings.path} was closed: open it again"
            raise StoreClosedError(message)
        if self._connection is None:
            self._connection, self._files = create_or_open(self._settings)
            self._durability = self._settings.durability
        return self._connection

    def _serve(self, leading: Job[object]) -> None:
        if self.unsettled:
            self._barrier()
        if not self._begin(leading):
            return
        batch = self._take()
        try:
            tx = Transaction(self._open(), self._now())
            for job in batch:
                self._perform(job, tx)
            self._commit()
            self._check_landing()
        except FAILURES as error:
            self._recover(batch, error)
        else:
            self._deliver()

    def _now(self) -> int:
        """Read the clock, under the write lock; an answer that is not a time is a typed error."""
        try:
            now = self._clock.now_ms()
            if type(now) is int and 0 <= now <= MAX_INTEGER:
                return now
            return check_integer("the clock's now_ms()", now, 0, MAX_INTEGER)
        except Exception as error:
            message = f"the clock of {self._settings.path} returned no valid time: {error}"
            raise DefectError(message) from error

    def _begin(self, leading: Job[object], *, alone: bool = False) -> bool:
        """Take the file's write lock; return False when the leading job's time ran out.

        Whoever else waits is answered at its own time, unless the job is ``alone``.
        """
        connection = self._open()
        if self._cursor is None:
            # Kept for BEGIN and COMMIT: to make one costs as much as what it runs.
            self._cursor = connection.cursor()
        begin = self._cursor.execute
        if self._settings.durability != "full":
            self._choose_durability(connection, [leading] if alone else self._waiting())
        while True:
            try:
                begin("BEGIN IMMEDIATE")
            except BUSY:
                self._expire([leading] if alone else self._waiting())
                if leading.done:
                    return False
                pause(self._jitter)
            except FAILURES as error:
                self._check_files()  # which may be the whole reason
                raise self._translated(error) from error
            else:
                # Only now: a process may have been stopped for hours while it waited.
                self._check_files()
                return True

    def _check_files(self) -> None:
        """Refuse to go on when what is open has lost its name. Raises `StoreCorruptError`."""
        if self._files is None:
            return
        try:
            self._files.check()
        except StoreCorruptError:
            self._undo()
            raise

    def _choose_durability(self, connection: apsw.Connection, jobs: list[Job[object]]) -> None:
        # An epoch that was granted must survive power loss at every setting (A3); the
        # pragma does nothing inside a transaction, so it comes before.
        wanted: Durability = "full" if any(job.grants for job in jobs) else "normal"
        # Between the two steps an interrupt may at worst leave more than is written down.
        if wanted == "full" and self._durability != "full":
            set_durability(connection, "full")
            self._durability = "full"
        elif wanted == "normal" and self._durability != "normal":
            self._durability = "normal"
            set_durability(connection, "normal")

    def _expire(self, waiting: list[Job[object]]) -> None:
        """Answer those whose time is up."""
        now = time.monotonic()
        for job in waiting:
            if now - job.began >= self._busy_s:
                waited_ms = int((now - job.began) * 1000)
                job.error = busy_error(self._settings.path, waited_ms, job.run_id)
                job.finish()

    def _waiting(self) -> list[Job[object]]:
        return [job for job in tuple(self._queue) if not (job.done or job.abandoned)]

    def _take(self) -> tuple[Job[object], ...]:
        """Choose who is in this transaction: renew and release first, the rest as they came."""
        with self._gate:
            waiting = self._waiting()
            if self._durability != "full":
                waiting = [job for job in waiting if not job.grants]
            self._batch = batch = tuple(waiting if len(waiting) == 1 else _most_urgent(waiting))
        return batch

    def _perform(self, job: Job[object], tx: Transaction) -> None:
        job.error = None
        try:
            job.result = job.work(tx)
        except FAILURES:
            raise
        except StoreError as refusal:
            job.error = refusal.with_traceback(None)
        except Exception as error:
            # Not even a defect may cost a neighbour its answer: the batch runs again one by one.
            message = f"{self._settings.path}: {type(error).__name__} in a mutation: {error}"
            raise DefectError(message, run_id=job.run_id) from error

    def _commit(self) -> None:
        assert self._cursor is not None
        self._stage = "committing"
        self._cursor.execute("COMMIT")
        self._stage = "committed"

    def _check_landing(self) -> None:
        """Acknowledge no commit that went into a file without a name, which no reader opens."""
        if self._files is None:
            return
        try:
            self._files.check_landing()
        except StoreCorruptError as error:
            for job in self._batch:
                job.error = StoreCorruptError(str(error), run_id=job.run_id)

    def _deliver(self) -> None:
        for job in self._batch:
            job.finish()
        self._batch = ()
        self._stage = "working"

    def _hand_over(self) -> None:
        """Name the next leader, after the flag has fallen: so no newcomer is overlooked."""
        self._led = False
        queue = self._queue
        while queue and (queue[0].done or queue[0].abandoned):
            queue.popleft()
        if not queue:
            return
        for job in tuple(queue):
            if not (job.done or job.abandoned):
                self._led = True
                job.signal()
                return

    # --- when something went wrong ---------------------------------------------------------

    def _recover(self, batch: tuple[Job[object], ...], failure: BaseException) -> None:
        """Undo a batch that failed, and run its jobs again one by one."""
        doubtful = self._stage == "committing" and is_doubtful_commit(failure)
        errno = self._undo()
        if doubtful:
            self.unsettled = True
        self._stage = "working"
        settled = not doubtful or (self._passed_barrier() and was_rolled_back(failure))
        for job in batch:
            if len(batch) == 1 or not settled:
                job.error = self._failed(job, failure, errno, doubtful=doubtful)
                job.finish()
            else:
                self._alone(job)
        self._batch = ()

    def _alone(self, job: Job[object]) -> None:
        """Run one job in its own transaction."""
        with self._gate:
            if job.abandoned:
                return
            # The batch is what this transaction holds: the others have not run again yet.
            self._batch = (job,)
        if not self._begin(job, alone=True):
            return
        try:
            tx = Transaction(self._open(), self._now())
            self._perform(job, tx)
            self._commit()
            self._check_landing()
        except FAILURES as error:
            self._recover((job,), error)
        else:
            self._deliver()

    def _undo(self) -> int:
        """Leave the transaction; return what the operating system had reported."""
        connection = self._connection
        if connection is None:
            return 0
        errno = connection.system_errno
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except FAILURES:
            # SQLite rolls back by itself when it can; a connection that cannot is not kept.
            if connection.in_transaction and not self._settings.in_memory:
                self._cursor = None
                self._connection = None
                open_files.close(connection, force=True)
        return errno

    def _failed(
        self, job: Job[object], failure: BaseException, errno: int, *, doubtful: bool
    ) -> StoreError:
        path = self._settings.path
        error = translate(failure, path=path, run_id=job.run_id, system_errno=errno)
        if doubtful:
            message = (
                f"{path}: a commit was not confirmed ({failure}); it has landed or it has not, and "
                "the next read shows which: read, then decide"
            )
            error = OutcomeUnknownError(message, run_id=job.run_id)
        error.__cause__ = failure
        return error

    def _translated(self, error: BaseException) -> StoreError:
        errno = self._connection.system_errno if self._connection is not None else 0
        return translate(error, path=self._settings.path, system_errno=errno)

    def _passed_barrier(self) -> bool:
        try:
            self._barrier()
        except StoreError:
            return False
        return True

    def _barrier(self) -> None:
        """Commit something, durably. Raises the `StoreError` that the disk still reports."""
        retry = BusyRetry(self._settings.busy_timeout_ms)
        try:
            retry.run(self._pass_barrier, self._settings.path)
        except FAILURES as error:
            raise self._translated(error) from error
        self.unsettled = False

    def _pass_barrier(self) -> None:
        connection = self._open()
        try:
            set_durability(connection, "full")
            self._durability = "full"
            connection.execute("BEGIN IMMEDIATE")
            for statement in schema.BARRIER:
                connection.execute(statement)
            connection.execute("COMMIT")
        except FAILURES:
            self._undo()
            raise

    def _repair(self) -> None:
        """Clear what an interrupted leader left; called under the leader's lock first of all."""
        connection = self._connection
        if connection is not None and connection.in_transaction:
            self._undo()
        elif self._stage == "committing":
            self.unsettled = True
            for job in self._batch:
                if not job.done:
                    job.error = OutcomeUnknownError(
                        "the caller that was committing this write was interrupted; it has landed "
                        "or it has not, and that is final: read, then decide",
                        run_id=job.run_id,
                    )
                    job.finish()
        elif self._stage == "committed":
            for job in self._batch:
                job.finish()
        self._batch = ()
        self._stage = "working"

    def _withdraw(self, job: Job[object]) -> None:
        """Make sure that nothing of an abandoned job lands after this returns."""
        with self._gate:
            entangled = job.led or job in self._batch
        if entangled:
            with self._leader:
                if not self._closed:
                    self._repair()
                self._hand_over()
        elif not self._leader.locked():
            with self._leader:
                self._hand_over()
        job.gone = True


def _most_urgent(waiting: list[Job[object]]) -> list[Job[object]]:
    """Return who goes first, as many as one transaction takes."""
    waiting.sort(key=_not_urgent)
    taken: list[Job[object]] = []
    size = 0
    for job in waiting[:_MOST_JOBS]:
        size += job.size
        if taken and size > _MOST_BYTES:
            break
        taken.append(job)
    return taken


def _not_urgent(job: Job[object]) -> bool:
    return not job.urgent
