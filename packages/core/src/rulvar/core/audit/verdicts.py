"""How a verdict is reached, from a row, a journal and a holder. No I/O.

First what is readable at all, then who is working on it, then what the journal supports:

1. Unreadable or out of order, or epochs that fall: ``damaged``. No moment between two writes looks
   like that, so a live holder does not excuse it.
2. The run is held: ``owned``.
3. No row, or a row of another incarnation: ``suspect``.
4. The last settle, with no work after it, is what the row should say. Work after it means that
   the run goes on: any row says so but a terminal one, which is ``stranded``.
5. No settle at all: only a terminal row can be wrong. Over a dangling call it is ``stranded``,
   over open suspensions ``suspect``.

Two rows that say ``running`` over a settle are right all the same, because a worker must look:
a later segment has begun and journalled nothing yet (its boot writes the row first), and a run
that sleeps until a deadline which the row's ``wake_at`` does not carry would otherwise never
be woken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.audit.findings import Finding, RowChange, RunAudit
from rulvar.core.errors import StoreCorruptError
from rulvar.core.formatting import counted
from rulvar.core.journal import (
    HASH_WINDOW,
    decode_entry,
    first_epoch_fall,
    first_loss,
    hash_versions,
    last_moment,
    last_settle,
    run_start,
    structure,
)
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.audit.findings import Verdict
    from rulvar.core.journal import JournalEntry, Settle, Structure
    from rulvar.core.records import JournalRecord, LeaseInfo, RunMeta

__all__ = ["Judgement", "Reading", "judge"]

_MOST_UNREADABLE = 10
"""How many unreadable records are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a store says of one run, read without changing anything.

    ``row_problem``, ``lease_problem`` and ``journal_problem`` say why a part could not be read.
    """

    run_id: str
    row: RunMeta | None
    records: Sequence[JournalRecord]
    holder: LeaseInfo | None = None
    row_problem: str | None = None
    lease_problem: str | None = None
    journal_problem: Finding | None = None


@dataclass(slots=True)
class Judgement:
    """A verdict on its way; ``entries`` is None when the journal cannot be read."""

    reading: Reading
    entries: list[JournalEntry] | None = None
    last: Settle | None = None
    findings: list[Finding] = field(default_factory=list)

    def note(self, finding: Finding) -> None:
        """Add a fact."""
        self.findings.append(finding)

    def reached(self, verdict: Verdict, change: RowChange | None = None) -> RunAudit:
        """Return the report, as yet without blobs."""
        reading = self.reading
        return RunAudit(
            run_id=reading.run_id,
            verdict=verdict,
            row=reading.row,
            journal_status=None if self.last is None else self.last.status,
            entries=None if self.entries is None else len(self.entries),
            holder=reading.holder,
            findings=tuple(self.findings),
            change=change,
        )


def judge(reading: Reading) -> tuple[RunAudit, list[JournalEntry] | None]:
    """Return the verdict on a run, and its journal where that could be read."""
    judgement = Judgement(reading)
    _read(judgement)
    entries = judgement.entries
    if any(finding.code in _DAMAGE for finding in judgement.findings):
        return judgement.reached("damaged"), entries
    if entries is None:
        message = "a journal that was not read must have been found damaged"
        raise AssertionError(message)
    judgement.last = _valid_settle(entries)
    if reading.holder is not None:
        return judgement.reached("owned"), entries
    return _compare(judgement, entries), entries


# --- what can be read -----------------------------------------------------------------------

_DAMAGE = frozenset(
    {
        "entry-unreadable",
        "epochs-fall",
        "forward-reference",
        "journal-unreadable",
        "lease-unreadable",
        "no-start",
        "order",
        "records-lost",
        "row-unreadable",
        "run-id",
    }
)


def _read(judgement: Judgement) -> None:
    reading = judgement.reading
    if reading.row_problem is not None:
        judgement.note(Finding(code="row-unreadable", message=reading.row_problem))
    if reading.lease_problem is not None:
        judgement.note(Finding(code="lease-unreadable", message=reading.lease_problem))
    if reading.journal_problem is not None:
        judgement.note(reading.journal_problem)
    else:
        _read_journal(judgement)


def _read_journal(judgement: Judgement) -> None:
    reading = judgement.reading
    entries: list[JournalEntry] = []
    unreadable = 0
    before = -1
    for position, record in enumerate(reading.records):
        if record.seq <= before:
            message = f"seq {record.seq} comes after seq {before}: records are out of order"
            judgement.note(
                Finding(code="order", message=message, seq=record.seq, position=position)
            )
        before = max(before, record.seq)
        try:
            entry = decode_entry(reading.run_id, position, record)
        except StoreCorruptError as error:
            unreadable += 1
            if unreadable <= _MOST_UNREADABLE:
                judgement.note(
                    Finding(
                        code="entry-unreadable",
                        message=str(error),
                        seq=record.seq,
                        position=position,
                    )
                )
            continue
        if entry.ref is not None and entry.ref >= entry.seq:
            message = f"seq {entry.seq} answers seq {entry.ref}, which cannot come before it"
            judgement.note(
                Finding(code="forward-reference", message=message, seq=entry.seq, position=position)
            )
        entries.append(entry)
    if not unreadable:
        judgement.entries = entries
        _note_losses(judgement, entries)
    fall = first_epoch_fall(entries)
    if fall is not None:
        message = (
            f"seq {fall.seq} was written under epoch {fall.epoch}, after an entry of a higher "
            "epoch: a write under a dead lease was accepted"
        )
        judgement.note(Finding(code="epochs-fall", message=message, seq=fall.seq))


def _note_losses(judgement: Judgement, entries: list[JournalEntry]) -> None:
    """Note what is gone from a journal of this engine: no segment can continue from the rest."""
    loss = first_loss(entries)
    if loss is not None:
        judgement.note(
            Finding(code="records-lost", message=loss.message, seq=loss.seq, position=loss.position)
        )
    low, high = HASH_WINDOW
    ours = entries and all(low <= version <= high for version in hash_versions(entries))
    if ours and run_start(entries) is None:
        message = "the journal has no run_start, which is the first record of every run"
        judgement.note(Finding(code="no-start", message=message, position=0))


def _valid_settle(entries: list[JournalEntry]) -> Settle | None:
    """Return the last settle that says a status."""
    end = len(entries)
    while (settle := last_settle(entries[:end])) is not None and not settle.status:
        end = next(at for at in range(end) if entries[at].seq == settle.seq)
    return settle


# --- what the journal supports --------------------------------------------------------------


def _compare(judgement: Judgement, entries: list[JournalEntry]) -> RunAudit:
    row = judgement.reading.row
    if not entries:
        if row is not None:
            message = "the run has a row and no journal: it has journalled nothing"
            judgement.note(Finding(code="never-began", message=message))
        return judgement.reached("consistent")
    shape = structure(entries)
    _note_beside(judgement, entries, shape)
    if row is None:
        message = "the run has a journal and no row: resuming it writes one"
        judgement.note(Finding(code="no-row", message=message))
        return judgement.reached("suspect")
    start = run_start(entries)
    if start is not None and start.genesis and row.genesis not in {None, start.genesis}:
        message = (
            f"the row is of genesis {row.genesis!r} and the journal of {start.genesis!r}: the row "
            "was written for another run of this id"
        )
        judgement.note(Finding(code="genesis-differs", message=message))
        return judgement.reached("suspect")
    last = judgement.last
    if last is None:
        return _by_structure(judgement, entries, row, shape)
    if shape.moved_on(entries, last.seq):
        return _over_work(judgement, entries, row)
    return _against_settle(judgement, entries, row, last, shape)


def _note_beside(judgement: Judgement, entries: list[JournalEntry], shape: Structure) -> None:
    low, high = HASH_WINDOW
    others = [version for version in hash_versions(entries) if not low <= version <= high]
    if others:
        message = (
            f"entries of hash version {', '.join(map(str, others))} were written by another "
            "engine or generation: judged by structure, their blobs not at all"
        )
        judgement.note(Finding(code="other-hash-version", message=message))
    if shape.abandoned:
        message = (
            f"{counted(len(shape.abandoned), 'entry', 'entries')} in abandoned branches: closed"
        )
        judgement.note(Finding(code="abandoned-branches", message=message))
    row, last = judgement.reading.row, judgement.last
    known = None if row is None else row.segments
    settled = None if last is None else last.segment
    if known is not None and settled is not None and known < settled:
        message = (
            f"the row counts {counted(known, 'segment')} and segment {settled} has settled: the "
            "next segment corrects it"
        )
        judgement.note(Finding(code="segments-behind", message=message))


def _by_structure(
    judgement: Judgement, entries: list[JournalEntry], row: RunMeta, shape: Structure
) -> RunAudit:
    """Judge a journal without a settle: an older one, another writer's, or one at work."""
    if row.status not in TERMINAL_STATUSES:
        return judgement.reached("consistent")
    if shape.dangling:
        judgement.note(_dangling(shape))
        return _over_work(judgement, entries, row)
    if shape.waiting:
        first = shape.waiting[0]
        message = (
            f"the row says {row.status!r} over {counted(len(shape.waiting), 'open suspension')}, "
            f"the first {first.key!r}: it may have completed without an answer, or not at all"
        )
        judgement.note(Finding(code="waiting-calls", message=message, seq=first.seq))
        return judgement.reached("suspect")
    return judgement.reached("consistent")


def _dangling(shape: Structure) -> Finding:
    first = shape.dangling[0]
    message = (
        f"{counted(len(shape.dangling), 'call')} begun and never answered, the first {first.key!r} "
        f"({first.kind})"
    )
    return Finding(code="dangling-calls", message=message, seq=first.seq)


def _over_work(judgement: Judgement, entries: list[JournalEntry], row: RunMeta) -> RunAudit:
    """Judge a row over a journal that goes on: only a terminal one is wrong."""
    if row.status not in TERMINAL_STATUSES:
        return judgement.reached("consistent")
    message = f"the row says {row.status!r} and the journal continues: no worker would look at it"
    judgement.note(Finding(code="terminal-over-work", message=message))
    change = RowChange(status="running", updated_at=last_moment(entries) or row.updated_at)
    return judgement.reached("stranded", change)


def _against_settle(
    judgement: Judgement,
    entries: list[JournalEntry],
    row: RunMeta,
    last: Settle,
    shape: Structure,
) -> RunAudit:
    """Judge a row against the settle that it should say."""
    wanted = "running" if _sleeps_past(row, last, shape) else last.status
    if row.status in {wanted, last.status}:
        return judgement.reached("consistent")
    if row.status == "running" and _begun_again(row, last):
        message = f"segment {row.segments} has begun after the settle and journalled nothing yet"
        judgement.note(Finding(code="between-segments", message=message))
        return judgement.reached("consistent")
    message = f"the row says {row.status!r} and the journal has settled as {last.status!r}"
    judgement.note(Finding(code="row-behind", message=message, seq=last.seq))
    moment = last.settled_at or last_moment(entries) or row.updated_at
    return judgement.reached("meta-behind", RowChange(status=wanted, updated_at=moment))


def _begun_again(row: RunMeta, last: Settle) -> bool:
    """Whether a segment after the settled one may have begun: it suspended, or is retried."""
    if last.status in TERMINAL_STATUSES and last.status not in {"error", "exhausted"}:
        return False
    return row.segments is not None and last.segment is not None and row.segments > last.segment


def _sleeps_past(row: RunMeta, last: Settle, shape: Structure) -> bool:
    """Whether a ``suspended`` row would let the run sleep past a deadline of its journal."""
    if last.status != "suspended":
        return False
    deadlines = [moment for call in shape.waiting if (moment := _ms(call.deadline_at)) is not None]
    if not deadlines:
        return False
    wakes = _ms(row.wake_at)
    return wakes is None or wakes > min(deadlines)


def _ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None  # another writer's spelling: not known to wake anybody
