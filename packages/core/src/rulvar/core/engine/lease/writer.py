"""The one writer: every mutation of a segment goes through here, under the segment's lease.

It runs in bridge threads; it is called from wherever the body, the settle or a call
from inside the run comes from. It keeps these rules
(contract.md#one-writer, contract.md#failed-writes):

- Records of one run are appended in seq order, never side by side: one lock, and the seq is
  taken under it.
- Each attempt asks the ownership for the present lease. A refusal goes back to it; only
  what it lets pass is tried again, with the same seq, under the new lease.
- Busy is tried again until the lease runs out. After an unknown outcome the tail is read:
  equal bytes at that seq mean that it landed. Any other failed append latches the writer: no
  later append, no settle; that error is the segment's result.
- Once sealed, by the settle or by the segment's end, it lets nothing through.

It also knows what the journal holds, so that a lease that was taken again can be checked
against it: number of records, last bytes, genesis, and the row's segments and status.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from rulvar.core.engine.io.event_bus import no_events
from rulvar.core.engine.kernel.authority import UNLEASED
from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.errors import (
    JournalCompatibilityError,
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    SupersededError,
)
from rulvar.core.journal import (
    check_window,
    encode_entry,
    makes_progress,
    read_journal,
    run_start,
)
from rulvar.core.journal.calls import CALL_KINDS
from rulvar.core.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.core.engine.io.event_bus import Emit
    from rulvar.core.engine.io.mutations import FencedCalls
    from rulvar.core.engine.io.reads import Reads
    from rulvar.core.engine.kernel.authority import Authority
    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import Blocked, RunMeta

__all__ = ["RunWriter"]

_log = logging.getLogger("rulvar.engine")

_PAUSE_SECONDS = 0.005
"""Between two tries of a busy call: the store has waited for its own timeout already."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """How the journal ends, as far as this segment knows."""

    records: int = 0
    last_payload: bytes | None = None


class RunWriter:
    """Every mutation of one segment."""

    def __init__(
        self,
        mutations: FencedCalls,
        reads: Reads,
        run_id: str,
        ownership: Ownership,
        *,
        emit: Emit = no_events,
    ) -> None:
        self.run_id = run_id
        self.emit = emit
        self._mutations = mutations
        self._reads = reads
        self._ownership = ownership
        ownership.verify = self.verify
        self._tail = _Tail()
        self._armed = False
        self._genesis: str | None = None
        self._meta: RunMeta | None = None
        self._next_seq = 0
        self._appended = 0
        self._in_doubt: bytes | None = None
        self._meta_in_doubt: RunMeta | None = None
        self._failure: BaseException | None = None
        self.segment: int | None = None
        self._sealed: str | None = None
        self._appending = threading.Lock()
        self._row = threading.Lock()

    # --- what is known ------------------------------------------------------------------

    def record_read_state(
        self, records: Sequence[JournalRecord], meta: RunMeta | None, genesis: str | None
    ) -> None:
        """Learn what was read under the present lease."""
        self._tail = _Tail(len(records), records[-1].payload if records else None)
        self._genesis = genesis
        self._meta = self._meta_in_doubt = meta
        self._next_seq = records[-1].seq + 1 if records else 0
        self._armed = True

    def read(
        self, genesis_of: Callable[[Sequence[JournalRecord]], str | None]
    ) -> tuple[RunMeta | None, Sequence[JournalRecord]]:
        """Read row and journal under one lease, and note them as what this segment knows.

        What was read before an acquire decides nothing: when the lease was taken again
        meanwhile, everything is read again. ``genesis_of`` gives the records' token. Raises
        `SupersededError`, and what the store and ``genesis_of`` raise.
        """
        while True:
            authority = self.authority()
            meta = self._reads.meta(self.run_id)
            records = self._reads.load(self.run_id)
            self.record_read_state(records, meta, genesis_of(records))
            if self.authority() == authority:
                return meta, records

    @property
    def meta(self) -> RunMeta | None:
        """The row as this segment last read or wrote it."""
        return self._meta

    @property
    def genesis(self) -> str | None:
        """The token that tells this run from an older or later one of the same id."""
        return self._genesis

    @property
    def appended(self) -> int:
        """How many records this segment has appended."""
        return self._appended

    @property
    def failure(self) -> BaseException | None:
        """The failed append that has latched the writer, if one has."""
        return self._failure

    @property
    def epoch(self) -> int | None:
        """The present fencing token, as last known; never waits."""
        return self._ownership.epoch

    def authority(self) -> Authority:
        """Return the present authority. Raises `SupersededError` once the run is lost."""
        return self._ownership.authority()

    def confirm(self) -> None:
        """Ask the store whether the run is still this segment's, where it tells its leases.

        An expired lease is taken again, by the rules of the ownership. Raises
        `SupersededError` once the run is lost.
        """
        while True:
            authority = self._ownership.authority()
            if authority is UNLEASED:
                return
            refusal = self._reads.refusal_of(authority)
            if refusal is None:
                return
            self._refused("confirm", authority, refusal)

    def knows_genesis(self, genesis: str) -> None:
        """Learn the token that a fresh start has minted, before it is written."""
        self._genesis = genesis

    def verify(self) -> bool:
        """Whether the store holds what this segment knows, an append in doubt included.

        Asked under a re-acquired lease, while `authority` waits: nothing new is begun. An
        append that was under way has landed or has been refused; which one, the store tells.
        """
        if not self._armed:
            return True  # nothing was read, so nothing was decided: it will be read anew
        records = self._reads.load(self.run_id)
        # In this order: an append that has landed updates the tail before it leaves doubt.
        in_doubt, tail = self._in_doubt, self._tail
        last = records[-1].payload if records else None
        known = len(records) == tail.records and last == tail.last_payload
        landed = len(records) == tail.records + 1 and in_doubt is not None and last == in_doubt
        if not known and not landed:
            return False
        try:
            entries = read_journal(self.run_id, records)
            check_window(self.run_id, entries)
        except (StoreCorruptError, JournalCompatibilityError):
            return False
        start = run_start(entries)
        if start is not None and start.genesis != self._genesis:
            return False
        row = self._reads.meta(self.run_id)
        return _facts(row) in {_facts(self._meta_in_doubt), _facts(self._meta)}

    # --- mutations ------------------------------------------------------------------------

    def append(
        self, draft: JournalEntry, *, claim: Callable[[], None] | None = None
    ) -> JournalEntry:
        """Append a draft under the next seq and the present epoch; return what was written.

        ``claim`` is asked while no other append of this run is under way, and may raise to
        leave the journal as it is. Raises `SupersededError` when the run is lost,
        `SegmentEnded` once the writer is sealed, and what the store raises, which latches.
        """
        with self._appending:
            self._check_open()
            if claim is not None:
                claim()
            try:
                entry = self._append(draft)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._in_doubt = None
            self._note_progress(entry)
            return entry

    def _append(self, draft: JournalEntry) -> JournalEntry:
        while True:
            authority = self._ownership.authority()
            epoch = None if authority is UNLEASED else authority.epoch
            entry = replace(draft, seq=self._next_seq, epoch=epoch, span_id=self._span(draft))
            record = JournalRecord(seq=entry.seq, payload=encode_entry(entry))
            self._in_doubt = record.payload
            try:
                self._mutations.append(authority, self.run_id, record)
            except LeaseHeldError as error:
                self._refused("append", authority, error)
                continue
            except StoreBusyError:
                self.emit("store.busy", name="append")
                if not self._ownership.time_left():
                    raise
                time.sleep(_PAUSE_SECONDS)
                continue
            except OutcomeUnknownError:
                if not self._landed(record):
                    raise
            self._tail = _Tail(self._tail.records + 1, record.payload)
            self._next_seq = record.seq + 1
            self._appended += 1
            return entry

    def _note_progress(self, entry: JournalEntry) -> None:
        """Let the row know that the run goes on: no death and no block before it counts any more.

        Only a hint for workers, who would leave the run for last or to others: the journal
        has the count.
        """
        meta = self._meta
        if meta is None:
            return
        recoveries = 0 if meta.recoveries and makes_progress(entry) else meta.recoveries
        blocked = None if entry.ref is None and entry.kind in CALL_KINDS else meta.blocked
        if (recoveries, blocked) == (meta.recoveries, meta.blocked):
            return
        try:
            self._put_meta(replace(meta, recoveries=recoveries, blocked=blocked))
        except (StoreError, SupersededError) as error:
            _log.info(
                "run %r: its row does not yet say that it was resumed: %s", self.run_id, error
            )

    def _span(self, draft: JournalEntry) -> str | None:
        """Name the call that an entry opens or answers, and the segment that wrote it."""
        if self.segment is None:
            return None
        return f"{self.segment}.{self._next_seq if draft.ref is None else draft.ref}"

    def _landed(self, record: JournalRecord) -> bool:
        while True:
            try:
                records = self._reads.load(self.run_id)
            except StoreBusyError:
                if not self._ownership.time_left():
                    return False  # not known to have landed: its own error says so
                time.sleep(_PAUSE_SECONDS)
            else:
                break
        return any(r.seq == record.seq and r.payload == record.payload for r in records[-1:])

    def put_meta(self, meta: RunMeta) -> None:
        """Replace the row. Raises as `append` does, but latches nothing."""
        self._check_open()
        self._put_meta(meta)

    def _put_meta(self, meta: RunMeta) -> None:
        with self._row:
            self._meta_in_doubt = meta
            try:
                self._guarded(
                    "put_meta", lambda authority: self._mutations.put_meta(authority, meta)
                )
                self._meta = meta
            finally:
                self._meta_in_doubt = self._meta

    def put_blob(self, ref: str, blob: bytes) -> None:
        """Replace a blob. Raises as `put_meta` does."""
        self._check_open()
        self._guarded("put_blob", lambda authority: self._mutations.put_blob(authority, ref, blob))

    def delete_blob(self, ref: str) -> None:
        """Remove a blob. Raises as `put_meta` does."""
        self._check_open()
        self._guarded("delete_blob", lambda authority: self._mutations.delete_blob(authority, ref))

    def delete_run(self) -> None:
        """Remove the run, blobs first; a landed delete ends the lease. Raises as `put_meta`."""
        with self._appending:
            self._check_open()
            with self._ownership.last_mutation():
                self._guarded("delete_whole_run", self._delete)
            self._sealed = "its run was deleted"

    def _delete(self, authority: Authority) -> None:
        try:
            self._mutations.delete_run(authority, self.run_id)
        except OutcomeUnknownError:
            # A landed delete has ended the lease: trying again would be refused for that.
            if self._reads.load(self.run_id) or self._reads.meta(self.run_id) is not None:
                raise

    def _guarded(self, surface: str, mutate: Callable[[Authority], None]) -> None:
        while True:
            authority = self._ownership.authority()
            try:
                mutate(authority)
            except LeaseHeldError as error:
                self._refused(surface, authority, error)
            except (StoreBusyError, OutcomeUnknownError):
                # Replacing the same row or blob twice is the same as once.
                self.emit("store.busy", name=surface)
                if not self._ownership.time_left():
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _refused(self, surface: str, authority: Authority, error: LeaseHeldError) -> None:
        self.emit("write.refused", name=surface, detail=error.reason, epoch=self.epoch)
        self._ownership.refused(authority, error)

    # --- the end --------------------------------------------------------------------------

    def close_for(self, why: str) -> None:
        """Wait for the append in flight, then let nothing through."""
        with self._appending:
            self._sealed = self._sealed or why

    def detach(
        self,
        why: str,
        now: str,
        *,
        blocked: Blocked | None = None,
        waits: bool = False,
        wake_at: str | None = None,
    ) -> None:
        """Let nothing through any more, and say in the row that the segment ended in order.

        ``blocked`` is what keeps the present code from going on with the run; with ``waits`` it
        is suspended as before, until ``wake_at``. Works on a writer that a failed append has
        latched, too. Raises as `put_meta` does.
        """
        self.close_for(why)
        meta = self._meta
        if meta is None or self.segment is None or meta.status != "running":
            return
        row = replace(meta, updated_at=now, stopped=self.segment, blocked=blocked or meta.blocked)
        self._put_meta(replace(row, status="suspended", wake_at=wake_at) if waits else row)

    def settle(self, draft: JournalEntry | None, meta: RunMeta) -> JournalEntry | None:
        """Append the settle, if there is one to append, and replace the row, in this order.

        Waits for the append in flight; no other owner gets through from here on. Raises as
        `append` does.
        """
        with self._appending:
            self._check_open()
            self._sealed = "it has settled"
            entry = None
            if draft is not None:
                try:
                    entry = self._append(draft)
                finally:
                    self._in_doubt = None
        self._put_meta(meta)
        return entry

    def _check_open(self) -> None:
        if self._failure is not None:
            _raise_again(self._failure)
        if self._sealed is not None:
            raise SegmentEnded(self._sealed)


def _raise_again(error: BaseException) -> NoReturn:
    raise error


def _facts(meta: RunMeta | None) -> tuple[object, ...] | None:
    return None if meta is None else (meta.segments, meta.status, meta.genesis)
