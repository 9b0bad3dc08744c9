"""Copying runs from one pair of stores to another, whatever each of them can do.

A copy goes through the SPI alone, so it works between any two stores. What makes it safe:

- *Nobody else writes.* Where a side grants leases, the copy holds the run there for as long
  as it takes, as a worker would. A run that are held is left for another time.
- *No old number is granted again.* Before anything is written, the destination's epoch for
  the run is raised to every epoch that was seen: the source's own, and those in the journal.
- *Nothing is mixed.* The first thing written is a blob that says whose unfinished copy this
  is; the last thing removed is that blob. A run that the destination has already is in the way
  and left alone there, unless it is equal, or that blob names the same source: then the copy
  goes on. The other runs are copied all the same.
- *Nothing is taken on trust.* At the end both sides are read again and compared, record for
  record and blob for blob. The row comes last, so that no worker sees half a run.

Stop the workers of the source first: a copy does not stop a run from going on there.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn

from rulvar.core.capabilities import (
    has_epoch_floor,
    has_fenced_journal,
    has_fenced_transcripts,
    has_leases,
    has_meta_lookup,
    has_run_inventory,
    lease_ttl_ms_of,
)
from rulvar.core.checks import MAX_INTEGER, check_run_id
from rulvar.core.errors import ConfigError, LeaseHeldError, StoreCorruptError, StoreFullError
from rulvar.core.inventory import every_run_id, is_run_id
from rulvar.core.records import RunFilter
from rulvar.core.wire import Digits, InvalidJSONError, json_text, parse_json, parse_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rulvar.core.records import JournalRecord, Lease, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["CopiedRun", "CopyOutcome", "CopyReport", "copy_runs"]

CopyOutcome = Literal["copied", "continued", "already", "held", "conflict", "failed"]
"""What became of a run: copied whole, continued from an unfinished copy, there already and
equal, held by somebody on one side, in the way at the destination (it went on at the source
since it was copied, say; nothing was written for either), or failed. ``problem`` says why."""

_PAGE = 500
_MARK = ".rulvar-unfinished-copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRun:
    """What became of one run; ``epoch`` is the highest that was seen, 0 for none."""

    run_id: str
    outcome: CopyOutcome
    records: int = 0
    blobs: int = 0
    bytes_read: int = 0
    epoch: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What became of every run, in the order of their ids."""

    runs: tuple[CopiedRun, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the destination now has every run of the source."""
        return all(run.outcome in {"copied", "continued", "already"} for run in self.runs)


def copy_runs(
    source: StorePair,
    destination: StorePair,
    /,
    *,
    source_name: str,
    run_ids: Sequence[str] = (),
    progress: Callable[[CopiedRun, int, int], None] | None = None,
) -> CopyReport:
    """Copy the runs named, or all that the source lists, and verify each.

    ``source_name`` is what an unfinished copy is known by when it is tried again; give the
    same one for the same source (its URL, for example). ``progress`` is called after each
    run with what became of it, how many are done and how many there are.

    Raises `ConfigError`, before anything is written, when the source has no trace of a run
    that is named, and when the destination grants leases but cannot raise its epochs;
    `StoreError` when a store refuses to go on. What was copied until then stays and is found
    ``already`` there the next time.
    """
    wanted = tuple(map(check_run_id, run_ids)) or tuple(_ids(source))
    known = set(_ids(source)) if run_ids else set()
    absent = [run_id for run_id in run_ids if run_id not in known]
    if absent:
        message = f"the source has no run {', '.join(map(repr, absent))}: nothing was copied"
        raise ConfigError(message)
    _require_floor(destination)
    there = set(_ids(destination))
    done: list[CopiedRun] = []
    for run_id in wanted:
        copy = _Copy(source, destination, source_name, run_id)
        done.append(copy.run(is_there=run_id in there))
        if progress is not None:
            progress(done[-1], len(done), len(wanted))
    return CopyReport(tuple(done))


def _ids(stores: StorePair) -> Iterator[str]:
    journal = stores.journal
    if has_run_inventory(journal):
        yield from every_run_id(journal)
        return
    after: str | None = None
    while rows := stores.journal.list_runs(RunFilter(limit=_PAGE, after_run_id=after)):
        yield from (row.run_id for row in rows)
        after = rows[-1].run_id


def _require_floor(destination: StorePair) -> None:
    journal: object = destination.journal
    if has_leases(journal) and not has_epoch_floor(journal):
        message = (
            f"the destination {type(journal).__qualname__} grants leases and has no raise_epoch: "
            "an epoch of the source could be granted there again; choose another store"
        )
        raise ConfigError(message)


# --- what is there --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Content:
    """A run as one side has it, its blobs by ref alone."""

    records: tuple[JournalRecord, ...]
    row: RunMeta | None
    refs: tuple[str, ...]
    mark: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.row or self.refs or self.mark)


def _read(stores: StorePair, run_id: str) -> _Content:
    journal, mark_ref = stores.journal, f"{run_id}/{_MARK}"
    refs = stores.transcripts.list_refs(run_id)
    mark = stores.transcripts.get(mark_ref) if mark_ref in refs else None
    return _Content(
        records=tuple(journal.load(run_id)),
        row=_row(stores, run_id),
        refs=tuple(ref for ref in refs if ref != mark_ref),
        mark=None if mark is None else mark.decode("utf-8", "replace"),
    )


def _row(stores: StorePair, run_id: str) -> RunMeta | None:
    journal = stores.journal
    if has_meta_lookup(journal):
        return journal.get_meta(run_id)
    return next((row for row in stores.journal.list_runs() if row.run_id == run_id), None)


def _mark(source_name: str, run_id: str, content: _Content) -> str:
    genesis = content.row.genesis if content.row is not None else None
    return json_text({"unfinishedCopyOf": source_name, "runId": run_id, "genesis": genesis})


def _conflict(
    ours: _Content, theirs: _Content, mark: str, source: StorePair, destination: StorePair
) -> str | None:
    """Say why the destination's run stands in the way, or None when it does not."""
    if theirs.is_empty:
        return None
    if theirs.mark is not None:
        return _conflict_of_unfinished(ours, theirs, mark)
    if (theirs.records, theirs.row, theirs.refs) != (ours.records, ours.row, ours.refs):
        return "it is there and is not equal"
    blobs, copies = source.transcripts, destination.transcripts
    if any(blobs.get(ref) != copies.get(ref) for ref in ours.refs):
        return "it is there, and its blobs are not equal"
    return None


def _conflict_of_unfinished(ours: _Content, theirs: _Content, mark: str) -> str | None:
    if theirs.mark != mark:
        return f"it is an unfinished copy of something else: {_named(theirs.mark or '')}"
    if theirs.records != ours.records[: len(theirs.records)]:
        return "its unfinished copy holds records that the source no longer has"
    return None


def _named(mark: str) -> str:
    try:
        value = parse_value(mark)
    except InvalidJSONError:
        value = None
    return str(value.get("unfinishedCopyOf")) if isinstance(value, dict) else mark[:80]


# --- holding a run --------------------------------------------------------------------------


@dataclass(slots=True)
class _Grip:
    """A brief lease on one side, renewed as the copy goes on; nothing where there are none."""

    store: object
    run_id: str
    owner: str
    lease: Lease | None = None
    _renewed: float = field(default=0.0)

    def take(self) -> None:
        """Acquire. Raises `LeaseHeldError` (``held``)."""
        if has_leases(self.store):
            self.lease = self.store.acquire(self.run_id, self.owner)
            self._renewed = time.monotonic()

    def raise_to(self, epoch: int) -> None:
        """Make every number up to ``epoch`` one that can never be granted (again) here."""
        if self.lease is None or self.lease.epoch > epoch:
            return
        if has_epoch_floor(self.store):
            self.store.raise_epoch(self.run_id, epoch)
            self.lease = None
            self.take()

    def keep(self, *, now: bool = False) -> None:
        """Renew when a third of the time is gone. Raises `LeaseHeldError` when it is lost."""
        if self.lease is None or not has_leases(self.store):
            return
        ttl_ms = lease_ttl_ms_of(self.store) or 0
        if now or (time.monotonic() - self._renewed) * 3000 >= ttl_ms:
            self.store.renew(self.lease)
            self._renewed = time.monotonic()

    def detach(self) -> None:
        """Release; a lease that is lost already needs none."""
        if self.lease is not None and has_leases(self.store):
            with contextlib.suppress(LeaseHeldError):
                self.store.release(self.lease)
            self.lease = None


class _ConflictError(Exception):
    """A run that the destination has is in the way."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(
            f"the destination has run {run_id!r} and keeps it: {why}: delete it there to copy it "
            "anew, or leave it"
        )


class _Copy:
    """The copy of one run."""

    def __init__(
        self, source: StorePair, destination: StorePair, source_name: str, run_id: str
    ) -> None:
        self._source = source
        self._destination = destination
        self._source_name = source_name
        self._run_id = run_id
        owner = f"rulvar-copy-{uuid.uuid4().hex}"
        self._here = _Grip(source.journal, run_id, owner)
        self._there = _Grip(destination.journal, run_id, owner)
        self._epoch = 0
        self._bytes = 0

    def run(self, *, is_there: bool) -> CopiedRun:
        """Copy, and say what became of it. Raises `StoreError` for what stops every copy.

        ``is_there`` says that the destination has something of the run. Where that is in the
        way, neither side is touched, not even by a lease.
        """
        try:
            if is_there and is_run_id(self._run_id):
                self._refuse_conflict()
            used_up = self._take()
            if used_up is not None:
                return self._told("failed", problem=used_up)
            content = _read(self._source, self._run_id)
            outcome = self._copy(content)
        except LeaseHeldError as error:
            return self._told("held" if error.reason == "held" else "failed", problem=str(error))
        except _ConflictError as error:
            return self._told("conflict", problem=str(error))
        except (StoreCorruptError, ConfigError) as error:
            return self._told("failed", problem=str(error))
        finally:
            self._there.detach()
            self._here.detach()
        return self._told(outcome, records=len(content.records), blobs=len(content.refs))

    def _refuse_conflict(self) -> None:
        """Raise `_ConflictError` for a run that is in the way. A damaged source is in nobody's."""
        ours = _read(self._source, self._run_id)
        try:
            theirs = _read(self._destination, self._run_id)
        except StoreCorruptError as error:
            raise _ConflictError(self._run_id, str(error)) from error
        self._check_conflict(ours, theirs)

    def _check_conflict(self, ours: _Content, theirs: _Content) -> None:
        mark = _mark(self._source_name, self._run_id, ours)
        problem = _conflict(ours, theirs, mark, self._source, self._destination)
        if problem is not None:
            raise _ConflictError(self._run_id, problem)

    def _take(self) -> str | None:
        """Hold the run on both sides, or say why there is no epoch (or room for one) to grant."""
        try:
            self._here.take()
            self._there.take()
        except StoreFullError as error:
            return str(error)
        return None

    def _told(
        self, outcome: CopyOutcome, *, records: int = 0, blobs: int = 0, problem: str | None = None
    ) -> CopiedRun:
        return CopiedRun(
            run_id=self._run_id,
            outcome=outcome,
            records=records,
            blobs=blobs,
            bytes_read=self._bytes,
            epoch=self._epoch,
            problem=problem,
        )

    def _copy(self, content: _Content) -> CopyOutcome:
        run_id = self._run_id
        if content.mark is not None:
            self._refuse(f"the source's own run {run_id!r} is an unfinished copy: finish it first")
        self._epoch = _highest_epoch(content.records, self._here.lease)
        theirs = _read(self._destination, run_id)
        mark = _mark(self._source_name, run_id, content)
        self._check_conflict(content, theirs)
        if self._there.lease is not None and self._epoch >= MAX_INTEGER:
            self._refuse(f"run {run_id!r} has used up its epochs: no higher one can be granted")
        self._there.raise_to(self._epoch)
        if theirs.is_empty or theirs.mark is not None:
            self._write(content, theirs, mark)
            self._verify()
            self._delete_blob(f"{run_id}/{_MARK}")
        if theirs.is_empty:
            return "copied"
        return "already" if theirs.mark is None else "continued"

    def _refuse(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def _write(self, content: _Content, theirs: _Content, mark: str) -> None:
        run_id = self._run_id
        self._put_blob(f"{run_id}/{_MARK}", mark.encode("utf-8"))
        for record in content.records[len(theirs.records) :]:
            self._keep()
            self._append(record)
            self._bytes += len(record.payload)
        for ref in content.refs:
            self._keep()
            blob = self._source.transcripts.get(ref)
            if blob is None:
                continue  # gone since it was listed: the verification will say so
            self._bytes += len(blob)
            if ref not in theirs.refs or self._destination.transcripts.get(ref) != blob:
                self._put_blob(ref, blob)
        for ref in set(theirs.refs) - set(content.refs):
            self._delete_blob(ref)
        if content.row is not None:
            self._put_meta(content.row)

    def _keep(self, *, now: bool = False) -> None:
        self._here.keep(now=now)
        self._there.keep(now=now)

    def _verify(self) -> None:
        """Read both sides again and compare. Raises `StoreCorruptError` for a difference."""
        ours, theirs = _read(self._source, self._run_id), _read(self._destination, self._run_id)
        different = [
            name
            for name, same in (
                ("records", ours.records == theirs.records),
                ("row", ours.row == theirs.row),
                ("blobs", ours.refs == theirs.refs and self._same_blobs(ours.refs)),
            )
            if not same
        ]
        # Both leases still live: nobody who plays by the fence has written in between.
        self._keep(now=True)
        if different:
            message = (
                f"run {self._run_id!r} is not the same on both sides after its copy "
                f"({', '.join(different)}): stop the process that writes it, and copy again"
            )
            raise StoreCorruptError(message, run_id=self._run_id)

    def _same_blobs(self, refs: Sequence[str]) -> bool:
        for ref in refs:
            self._keep()
            if self._source.transcripts.get(ref) != self._destination.transcripts.get(ref):
                return False
        return True

    # --- the destination's mutations, under its lease where it takes one ---

    def _append(self, record: JournalRecord) -> None:
        journal = self._destination.journal
        if self._there.lease is not None and has_leases(journal):
            journal.append(self._run_id, record, lease=self._there.lease)
        else:
            self._destination.journal.append(self._run_id, record)

    def _put_meta(self, row: RunMeta) -> None:
        journal = self._destination.journal
        if self._there.lease is not None and has_fenced_journal(journal):
            journal.put_meta(row, lease=self._there.lease)
        else:
            self._destination.journal.put_meta(row)

    def _put_blob(self, ref: str, blob: bytes) -> None:
        twin = self._destination.transcripts
        if self._there.lease is not None and has_fenced_transcripts(twin):
            twin.put(ref, blob, lease=self._there.lease)
        else:
            self._destination.transcripts.put(ref, blob)

    def _delete_blob(self, ref: str) -> None:
        twin = self._destination.transcripts
        if self._there.lease is not None and has_fenced_transcripts(twin):
            twin.delete(ref, lease=self._there.lease)
        else:
            self._destination.transcripts.delete(ref)


def _highest_epoch(records: Sequence[JournalRecord], lease: Lease | None) -> int:
    """Return the highest epoch that the source has granted, as far as it can be seen."""
    highest = 0 if lease is None else lease.epoch
    for record in records:
        try:
            value = parse_json(record.payload)
        except InvalidJSONError as error:
            message = f"the record of seq {record.seq} cannot be read: {error}"
            raise StoreCorruptError(message) from error
        epoch = value.get("epoch") if isinstance(value, dict) else None
        if type(epoch) is Digits and epoch.isdigit() and len(epoch) <= len(str(MAX_INTEGER)):
            highest = max(highest, int(epoch))
    return min(highest, MAX_INTEGER)
