"""Makes the calls of a workload on real stores, and writes down each with its positions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from power_disk import Disk
from power_history import Call, History, RunState, shown
from power_observe import DATABASE, meta_text
from power_vfs import RecordingDisk

from rulvar.core.errors import LeaseHeldError, OutcomeUnknownError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import apsw
    from power_images import Image

    from rulvar.core.records import Lease
    from rulvar.stores.sqlite.connection import Durability

__all__ = ["Hand", "Scribe", "UnexpectedError", "recording", "writer_of"]

_T = TypeVar("_T")
TTL_MS = 60_000


class UnexpectedError(AssertionError):
    """A workload's call was answered otherwise than the workload is about."""


@dataclass(slots=True)
class Scribe:
    """One recording: the folder, the disk, the history, and the stores that are open.

    With ``expects`` off, a call may be answered as it likes; for stores that are broken.
    """

    folder: Path
    recorder: RecordingDisk
    durability: Durability
    expects: bool = True
    history: History = field(default_factory=History)
    clock: ManualClock = field(default_factory=ManualClock)
    stores: list[SqliteStore] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)

    @property
    def disk(self) -> Disk:
        """What the recorder tells."""
        return self.recorder.disk

    def open(self, name: str, *, checkpoint_pages: int | None = None) -> Hand:
        """Open a store; ``checkpoint_pages`` moves its log into the database that often."""
        store = SqliteStore(
            self.folder / DATABASE,
            clock=self.clock,
            lease_ttl_ms=TTL_MS,
            durability=self.durability,
        )
        self.stores.append(store)
        if checkpoint_pages is not None:
            writer_of(store).wal_autocheckpoint(checkpoint_pages)
        return Hand(self, store, name)

    def begin(self, call: Call) -> Call:
        """Write down that a call is being made."""
        with self.recorder.lock:
            call.number = len(self.history.calls)
            call.invoked = self.disk.cut(f"begin {call.what}")
            return self.history.add(call)

    def end(self, call: Call) -> None:
        """Write down that a call was answered."""
        with self.recorder.lock:
            call.answered = self.disk.cut(f"answer {call.what}: {call.outcome}")

    def make(self, call: Call, work: Callable[[], _T], *, refused: bool = False) -> _T | None:
        """Make a call, which lands, or is refused where that is said."""
        self.clock.advance(1)
        self.begin(call)
        try:
            result = work()
        except LeaseHeldError:
            call.outcome = "refused"
            self.end(call)
            if self.expects and not refused:
                raise
            return None
        except OutcomeUnknownError:
            call.outcome = "doubtful"
            return None
        call.outcome = "landed"
        self.end(call)
        if self.expects and refused:
            message = f"{call} landed, and was to be refused"
            raise UnexpectedError(message)
        return result

    def settle(self, call: Call, *, landed: bool) -> None:
        """Write down what the store has told of a call that was answered with "unknown"."""
        self.end(call)
        if landed:
            call.outcome = "landed"

    def next_seq(self, run_id: str) -> int:
        """Return a number that no record of the run has had."""
        self.seqs[run_id] = self.seqs.get(run_id, -1) + 1
        return self.seqs[run_id]

    def close(self) -> None:
        """Close what is still open."""
        for store in self.stores:
            store.close()


@dataclass(frozen=True, slots=True)
class Hand:
    """A caller with a store of its own; each method is one call, written down."""

    scribe: Scribe
    store: SqliteStore
    name: str

    def _call(
        self, run_id: str, what: str, effect: Callable[[RunState], RunState], **more: object
    ) -> Call:
        call = Call(0, run_id, what, self.name, effect, 0)
        for name, value in more.items():
            setattr(call, name, value)
        return call

    def _token(self) -> str:
        return f"<{self.name} {len(self.scribe.history.calls)}>"

    # --- journal and row --------------------------------------------------------------------

    def appending(
        self, run_id: str, lease: Lease | None = None, *, size: int = 0
    ) -> tuple[Call, Callable[[], None]]:
        """Return an append and what makes it."""
        seq, token = self.scribe.next_seq(run_id), self._token()
        text = f'{{"seq":{seq},"token":"{token}","filling":"{"x" * size}"}}'
        record = JournalRecord(seq=seq, payload=text.encode())
        line = shown(record.payload)
        call = self._call(
            run_id,
            f"append seq {seq}",
            lambda state: state._replace(journal=(*state.journal, line)),
            token=token,
            epoch=None if lease is None else lease.epoch,
        )
        return call, lambda: self.store.append(run_id, record, lease=lease)

    def append(
        self, run_id: str, lease: Lease | None = None, *, size: int = 0, refused: bool = False
    ) -> Call:
        """Append a record."""
        call, work = self.appending(run_id, lease, size=size)
        self.scribe.make(call, work, refused=refused)
        return call

    def put_meta(self, run_id: str, lease: Lease | None = None, *, refused: bool = False) -> None:
        """Replace the row."""
        token = self._token()
        meta = RunMeta(run_id=run_id, status="running", updated_at="now", name=token)
        text = meta_text(meta)
        call = self._call(
            run_id,
            "put_meta",
            lambda state: state._replace(meta=text),
            token=token,
            epoch=None if lease is None else lease.epoch,
        )
        self.scribe.make(call, lambda: self.store.put_meta(meta, lease=lease), refused=refused)

    def delete(
        self,
        run_id: str,
        lease: Lease | None = None,
        *,
        whole: bool = False,
        refused: bool = False,
    ) -> None:
        """Delete the run, its blobs too when the whole of it is to go."""

        def effect(state: RunState) -> RunState:
            return RunState(mark=state.mark, blobs=() if whole else state.blobs)

        what = "delete_whole_run" if whole else "delete"
        call = self._call(run_id, what, effect, epoch=None if lease is None else lease.epoch)
        method = self.store.delete_whole_run if whole else self.store.delete
        self.scribe.make(call, lambda: method(run_id, lease=lease), refused=refused)

    # --- blobs ------------------------------------------------------------------------------

    def put(
        self, ref: str, lease: Lease | None = None, *, size: int = 0, refused: bool = False
    ) -> None:
        """Write a blob."""
        token = self._token()
        blob = token.encode() + b"y" * size
        text = shown(blob)
        call = self._call(
            ref.partition("/")[0],
            f"put {ref}",
            lambda state: state._replace(blobs=_with(state.blobs, ref, text)),
            token=token,
            epoch=None if lease is None else lease.epoch,
        )
        twin = self.store.transcripts()
        self.scribe.make(call, lambda: twin.put(ref, blob, lease=lease), refused=refused)

    def drop(self, ref: str, lease: Lease | None = None, *, refused: bool = False) -> None:
        """Delete a blob."""
        call = self._call(
            ref.partition("/")[0],
            f"delete blob {ref}",
            lambda state: state._replace(blobs=_with(state.blobs, ref, None)),
            epoch=None if lease is None else lease.epoch,
        )
        twin = self.store.transcripts()
        self.scribe.make(call, lambda: twin.delete(ref, lease=lease), refused=refused)

    # --- leases -----------------------------------------------------------------------------

    def _granting(self, run_id: str, what: str, owner: str) -> Call:
        # The clock has moved by then: see `Scribe.make`.
        expiry = self.scribe.clock.now_ms() + 1 + TTL_MS

        def effect(state: RunState) -> RunState:
            epoch = state.mark + 1
            return state._replace(mark=epoch, lease=(owner, epoch, expiry))

        return self._call(run_id, what, effect, grants=True)

    def acquire(self, run_id: str) -> Lease:
        """Take the run."""
        call = self._granting(run_id, "acquire", self.name)
        return _granted(self.scribe.make(call, lambda: self.store.acquire(run_id, self.name)))

    def seize(self, run_id: str) -> Lease:
        """Take the run, whoever has it."""
        call = self._granting(run_id, "seize", self.name)
        return _granted(self.scribe.make(call, lambda: self.store.seize(run_id, self.name)))

    def revive(self, lease: Lease) -> Lease:
        """Take the run again, once the lease has run out."""
        self.scribe.clock.advance(TTL_MS)
        call = self._granting(lease.run_id, "revive", lease.owner)
        return _granted(self.scribe.make(call, lambda: self.store.revive(lease)))

    def raise_epoch(self, run_id: str, at_least: int) -> None:
        """Lift the run's mark."""
        call = self._call(
            run_id,
            f"raise_epoch to {at_least}",
            lambda state: state._replace(mark=max(state.mark, at_least), lease=None),
            grants=True,
        )
        self.scribe.make(call, lambda: self.store.raise_epoch(run_id, at_least))

    def renew(self, lease: Lease, *, refused: bool = False) -> None:
        """Renew a lease."""
        expiry = self.scribe.clock.now_ms() + 1 + TTL_MS

        def effect(state: RunState) -> RunState:
            held = state.lease or (lease.owner, lease.epoch, 0)
            return state._replace(lease=(held[0], held[1], expiry))

        call = self._call(lease.run_id, "renew", effect, epoch=lease.epoch)
        self.scribe.make(call, lambda: self.store.renew(lease), refused=refused)

    def release(self, lease: Lease, *, refused: bool = False) -> None:
        """Release a lease."""
        call = self._call(
            lease.run_id, "release", lambda state: state._replace(lease=None), epoch=lease.epoch
        )
        self.scribe.make(call, lambda: self.store.release(lease), refused=refused)

    # --- the file ---------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def writer_of(store: SqliteStore) -> apsw.Connection:
    """Return the connection that writes."""
    (connection,) = store._database._committer.connections()
    return connection


def _granted(lease: Lease | None) -> Lease:
    if lease is None:
        message = "a grant was refused"
        raise UnexpectedError(message)
    return lease


def _with(
    blobs: tuple[tuple[str, str], ...], ref: str, text: str | None
) -> tuple[tuple[str, str], ...]:
    found = dict(blobs)
    if text is None:
        found.pop(ref, None)
    else:
        found[ref] = text
    return tuple(sorted(found.items()))


@contextlib.contextmanager
def recording(
    folder: Path,
    durability: Durability,
    *,
    powersafe: bool = True,
    ignores_syncs: bool = False,
    expects: bool = True,
    before: tuple[Image, dict[str, RunState]] | None = None,
) -> Iterator[Scribe]:
    """Record every call on databases in a folder of its own, made here; closes the stores.

    ``before`` is what is on the disk when it begins, and what a store finds there.
    """
    folder.mkdir()
    disk = Disk(ignores_syncs=ignores_syncs)
    history = History()
    if before is not None:
        image, history.first = before
        disk.put({name: data for name, data in image.items() if not name.endswith("-shm")})
        for name, data in image.items():
            (folder / name).write_bytes(data)
    recorder = RecordingDisk(disk, powersafe=powersafe)
    scribe = Scribe(folder, recorder, durability, expects=expects, history=history)
    try:
        yield scribe
        scribe.close()
    finally:
        recorder.unregister()
