"""What must be true of a store directly after a death and after the recovery.

Pure: the ledger and what was read go in, findings come out. Each property has a name, which a
finding carries:

==============  =================================================================================
acknowledged    what a store has acknowledged is there, and nothing that nobody wrote
settle first    no row says that a run is over before its journal does
journal last    a run whose journal is gone has no blob left
epochs          granted epochs grow, also over a deletion, and never fall along a journal
result          the outcome is exactly the expected one, and stays it
settled         each run has exactly the terminal settles that it should, the last one last
row             the row says what the journal's last settle says
audit           the audit finds every run consistent, and no blob missing
orphans         no blob is left that nothing refers to
paid            what was journalled is not executed again, and no more than was in flight twice
deaths          each death is journalled once, by whoever came after it, and nothing else is one
leases          nobody holds a run, and the next one can take it at once
nothing left    of a deleted run only its epochs are left; recreated, it sees nothing of before
worktrees       no worktree is left, neither on disk nor in the repository
recovery        the successor finishes, and every process can open the store
==============  =================================================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rulvar.conformance.crash.call_log import digest
from rulvar.conformance.harness.failure import shown
from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal import (
    ATTEMPT,
    first_epoch_fall,
    last_settle,
    read_journal,
    recovered_of,
    recoveries,
    segment_of,
    structure,
)
from rulvar.core.records import TERMINAL_STATUSES, JournalRecord
from rulvar.core.wire import decode_meta

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rulvar.conformance.crash.expected_state import ExpectedState, Note
    from rulvar.conformance.harness.state import RunState, Snapshot
    from rulvar.core.audit import RunAudit
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta

__all__ = [
    "Finding",
    "acknowledged",
    "audited",
    "deaths",
    "directly_after",
    "entries_of",
    "epochs",
    "paid",
    "settled",
]


_PERFORMED = frozenset({"step", "turns", "worktree"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A property that did not hold."""

    about: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.about}: expected {self.expected}; found {self.found}"


def entries_of(run: str, state: RunState) -> list[JournalEntry]:
    """Read a journal. Raises `StoreCorruptError`."""
    records = [JournalRecord(seq=seq, payload=payload) for seq, payload in state.journal]
    return read_journal(run, records)


def row_of(run: str, state: RunState) -> RunMeta | None:
    """Read a row."""
    return None if state.row is None else decode_meta(run, state.row)


# --- what the store holds -----------------------------------------------------------------


def acknowledged(kept: ExpectedState, state: Snapshot) -> Iterator[Finding]:
    """Compare what was acknowledged, and what is in doubt, with what can be read."""
    for run, found in sorted(state.items()):
        yield from _records(kept, run, found)
        row = None if found.row is None else digest(found.row.encode())
        if not kept.row(run).allows(row):
            known = "the last acknowledged one, or one in doubt since"
            what = "no row" if found.row is None else shown(found.row)
            yield Finding("acknowledged", f"the row of {run!r} is {known}", what)
        there = {ref: digest(blob or b"") for ref, blob in found.blobs}
        known_refs = {ref for ref in kept.blobs if ref.split("/", 1)[0] == run}
        for ref in sorted(known_refs | there.keys()):
            if not kept.blob(ref).allows(there.get(ref)):
                what = "another one" if ref in there else "none"
                if kept.blob(ref).value is None:
                    yield Finding("acknowledged", f"no blob {ref!r}", what)
                else:
                    yield Finding("acknowledged", f"the blob {ref!r} as acknowledged", what)


def _records(kept: ExpectedState, run: str, found: RunState) -> Iterator[Finding]:
    wanted = kept.journals.get(run, {})
    doubtful = kept.doubtful.get(run, set())
    there = [(seq, digest(payload)) for seq, payload in found.journal]
    if [seq for seq, _ in there] != sorted({seq for seq, _ in there}):
        order = ", ".join(str(seq) for seq, _ in there)
        yield Finding("acknowledged", f"the journal of {run!r} in the order of its seqs", order)
    lost = sorted(seq for seq, value in wanted.items() if (seq, value) not in there)
    if lost:
        last = there[-1][0] if there else "none"
        yield Finding(
            "acknowledged",
            f"every acknowledged record of {run!r}",
            f"no such record with seq {', '.join(map(str, lost))}; the last seq is {last}",
        )
    strange = [seq for seq, value in there if (wanted.get(seq) != value)]
    strange = [s for s in strange if (s, dict(there)[s]) not in doubtful]
    if strange:
        seqs = ", ".join(map(str, strange))
        yield Finding(
            "acknowledged",
            f"only records of {run!r} that were appended by a process of this case",
            f"seq {seqs} too",
        )


def directly_after(kept: ExpectedState, state: Snapshot) -> Iterator[Finding]:
    """Judge what a death has left, before anybody has touched it."""
    yield from acknowledged(kept, state)
    for run, found in sorted(state.items()):
        try:
            entries = entries_of(run, found)
        except StoreCorruptError as error:
            yield Finding("acknowledged", f"a journal of {run!r} that can be read", str(error))
            continue
        row, last = row_of(run, found), last_settle(entries)
        if row is not None and row.status in TERMINAL_STATUSES:
            status = None if last is None else last.status
            if status != row.status:
                yield Finding(
                    "settle first",
                    f"a settle as {row.status!r} in the journal of {run!r}, as its row says",
                    f"the last settle: {status!r}",
                )
        if not found.journal and run in kept.had_journal and found.blobs:
            refs = ", ".join(ref for ref, _ in found.blobs)
            yield Finding(
                "journal last", f"no blob of {run!r}, whose journal is gone", f"blobs: {refs}"
            )


# --- what became of the runs --------------------------------------------------------------


def settled(state: Snapshot, runs: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Look for exactly the terminal settles that each run should have, and for its row."""
    for run, wanted in sorted(runs.items()):
        found = state[run]
        entries = entries_of(run, found)
        said = [
            str(entry.value.get("runStatus"))
            for entry in entries
            if entry.kind == "decision"
            and isinstance(entry.value, dict)
            and entry.value.get("decisionType") == "run_settle"
        ]
        terminal = [status for status in said if status in TERMINAL_STATUSES]
        if terminal != list(wanted):
            expected = f"the terminal settles of {run!r} to be {list(wanted)}"
            yield Finding("settled", expected, f"{terminal}")
        row, last = row_of(run, found), last_settle(entries)
        if last is None or not said or last.status != said[-1]:
            yield Finding("settled", f"a settle in the journal of {run!r}", "none")
            continue
        told = None if row is None else (row.status, row.wake_at)
        if row is None or row.status != last.status or row.wake_at is not None:
            yield Finding("row", f"the row of {run!r} to say {last.status!r}", f"{told}")
        elif row.updated_at != last.settled_at:
            expected = f"the row of {run!r} to bear its settle's time, {last.settled_at}"
            yield Finding("row", expected, row.updated_at)


def audited(audits: Sequence[RunAudit]) -> Iterator[Finding]:
    """Repeat what an audit did not like."""
    for audit in audits:
        if audit.verdict != "consistent":
            said = "; ".join(finding.message for finding in audit.findings)
            expected = f"run {audit.run_id!r} to be consistent"
            yield Finding("audit", expected, f"{audit.verdict}: {said}")
        if audit.missing:
            refs = ", ".join(blob.ref for blob in audit.missing)
            yield Finding("audit", f"every blob that {audit.run_id!r} needs", f"missing: {refs}")
        if audit.orphans:
            refs = ", ".join(blob.ref for blob in audit.orphans)
            yield Finding("orphans", f"no blob of {audit.run_id!r} that nothing needs", refs)


def epochs(kept: ExpectedState, state: Snapshot) -> Iterator[Finding]:
    """Look whether granted epochs grow, and whether they ever fall along a journal."""
    for run, granted in sorted(kept.granted.items()):
        if any(later <= earlier for earlier, later in pairwise(granted)):
            yield Finding("epochs", f"the epochs granted for {run!r} to grow", f"{granted}")
    for run, found in sorted(state.items()):
        entries = entries_of(run, found)
        fall = first_epoch_fall(entries)
        if fall is not None:
            written = [entry.epoch for entry in entries]
            yield Finding("epochs", f"no fall along the journal of {run!r}", f"{written}")
        known = set(kept.granted.get(run, ()))
        foreign = sorted({e.epoch for e in entries if e.epoch is not None} - known)
        if foreign:
            yield Finding("epochs", f"only granted epochs in {run!r}", f"{foreign}")


# --- what was said of the death ---------------------------------------------------------------


def deaths(state: Snapshot, *, died: bool, hands_over: bool) -> Iterator[Finding]:
    """Look whether a death was told once, with its witnesses, and whether nothing else was.

    Where the runs of a workload are handed over, the change of hands alone proves no death.
    """
    for run, found in sorted(state.items()):
        entries = entries_of(run, found)
        told = [(at, death) for at, each in enumerate(entries) if (death := recovered_of(each))]
        if len(told) > died:
            expected = f"{int(died)} death of {run!r} journalled at most"
            yield Finding("deaths", expected, f"{[death.segment for _, death in told]}")
        for at, death in told:
            before = entries[:at]
            settled_before = last_settle(before)
            if death.count != len(recoveries(before)) + 1:
                yield Finding("deaths", f"the deaths of {run!r} counted in a row", f"{death}")
            if settled_before is not None and settled_before.segment == death.segment:
                yield Finding("deaths", f"no death of {run!r} after its settle", f"{death}")
            under_way = tuple(f"{e.kind} {e.key}" for e in structure(before).dangling)
            if death.under_way != under_way:
                yield Finding("deaths", f"what was under way in {run!r}: {under_way}", f"{death}")
        yield from _attempts(run, entries)
        if not hands_over:
            yield from _untold(run, entries, {death.segment for _, death in told})


def _attempts(run: str, entries: list[JournalEntry]) -> Iterator[Finding]:
    """Look whether every attempt is at an open call, and every call that has changed hands."""
    openings = {e.seq: e for e in entries if e.ref is None and e.kind in _PERFORMED}
    made: dict[int, int] = {}
    by: dict[int, int | None] = {seq: segment_of(opening) for seq, opening in openings.items()}
    answered: set[int] = set()
    for entry in entries:
        if entry.kind == ATTEMPT:
            value = entry.value if isinstance(entry.value, dict) else {}
            seq, number = value.get("seq"), value.get("attempt")
            if seq not in openings or seq in answered or number != made.get(seq, 1) + 1:
                expected = f"the next attempt at an open call of {run!r}"
                yield Finding("deaths", expected, f"seq {entry.seq}: {value}")
                continue
            made[seq], by[seq] = number, segment_of(entry)
        elif entry.ref in openings:
            answered.add(entry.ref)
            if by[entry.ref] != segment_of(entry):
                expected = f"an attempt at seq {entry.ref} of {run!r} before it was answered"
                yield Finding("deaths", expected, "none, by the segment that answered it")


def _untold(run: str, entries: list[JournalEntry], told: set[int | None]) -> Iterator[Finding]:
    """Look for a segment that wrote, did not settle and was followed, and nobody said so."""
    wrote: dict[int, bool] = {}
    for entry in entries:
        number = segment_of(entry)
        if number is not None:
            settles = last_settle([entry]) is not None
            wrote[number] = wrote.get(number, False) or settles
    for number, has_settled in sorted(wrote.items())[:-1]:
        if not has_settled and number not in told:
            yield Finding(
                "deaths", f"the death of segment {number} of {run!r} journalled", "nothing"
            )


# --- what was paid ------------------------------------------------------------------------


def completes(note: Note) -> Iterator[str]:
    """Return the marks of what a call completes for good, once it is acknowledged.

    A mark that ends in ``*`` stands for all that begin so.
    """
    facts = note.facts
    if note.call == "journal.append" and facts.get("ref") is not None:
        failed = ":error" if facts.get("status") == "error" else ""
        yield f"{facts.get('kind')}:{facts.get('key')}{failed}"
        if facts.get("kind") == "turns":
            yield from ("turn:*", "summary:*")
    elif note.call == "transcripts.put" and isinstance(turns := facts.get("turns"), int):
        summary = "/summary/" in str(facts["ref"])
        yield f"summary:{turns}" if summary else f"turn:{turns - 1}"


def paid(kept: ExpectedState, *, in_flight: int, died: bool) -> Iterator[Finding]:
    """Look for work that was done again although its completion had been acknowledged.

    ``in_flight`` is how many calls may have been under way at the death, each of which may be
    executed once more. Nothing is executed twice by one process, nor where nobody died. What
    was executed to prepare a workload is not counted, but what it completed is complete.
    """
    begun: dict[tuple[str, object], Note] = {}
    complete: list[str] = []
    times: Counter[tuple[str, str]] = Counter()
    for note in kept.notes:
        key = (note.phase, note.facts.get("n"))
        if note.what == "begun":
            begun[key] = note
        elif note.what == "done":
            complete += completes(begun[key])
        elif note.what == "ran" and note.phase != "prepared":
            mark = note.facts["mark"]
            times[str(mark), note.phase] += 1
            if any(_matches(str(mark), one) for one in complete):
                expected = f"{mark!r} is not executed again: its completion was journalled"
                yield Finding("paid", expected, f"executed again by the {note.phase}")
    twice = {mark: n for (mark, phase), n in times.items() if n > 1}
    if twice:
        yield Finding("paid", "no process executes the same work twice", f"{twice}")
    total: Counter[str] = Counter()
    for (mark, _), number in times.items():
        total[mark] += number
    extra = {mark: number for mark, number in total.items() if number > 1}
    allowed = in_flight if died else 0
    if sum(number - 1 for number in extra.values()) > allowed:
        yield Finding("paid", f"at most {allowed} executions more than one", f"{extra}")


def _matches(mark: str, complete: str) -> bool:
    if complete.endswith("*"):
        return mark.startswith(complete[:-1])
    return mark == complete
