"""Actors: whoever calls a store, under a name, with an expectation for every call.

A check reads as the interleaving that it proves::

    stalled = trial.actor("stalled")
    successor = trial.actor("successor")
    lease = stalled.acquire(run)
    successor.take_over(lease)
    stalled.refused("superseded").append(run, 2, lease=lease)

A call is expected to return, unless the actor was asked for otherwise: `Actor.refused`,
`Actor.raising`. Every call that is to be refused is also expected to change nothing, byte
for byte, in anything that the trial knows of.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from rulvar.conformance.harness.failure import shown
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError, RulvarError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.spi import (
    BlobInfo,
    Closable,
    EpochFloor,
    FencedJournalStore,
    FencedTranscriptStore,
    JournalTail,
    LeaseAdmin,
    LeaseBatch,
    LeaseRevival,
    MetaLookup,
    RunInventory,
    WholeRunDelete,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.state import Snapshot
    from rulvar.core.errors import RefusalReason
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["Actor", "FullJournal", "FullTranscripts", "payload", "record"]

_T = TypeVar("_T")


class FullJournal(
    FencedJournalStore,
    MetaLookup,
    JournalTail,
    LeaseAdmin,
    LeaseBatch,
    EpochFloor,
    LeaseRevival,
    RunInventory,
    WholeRunDelete,
    Closable,
    Protocol,
):
    """A journal store with everything; a check calls only what its clause's level has."""


class FullTranscripts(FencedTranscriptStore, BlobInfo, Closable, Protocol):
    """A transcript store with everything."""


def payload(seq: int, mark: str, *, filling: int = 0) -> bytes:
    """Return a small payload that nobody else writes; ``filling`` bytes make it larger."""
    extra = f',"filling":"{"x" * filling}"' if filling else ""
    return f'{{"seq":{seq},"mark":"{mark}"{extra}}}'.encode()


def record(seq: int, mark: str, *, filling: int = 0) -> JournalRecord:
    """Return a record with such a payload."""
    return JournalRecord(seq=seq, payload=payload(seq, mark, filling=filling))


@dataclass(frozen=True, slots=True)
class _Expectation:
    """What a call is to do: return, or raise one kind of error and change nothing."""

    text: str
    kind: type[Exception] | None = None
    reason: RefusalReason | None = None

    def judge(self, error: Exception | None, lease: Lease | None) -> str | None:
        """Return what is wrong with an answer, or None."""
        if self.kind is None:
            return None if error is None else _told(error)
        if error is None:
            return "it returned"
        if not isinstance(error, self.kind):
            return _told(error)
        if isinstance(error, LeaseHeldError) and self.reason is not None:
            if error.reason != self.reason:
                return f"LeaseHeldError with the reason {error.reason!r}"
            if lease is not None and error.offered is not None and error.offered != lease:
                return f"LeaseHeldError naming another lease as offered: {error.offered}"
        return None


def _told(error: Exception) -> str:
    told = type(error).__name__ if isinstance(error, RulvarError) else _foreign(error)
    return f"{told}: {shown(str(error))[1:-1]}"


def _foreign(error: Exception) -> str:
    kind = type(error)
    return f"an error outside rulvar's tree escaped, {kind.__module__}.{kind.__qualname__}"


_RETURNS = _Expectation("it returns")


class Actor:
    """One caller of the stores under trial."""

    def __init__(self, check: CheckContext, name: str, stores: Stores) -> None:
        self._trial = check
        self.name = name
        self.stores = stores
        self.journal = cast("FullJournal", stores.journal)
        self.transcripts = cast("FullTranscripts", stores.transcripts)
        self._expected = _RETURNS

    # --- expectations -----------------------------------------------------------------------

    def _expecting(self, expected: _Expectation) -> Actor:
        other = copy.copy(self)
        other._expected = expected  # noqa: SLF001 - a copy of itself
        return other

    def refused(self, reason: RefusalReason) -> Actor:
        """Return the actor expecting the fence to refuse, with that reason, changing nothing."""
        text = f"LeaseHeldError with the reason {reason!r}, and nothing changed"
        return self._expecting(_Expectation(text, LeaseHeldError, reason))

    def out_of_order(self) -> Actor:
        """Return the actor expecting `JournalOrderViolation`, and nothing changed."""
        text = "JournalOrderViolation, and nothing changed"
        return self._expecting(_Expectation(text, JournalOrderViolation))

    def raising(self, kind: type[Exception]) -> Actor:
        """Return the actor expecting that error, and nothing changed."""
        return self._expecting(_Expectation(f"{kind.__name__}, and nothing changed", kind))

    # --- the calls --------------------------------------------------------------------------

    def call(
        self,
        text: str,
        function: Callable[[], _T],
        *,
        lease: Lease | None = None,
        mark: str | None = None,
    ) -> _T:
        """Make one call and hold it to the expectation; return its value.

        After an expected error there is no value: do not use it.
        """
        expected = self._expected
        before = None if expected.kind is None else self._trial.snapshot()
        value: _T | None = None
        error: Exception | None = None
        try:
            value = function()
            answer = "ok" if value is None else shown(value)
        except Exception as raised:  # noqa: BLE001 - the judge decides
            error = raised
            reason = f" ({raised.reason})" if isinstance(raised, LeaseHeldError) else ""
            answer = f"{type(raised).__name__}{reason}"
        self._trial.timeline.add(self.name, text, answer)
        wrong = expected.judge(error, lease)
        after: Snapshot | None = None
        if before is not None:
            after = self._after(wrong)
            if wrong is None and before != after:
                wrong = "the error, but the state changed"
            if mark is not None:
                self._trial.refused_marks.append(mark)
        if wrong is not None:
            self._trial.fail(f"{text}: {expected.text}", wrong, before=before, after=after)
        return cast("_T", value)

    def _after(self, wrong: str | None) -> Snapshot | None:
        """Read everything again; what should have been refused may have made it unreadable."""
        try:
            return self._trial.snapshot()
        except Exception:
            if wrong is None:
                raise
            return None

    def append(
        self,
        run_id: str,
        seq: int,
        *,
        lease: Lease | None = None,
        filling: int = 0,
    ) -> JournalRecord:
        """Append a record with a payload of its own, and return it."""
        mark = self._trial.mark()
        written = record(seq, mark, filling=filling)
        self.append_record(run_id, written, lease=lease, mark=mark)
        return written

    def append_record(
        self,
        run_id: str,
        written: JournalRecord,
        *,
        lease: Lease | None = None,
        mark: str | None = None,
    ) -> None:
        """Append this very record."""
        self._trial.knows(run_id)
        text = f"append({run_id!r}, seq {written.seq}{_under(lease)})"
        if lease is None:
            self.call(text, lambda: self.journal.append(run_id, written), mark=mark)
            return
        self.call(
            text,
            lambda: self.journal.append(run_id, written, lease=lease),
            lease=lease,
            mark=mark,
        )

    def load(self, run_id: str) -> tuple[JournalRecord, ...]:
        """Load the journal."""
        return tuple(self.call(f"load({run_id!r})", lambda: self.journal.load(run_id)))

    def put_meta(
        self, run_id: str, *, lease: Lease | None = None, status: str = "running"
    ) -> RunMeta:
        """Replace the row by one that nobody else writes, and return it."""
        mark = self._trial.mark()
        meta = RunMeta(
            run_id=run_id,
            status=status,
            updated_at="2026-01-02T03:04:05.678Z",
            workflow_hash=mark,
        )
        self.put_row(meta, lease=lease, mark=mark)
        return meta

    def put_row(
        self, meta: RunMeta, *, lease: Lease | None = None, mark: str | None = None
    ) -> None:
        """Replace the row by this very one."""
        self._trial.knows(meta.run_id)
        text = f"put_meta({meta.run_id!r}, {meta.status}{_under(lease)})"
        if lease is None:
            self.call(text, lambda: self.journal.put_meta(meta), mark=mark)
            return
        self.call(text, lambda: self.journal.put_meta(meta, lease=lease), lease=lease, mark=mark)

    def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        """Delete the run."""
        self._trial.knows(run_id)
        text = f"delete({run_id!r}{_under(lease)})"
        if lease is None:
            self.call(text, lambda: self.journal.delete(run_id))
            return
        self.call(text, lambda: self.journal.delete(run_id, lease=lease), lease=lease)

    def delete_whole_run(self, run_id: str, *, lease: Lease | None = None) -> None:
        """Delete the run and its blobs."""
        self._trial.knows(run_id)
        text = f"delete_whole_run({run_id!r}{_under(lease)})"
        self.call(text, lambda: self.journal.delete_whole_run(run_id, lease=lease), lease=lease)

    def put(self, ref: str, blob: bytes | None = None, *, lease: Lease | None = None) -> bytes:
        """Store a blob, one that nobody else writes by default, and return it."""
        mark = self._trial.mark()
        written = f"blob {mark}".encode() if blob is None else blob
        self._trial.knows(ref.partition("/")[0])
        text = f"put({ref!r}, {len(written)} bytes{_under(lease)})"
        if lease is None:
            self.call(text, lambda: self.transcripts.put(ref, written), mark=mark)
            return written
        self.call(
            text, lambda: self.transcripts.put(ref, written, lease=lease), lease=lease, mark=mark
        )
        return written

    def get(self, ref: str) -> bytes | None:
        """Read a blob."""
        return self.call(f"get({ref!r})", lambda: self.transcripts.get(ref))

    def list_refs(self, run_id: str) -> tuple[str, ...]:
        """List the run's refs."""
        return tuple(
            self.call(f"list_refs({run_id!r})", lambda: self.transcripts.list_refs(run_id))
        )

    def delete_blob(self, ref: str, *, lease: Lease | None = None) -> None:
        """Remove a blob."""
        self._trial.knows(ref.partition("/")[0])
        text = f"transcripts.delete({ref!r}{_under(lease)})"
        if lease is None:
            self.call(text, lambda: self.transcripts.delete(ref))
            return
        self.call(text, lambda: self.transcripts.delete(ref, lease=lease), lease=lease)

    def acquire(self, run_id: str, owner: str | None = None) -> Lease:
        """Acquire the run, under the actor's own name by default."""
        who = self.name if owner is None else owner
        self._trial.knows(run_id)
        return self.call(
            f"acquire({run_id!r}, {who!r})",
            lambda: self._trial.granted(self.journal.acquire(run_id, who)),
        )

    def seize(self, run_id: str, owner: str | None = None, *, over: Lease | None = None) -> Lease:
        """Seize the run, or with ``over`` exactly that lease of it."""
        who = self.name if owner is None else owner
        self._trial.knows(run_id)
        if over is None:
            return self.call(
                f"seize({run_id!r}, {who!r})",
                lambda: self._trial.granted(self.journal.seize(run_id, who)),
            )
        return self.call(
            f"seize({run_id!r}, {who!r}, over={_named(over)})",
            lambda: self._trial.granted(self.journal.seize(run_id, who, over=over)),
            lease=over,
        )

    def renew_all(self, *leases: Lease) -> list[tuple[Lease | None, str]]:
        """Renew several leases; return the refused ones, each with its reason."""
        refusals = self.call(
            f"renew_all({', '.join(map(_named, leases))})",
            lambda: self.journal.renew_all(leases),
        )
        return [(refusal.offered, refusal.reason) for refusal in refusals]

    def renew(self, lease: Lease) -> None:
        """Renew a lease."""
        self.call(f"renew({_named(lease)})", lambda: self.journal.renew(lease), lease=lease)

    def release(self, lease: Lease) -> None:
        """Release a lease."""
        self.call(f"release({_named(lease)})", lambda: self.journal.release(lease), lease=lease)

    def revive(self, lease: Lease) -> Lease:
        """Revive an expired lease."""
        return self.call(
            f"revive({_named(lease)})",
            lambda: self._trial.granted(self.journal.revive(lease)),
            lease=lease,
        )

    def take_over(self, lease: Lease, owner: str | None = None) -> Lease:
        """End somebody's live lease and acquire its run: a lease is a value, so anyone can."""
        self.release(lease)
        return self.acquire(lease.run_id, owner)


def _named(lease: Lease) -> str:
    return f"{lease.run_id!r}, {lease.owner!r}, epoch {lease.epoch}"


def _under(lease: Lease | None) -> str:
    if lease is None:
        return ""
    return f", under {lease.run_id!r} {lease.owner!r} epoch {lease.epoch}"
