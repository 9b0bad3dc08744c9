"""Broken lives over the reference store: closing, recovering, being interrupted, declaring."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gallery_defects import defect, reference
from gallery_over_reference import broken, broken_twin

from rulvar.core.checks import check_record, check_run_id
from rulvar.core.errors import LeaseHeldError, RulvarError, StoreClosedError
from rulvar.core.testing import ReferenceStore, ReferenceTranscripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import JournalRecord, Lease, RunMeta


# --- closing --------------------------------------------------------------------------------


@broken("close-twice-raises", "a second close is an error", breaks="E-closed")
class _ClosesOnce(ReferenceStore):
    def close(self) -> None:
        with self._gate.passing():
            pass
        super().close()


@broken("close-leaves-readers", "a closed store still answers readers", breaks="E-closed")
class _LeavesReaders(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        try:
            return super().load(run_id)
        except StoreClosedError:
            return self._tables.records(run_id)


@broken_twin("close-leaves-twin", "the twin of a closed store goes on", breaks="E-closed")
class _LeavesTwin(ReferenceTranscripts):
    def __init__(self, store: ReferenceStore, /) -> None:
        super().__init__(store)
        self._lives = ReferenceStore()
        self._lives._tables = store._tables

    def get(self, ref: str, /) -> bytes | None:
        return ReferenceTranscripts(self._lives).get(ref)


@broken(
    "close-looks-first",
    "on a closed store a malformed argument is refused for the store",
    breaks="E-closed-order",
)
class _LooksIfClosedFirst(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        with self._gate.passing():
            pass
        return super().load(run_id)


@broken(
    "close-tears-down",
    "close takes the tables away from the calls in flight",
    breaks="E-close-meets",
)
class _TearsDown(ReferenceStore):
    def close(self) -> None:
        tables = self._tables
        del self._tables
        for _ in range(2000):  # it takes its time
            check_run_id("run")
        self._tables = tables
        super().close()


@broken(
    "fork-goes-on",
    "a forked child goes on with the parent's store",
    breaks="E-forked",
)
class _GoesOnInFork(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return self._tables.records(check_run_id(run_id))


# --- after an error, after an interrupt ---------------------------------------------------------


@broken(
    "refusal-latches",
    "after a refusal the next call is refused as well",
    breaks="E-recovers",
)
class _Latches(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._refused: LeaseHeldError | None = None

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        before, self._refused = self._refused, None
        if before is not None and before.offered != lease:
            raise before
        try:
            super().append(run_id, record, lease=lease)
        except LeaseHeldError as error:
            self._refused = error
            raise


@broken(
    "interrupt-keeps-lock",
    "a lock that is given back by a line of code, not by a with: an interrupt keeps it",
    breaks="E-interrupted",
)
class _KeepsLock(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own = threading.Lock()

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_record(record)
        self._own.acquire()
        try:
            super().append(run_id, record, lease=lease)
        except RulvarError:
            self._own.release()
            raise
        self._own.release()


@broken(
    "interrupt-lands-later",
    "an append waits in a queue: an interrupted one lands with the next",
    breaks="E-interrupted",
)
class _LandsLater(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._queue: list[tuple[str, JournalRecord, Lease | None]] = []

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        self._queue.append((run_id, record, lease))
        self._work_off()

    def _work_off(self) -> None:
        while self._queue:
            run_id, record, lease = self._queue[0]
            try:
                super().append(run_id, record, lease=lease)
            finally:
                self._queue.remove((run_id, record, lease))


@broken(
    "interrupt-halves-deletion",
    "an interrupted deletion leaves half a run",
    breaks="E-interrupted",
)
class _HalvesDeletion(ReferenceStore):
    def _delete(self, run_id: str, lease: Lease | None, *, blobs: bool) -> None:
        check_run_id(run_id)
        with self._gate.passing():
            self._fence(run_id, lease)
            self._clear_journal(run_id)
            self._clear_rest(run_id, blobs=blobs)

    def _clear_journal(self, run_id: str) -> None:
        self._tables._run(run_id).records.clear()

    def _clear_rest(self, run_id: str, *, blobs: bool) -> None:
        self._tables.drop(run_id, blobs=blobs)
        self._leases.pop(run_id, None)


class _StaysHomeError(LeaseHeldError):
    """An error that knows its facts by its own type alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reduced, (str(self),))


def _reduced(text: str) -> LeaseHeldError:
    return LeaseHeldError(text, run_id="", reason="unknown")


@broken(
    "refusal-loses-its-facts",
    "a refusal that is pickled forgets its run and its reason",
    breaks="E-pickles",
)
class _LosesFacts(ReferenceStore):
    def _fence(self, run_id: str, lease: Lease | None) -> None:
        try:
            super()._fence(run_id, lease)
        except LeaseHeldError as error:
            raise _StaysHomeError(
                run_id=run_id,
                reason=error.reason,
                offered=lease,
                holder=error.holder,
                epoch=error.epoch,
            ) from error


# --- declarations ---------------------------------------------------------------------------


class _Truthy(ReferenceStore):
    fenced_writes = 1  # type: ignore[assignment] # this is the defect


defect(
    "reference-marker-truthy",
    "fenced_writes is 1, which is not True",
    breaks="C-unfenced",
    build=lambda home: reference(home, _Truthy),
)


@broken(
    "marker-without-lease",
    "the marker is declared, and put_meta takes no lease",
    breaks="C-marker",
)
class _TakesNoLease(ReferenceStore):
    def put_meta(self, meta: RunMeta, /) -> None:  # type: ignore[override]
        super().put_meta(meta)


@broken(
    "marker-comes-late",
    "the marker is there after the first append only",
    breaks="C-stable",
)
class _ComesLate(ReferenceStore):
    fenced_writes = False  # type: ignore[assignment]

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        super().append(run_id, record, lease=lease)
        self.fenced_writes = True  # type: ignore[assignment]


@broken(
    "append-without-lease",
    "acquire is there, and append takes no lease",
    breaks="C-leases",
)
class _AppendTakesNoLease(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /) -> None:  # type: ignore[override]
        super().append(run_id, record)


@broken("list-runs-needs-filter", "list_runs cannot be called bare", breaks="C-journal")
class _NeedsFilter(ReferenceStore):
    def list_runs(self, run_filter: Any, /) -> Sequence[RunMeta]:  # type: ignore[override]
        return super().list_runs(run_filter)


@broken_twin("list-refs-missing", "the twin has no list_refs", breaks="C-transcripts")
class _NoRefs(ReferenceTranscripts):
    list_refs = None  # type: ignore[assignment]


@broken("revive-is-a-flag", "revive is False, not a method and not missing", breaks="C-methods")
class _IsAFlag(ReferenceStore):
    revive = False  # type: ignore[assignment]


@broken("load-after-without-limit", "load_after takes no limit", breaks="C-optional")
class _WithoutLimit(ReferenceStore):
    def load_after(self, run_id: str, after_seq: int, /) -> Sequence[JournalRecord]:  # type: ignore[override]
        return super().load_after(run_id, after_seq, 1000)


@broken("busy-timeout-as-text", "busy_timeout_ms is text", breaks="C-values")
class _TimeoutAsText(ReferenceStore):
    busy_timeout_ms = "0"  # type: ignore[assignment]


@broken(
    "busy-timeout-too-long",
    "a call may wait as long as a lease lives",
    breaks="B-bound",
)
class _WaitsTooLong(ReferenceStore):
    busy_timeout_ms = 60_000
