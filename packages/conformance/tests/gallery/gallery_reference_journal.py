"""Broken journals over the reference store."""

from __future__ import annotations

import bisect
import json
from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken

from rulvar.core.checks import check_record, check_run_id
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.records import JournalRecord
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core import Lease


class _Unchecked(ReferenceStore):
    """A store whose append can be given a guard of its own."""

    def _land(self, run_id: str, record: JournalRecord) -> None:
        self._tables._run_to_change(run_id).records.append(record)

    def _tail(self, run_id: str) -> JournalRecord | None:
        return next(iter(self._tables.records(run_id)[-1:]), None)


# --- what becomes of a record ---------------------------------------------------------------


@broken(
    "append-acknowledges-early",
    "an append returns before its record can be loaded: it lands with the next one",
    breaks="A3-next-load",
)
class _AcknowledgesEarly(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._late: dict[str, JournalRecord] = {}

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_record(record)
        late = self._late.pop(run_id, None)
        if late is not None:
            super().append(run_id, late)
        self._late[run_id] = record


@broken(
    "append-drops-order-violation",
    "an append out of order is dropped without a word",
    breaks="A5-guard",
)
class _DropsOutOfOrder(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except JournalOrderViolation:
            return


@broken(
    "append-shows-parts",
    "a record is put down in two steps, and a reader sees the first",
    breaks="A1-whole",
)
class _ShowsParts(_Unchecked):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        with self._gate.passing():
            self._fence(run_id, lease)
            half = record.payload[: len(record.payload) // 2]
            self._tables.append(run_id, JournalRecord(seq=record.seq, payload=half))
        for _ in range(200):
            self.load(run_id)  # it takes its time
        with self._gate.passing():
            self._tables._run(run_id).records[-1] = record


@broken(
    "append-encodes-again",
    "a payload is decoded and encoded again",
    breaks="A4-bytes",
)
class _EncodesAgain(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_record(record)
        again = json.dumps(json.loads(record.payload)).encode()
        super().append(run_id, JournalRecord(seq=record.seq, payload=again), lease=lease)


@broken(
    "append-unchecked",
    "a payload may be anything",
    breaks="A4-refused",
)
class _TakesAnyPayload(_Unchecked):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        with self._gate.passing():
            self._fence(run_id, lease)
            tail = self._tail(run_id)
            if tail is not None and record.seq <= tail.seq:
                raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail.seq)
            self._land(run_id, record)


@broken(
    "append-checks-json-alone",
    "a payload is any JSON that the standard library reads",
    breaks="A4-refused",
)
class _ChecksJsonAlone(_Unchecked):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            right = json.loads(record.payload)["seq"] == record.seq
        except (ValueError, TypeError, KeyError, AttributeError):
            right = False
        if not right or type(record.payload) is not bytes:
            check_record(record)
        with self._gate.passing():
            self._fence(run_id, lease)
            tail = self._tail(run_id)
            if tail is not None and record.seq <= tail.seq:
                raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail.seq)
            self._land(run_id, record)


@broken(
    "append-refuses-large",
    "a payload of more than 1 MiB is refused as the disk being full",
    breaks="A4-largest",
)
class _RefusesLarge(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_record(record)
        if len(record.payload) > 2**20:
            message = "too large"
            raise OSError(message)
        super().append(run_id, record, lease=lease)


# --- the order of records -------------------------------------------------------------------


@broken(
    "append-demands-contiguity",
    "a gap in the seqs is refused",
    breaks="A5-guard",
)
class _DemandsContiguity(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        found = self.load(run_id)
        if found and record.seq > found[-1].seq + 1:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=found[-1].seq)
        super().append(run_id, record, lease=lease)


class _Guarded(_Unchecked):
    """A store whose guard is `_refuses`."""

    def _refuses(self, run_id: str, seq: int) -> bool:
        raise NotImplementedError

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        with self._gate.passing():
            self._fence(run_id, lease)
            if self._refuses(run_id, record.seq):
                raise JournalOrderViolation(run_id=run_id, seq=record.seq)
            self._land(run_id, record)


@broken(
    "append-takes-equal-seq",
    "the seq of the last record may come again",
    breaks="A5-guard",
)
class _TakesEqualSeq(_Guarded):
    def _refuses(self, run_id: str, seq: int) -> bool:
        tail = self._tail(run_id)
        return tail is not None and seq < tail.seq


@broken(
    "append-guards-by-count",
    "a seq is held against the number of records, not against the largest seq",
    breaks="A5-guard",
)
class _GuardsByCount(_Guarded):
    def _refuses(self, run_id: str, seq: int) -> bool:
        return seq < len(self._tables.records(run_id))


@broken(
    "append-guards-by-membership",
    "only a seq that is there already is refused, and a late one is sorted in",
    breaks="A5-guard",
)
class _GuardsByMembership(_Guarded):
    def _refuses(self, run_id: str, seq: int) -> bool:
        return any(each.seq == seq for each in self._tables.records(run_id))

    def _land(self, run_id: str, record: JournalRecord) -> None:
        records = self._tables._run_to_change(run_id).records
        bisect.insort(records, record, key=lambda each: each.seq)


@broken(
    "append-guards-whole-store",
    "a seq is held against the largest of all runs",
    breaks="A5-first",
)
class _GuardsWholeStore(_Guarded):
    def _refuses(self, run_id: str, seq: int) -> bool:
        tails = [self._tail(each) for each in self._tables.run_ids()]
        return any(tail is not None and seq <= tail.seq for tail in tails)


@broken(
    "append-names-wrong-tail",
    "the refusal of a seq names that seq as the tail",
    breaks="A5-error",
)
class _NamesWrongTail(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        try:
            super().append(run_id, record, lease=lease)
        except JournalOrderViolation as error:
            raise JournalOrderViolation(
                run_id=run_id, seq=record.seq, tail_seq=record.seq
            ) from error


@broken(
    "append-guards-first",
    "the guard looks at the tail, and the write takes the lock again",
    breaks="A5-one-wins",
)
class _GuardsFirst(_Unchecked):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        check_record(record)
        with self._gate.passing():
            tail = self._tail(run_id)
            if tail is not None and record.seq <= tail.seq:
                raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail.seq)
        with self._gate.passing():
            self._fence(run_id, lease)
            self._land(run_id, record)


@broken(
    "append-mixes-runs",
    "what is being appended waits in one place for all runs",
    breaks="A2-runs-apart",
)
class _MixesRuns(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        self._pending = (run_id, record)
        check_record(record)
        for _ in range(50):
            self.load(run_id)  # it takes its time
        super().append(*self._pending, lease=lease)


# --- reading --------------------------------------------------------------------------------


@broken(
    "load-sorts-text",
    "a journal is loaded in the order of its seqs as text",
    breaks="A2-order",
)
class _SortsText(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return tuple(sorted(super().load(run_id), key=lambda each: str(each.seq)))


@broken(
    "load-returns-own-list",
    "load hands out the list that the store itself keeps",
    breaks="A2-same-each-time",
)
class _ReturnsOwnList(_Unchecked):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        check_run_id(run_id)
        with self._gate.passing():
            return self._tables._run_to_change(run_id).records


@broken(
    "load-raises-for-unknown",
    "the journal of an unknown run is an error",
    breaks="A2-order",
)
class _RaisesForUnknown(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        found = super().load(run_id)
        if not found:
            raise KeyError(run_id)
        return found


@broken(
    "load-after-off-by-one",
    "load_after begins with the seq itself",
    breaks="A-tail",
)
class _BeginsWithSeq(ReferenceStore):
    def load_after(self, run_id: str, after_seq: int, limit: int, /) -> Sequence[JournalRecord]:
        return super().load_after(run_id, max(-1, after_seq - 1), limit)


@broken(
    "list-run-ids-misses-blobs",
    "a run of which there is only a blob is not named",
    breaks="A-inventory",
)
class _MissesBlobs(ReferenceStore):
    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        found = super().list_run_ids(after_run_id, 100_000)
        return [
            run for run in found if self.load(run) or self.get_meta(run) or self.get_lease(run)
        ][:limit]


@broken(
    "list-run-ids-keeps-deleted",
    "a run that was deleted is still named, for its tombstone",
    breaks="A-inventory",
)
class _NamesDeleted(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._gone: set[str] = set()

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        self._gone.add(run_id)

    def list_run_ids(self, after_run_id: str | None, limit: int, /) -> Sequence[str]:
        found = set(super().list_run_ids(after_run_id, 100_000)) | self._gone
        return sorted(run for run in found if after_run_id is None or run > after_run_id)[:limit]
