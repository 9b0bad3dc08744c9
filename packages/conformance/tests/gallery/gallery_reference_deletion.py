"""Broken deletions over the reference store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken

from rulvar.core.checks import check_record, check_run_id
from rulvar.core.errors import JournalOrderViolation
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import JournalRecord, Lease, RunMeta


@broken("delete-keeps-row", "the row of a deleted run stays", breaks="D1-removes")
class _KeepsRow(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        row = self.get_meta(run_id)
        super().delete(run_id, lease=lease)
        if row is not None:
            self.put_meta(row)


@broken("delete-keeps-journal", "the journal of a deleted run stays", breaks="D1-removes")
class _KeepsJournal(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        records = self.load(run_id)
        super().delete(run_id, lease=lease)
        for each in records:
            self.append(run_id, each)


@broken(
    "delete-by-prefix",
    "every run whose id begins like the deleted one goes with it",
    breaks="D1-removes",
)
class _DeletesByPrefix(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        for row in self.list_runs(None):
            if row.run_id.startswith(run_id):
                super().delete(row.run_id)


@broken(
    "delete-in-two-steps",
    "the journal goes first and the row after it: a reader sees half a run",
    breaks="D1-one-step",
)
class _TwoSteps(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        with self._gate.passing():
            self._fence(run_id, lease)
            self._tables._run(run_id).records.clear()
        super().delete(run_id, lease=lease)


@broken(
    "delete-record-by-record",
    "the records of a deleted run go one after the other",
    breaks="D1-one-step",
)
class _RecordByRecord(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        while True:
            with self._gate.passing():
                self._fence(run_id, lease)
                records = self._tables._run(run_id).records
                if not records:
                    break
                records.pop()
        super().delete(run_id, lease=lease)


@broken("delete-unknown-raises", "deleting an unknown run is a KeyError", breaks="D1-unknown")
class _UnknownRaises(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        if not self.load(run_id) and self.get_meta(run_id) is None:
            raise KeyError(run_id)
        super().delete(run_id, lease=lease)


@broken("delete-eats-blobs", "delete removes the blobs as well", breaks="D1-blobs")
class _EatsBlobs(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        self._delete(run_id, lease, blobs=True)


@broken("delete-keeps-lease", "the lease of a deleted run goes on", breaks="D1-lease")
class _KeepsLease(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        check_run_id(run_id)
        with self._gate.passing():
            self._fence(run_id, lease)
            self._tables.drop(run_id, blobs=False)


@broken(
    "delete-keeps-own-lease",
    "a deletion ends every lease but the one that it carries",
    breaks="D1-own-lease",
)
class _KeepsOwnLease(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        with self._gate.passing():
            row = self._leases.get(run_id)
        super().delete(run_id, lease=lease)
        if lease is not None and row is not None:
            with self._gate.passing():
                self._leases[run_id] = row


@broken(
    "delete-hides-run",
    "a deleted run is only hidden, and is back with its next append",
    breaks="D1-again",
)
class _HidesRun(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._hidden: set[str] = set()

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().load(run_id)
        self._hidden.add(run_id)

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        self._hidden.discard(run_id)
        super().append(run_id, record, lease=lease)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return () if run_id in self._hidden else super().load(run_id)

    def list_runs(self, *wanted: Any) -> Sequence[RunMeta]:
        return [row for row in super().list_runs(*wanted) if row.run_id not in self._hidden]


@broken("delete-whole-run-keeps-blobs", "the blobs of a run stay", breaks="D-whole")
class _WholeKeepsBlobs(ReferenceStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        self.delete(run_id, lease=lease)


@broken(
    "delete-whole-run-in-two-steps",
    "the blobs go after the rest: a reader sees a deleted run with blobs",
    breaks="D-whole-one-step",
)
class _WholeInTwoSteps(ReferenceStore):
    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        self.delete(run_id, lease=lease)
        super().delete_whole_run(run_id)


@broken(
    "delete-whole-run-remembers-tail",
    "a run that was deleted with its blobs goes on behind its old tail",
    breaks="D-whole",
)
class _RemembersTail(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tails: dict[str, int] = {}

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        tail = self._tails.get(check_run_id(run_id), -1)
        with self._gate.passing():
            self._fence(run_id, lease)
        if check_record(record).seq <= tail:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=tail)
        super().append(run_id, record, lease=lease)

    def delete_whole_run(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        records = self.load(run_id)
        super().delete_whole_run(run_id, lease=lease)
        if records:
            self._tails[run_id] = records[-1].seq
