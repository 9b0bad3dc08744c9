"""What is lost, strange or paid twice is told from the notes alone: no process, no store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance.crash import invariants
from rulvar.conformance.crash.call_log import digest
from rulvar.conformance.crash.expected_state import ExpectedState, Note, read_notes
from rulvar.conformance.harness.state import RunState
from rulvar.core.audit import BlobFinding, RunAudit
from rulvar.core.journal import JournalEntry, encode_entry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rulvar.conformance.crash.expected_state import Phase


class Notes:
    """Notes as processes make them."""

    def __init__(self) -> None:
        self.all: list[Note] = []
        self._number = 0

    def call(
        self, call: str, *, phase: Phase = "victim", end: str | None = "done", **facts: object
    ) -> Notes:
        self._number += 1
        end_facts = {"epoch": facts.pop("epoch")} if "epoch" in facts else {}
        number = {"n": self._number, "call": call}
        self.all.append(Note(phase, {"what": "begun", "run": "r"} | number | facts))
        if end == "done":
            self.all.append(Note(phase, {"what": "done"} | number | end_facts))
        elif end is not None:
            self.all.append(Note(phase, {"what": "raised", "error": end} | number))
        return self

    def append(self, seq: int, payload: bytes, *, end: str | None = "done") -> Notes:
        return self.call("journal.append", seq=seq, value=digest(payload), end=end)

    def ran(self, mark: str, phase: Phase = "victim") -> Notes:
        self.all.append(Note(phase, {"what": "ran", "mark": mark}))
        return self

    def kept(self) -> ExpectedState:
        return ExpectedState(self.all)


def _said(notes: Notes, state: RunState) -> list[str]:
    return [f.found for f in invariants.acknowledged(notes.kept(), {"r": state})]


# --- acknowledged -----------------------------------------------------------------------------


def test_records_are_there_as_acknowledged_and_in_doubt_there_or_not() -> None:
    notes = Notes().append(0, b"a").append(1, b"b").append(2, b"c", end=None)
    assert _said(notes, RunState(journal=((0, b"a"), (1, b"b")))) == []
    assert _said(notes, RunState(journal=((0, b"a"), (1, b"b"), (2, b"c")))) == []


@pytest.mark.parametrize(
    ("journal", "found"),
    [
        (((0, b"a"),), ["no such record with seq 1; the last seq is 0"]),
        (((0, b"a"), (1, b"x")), ["no such record with seq 1; the last seq is 1", "seq 1 too"]),
        (((0, b"a"), (1, b"b"), (2, b"x")), ["seq 2 too"]),
        (((1, b"b"), (0, b"a")), ["1, 0"]),
        ((), ["no such record with seq 0, 1; the last seq is none"]),
    ],
)
def test_a_record_is_lost_changed_strange_or_out_of_order(
    journal: tuple[tuple[int, bytes], ...], found: list[str]
) -> None:
    notes = Notes().append(0, b"a").append(1, b"b").append(2, b"c", end=None)
    assert _said(notes, RunState(journal=journal)) == found


def test_a_refused_append_is_strange_and_one_of_unknown_outcome_in_doubt() -> None:
    there = RunState(journal=((0, b"a"),))
    assert _said(Notes().append(0, b"a", end="LeaseHeldError"), there) == ["seq 0 too"]
    assert _said(Notes().append(0, b"a", end="OutcomeUnknownError"), there) == []


def test_a_row_is_the_last_acknowledged_one_or_one_in_doubt_since() -> None:
    old, new = "old", "new"
    notes = Notes().call("journal.put_meta", value=digest(b"old"))
    assert _said(notes, RunState(row=old)) == []
    assert _said(notes, RunState(row=new)) == ["'new'"]
    assert _said(notes, RunState()) == ["no row"]
    notes.call("journal.put_meta", value=digest(b"new"), end=None)
    assert _said(notes, RunState(row=old)) == _said(notes, RunState(row=new)) == []
    notes.call("journal.put_meta", value=digest(b"old"), phase="successor")
    assert _said(notes, RunState(row=new)) == ["'new'"], "no doubt is left"


def test_a_blob_is_there_as_acknowledged_and_gone_when_deleted() -> None:
    notes = Notes().call("transcripts.put", ref="r/x", value=digest(b"1"))
    assert _said(notes, RunState(blobs=(("r/x", b"1"),))) == []
    assert _said(notes, RunState(blobs=(("r/x", b"2"),))) == ["another one"]
    assert _said(notes, RunState()) == ["none"]
    notes.call("transcripts.delete", ref="r/x", end=None)
    assert _said(notes, RunState()) == []
    notes.call("transcripts.delete", ref="r/x", phase="successor")
    assert _said(notes, RunState()) == []
    assert _said(notes, RunState(blobs=(("r/x", b"1"),))) == ["another one"]


def test_a_deletion_in_doubt_has_taken_everything_or_nothing() -> None:
    notes = Notes().append(0, b"a").call("transcripts.put", ref="r/x", value=digest(b"1"))
    notes.call("journal.put_meta", value=digest(b"row"))
    whole = RunState(journal=((0, b"a"),), row="row", blobs=(("r/x", b"1"),))
    notes.call("journal.delete_whole_run", end=None)
    assert _said(notes, whole) == _said(notes, RunState()) == []
    notes.call("journal.delete_whole_run", phase="successor")
    assert _said(notes, RunState()) == []
    assert "another one" in _said(notes, whole)


def test_what_was_deleted_stays_deleted_and_a_deletion_leaves_blobs() -> None:
    notes = Notes().append(0, b"a").call("transcripts.put", ref="r/a", value=digest(b"x"))
    notes.call("journal.delete")
    blobs = (("r/a", b"x"),)
    assert _said(notes, RunState(blobs=blobs)) == []
    assert _said(notes, RunState()) == ["none"]
    assert _said(notes, RunState(journal=((0, b"a"),), blobs=blobs)) == ["seq 0 too"]
    notes.call("journal.delete_whole_run")
    assert _said(notes, RunState()) == []
    assert _said(notes, RunState(blobs=blobs)) == ["another one"]


def test_what_a_process_died_over_is_no_note(tmp_path: Path) -> None:
    path = tmp_path / "victim.notes"
    path.write_bytes(json.dumps({"what": "ran", "mark": "step:a"}).encode() + b'\n{"what": "do')
    assert [note.facts for note in read_notes("victim", path)] == [
        {"what": "ran", "mark": "step:a"}
    ]
    assert read_notes("successor", tmp_path / "none") == []


# --- epochs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "found"), [(2, []), (1, ["[1, 1]"]), (0, ["[1, 0]"])])
def test_granted_epochs_grow(second: int, found: list[str]) -> None:
    notes = Notes().call("journal.acquire", epoch=1).call("journal.delete")
    notes.call("journal.acquire", epoch=second, phase="successor")
    assert [f.found for f in invariants.epochs(notes.kept(), {"r": RunState()})] == found


def test_an_entry_bears_an_epoch_that_was_granted() -> None:
    notes = Notes().call("journal.acquire", epoch=3)
    payload = b'{"seq":0,"kind":"decision","status":"ok","epoch":4}'
    state = {"r": RunState(journal=((0, payload),))}
    assert [f.found for f in invariants.epochs(notes.kept(), state)] == ["[4]"]


# --- paid -------------------------------------------------------------------------------------


def _answered(notes: Notes) -> Notes:
    return notes.call(
        "journal.append", seq=1, value="x", kind="step", key="a", status="ok", ref=0, decision=None
    )


def test_what_was_in_flight_may_be_executed_once_more() -> None:
    notes = Notes().ran("step:a").ran("step:a", "successor")
    assert list(invariants.paid(notes.kept(), in_flight=1, died=True)) == []
    [finding] = invariants.paid(notes.kept(), in_flight=1, died=False)
    assert finding.expected == "at most 0 executions more than one"
    notes.ran("step:b").ran("step:b", "successor")
    assert list(invariants.paid(notes.kept(), in_flight=2, died=True)) == []
    [finding] = invariants.paid(notes.kept(), in_flight=1, died=True)
    assert finding.found == "{'step:a': 2, 'step:b': 2}"


def test_what_was_journalled_is_not_executed_again() -> None:
    notes = _answered(Notes().ran("step:a")).ran("step:a", "successor")
    [finding] = invariants.paid(notes.kept(), in_flight=1, died=True)
    assert finding.found == "executed again by the successor"


def test_a_turn_is_complete_with_its_checkpoint_and_a_summary_with_its_blob() -> None:
    notes = Notes().ran("turn:0").call("transcripts.put", ref="r/ckpt/1", value="x", turns=1)
    notes.ran("summary:1").call("transcripts.put", ref="r/summary/1/1", value="x", turns=1)
    notes.ran("turn:0", "successor").ran("summary:1", "successor").ran("turn:1", "successor")
    found = [
        f.expected.split(" ")[0] for f in invariants.paid(notes.kept(), in_flight=9, died=True)
    ]
    assert found == ["'turn:0'", "'summary:1'"]


def test_no_process_executes_the_same_twice() -> None:
    notes = Notes().ran("step:a", "successor").ran("step:a", "successor")
    found = [f.found for f in invariants.paid(notes.kept(), in_flight=9, died=True)]
    assert found == ["{'step:a': 2}"]


# --- what the runs hold -----------------------------------------------------------------------

_AT = "2026-01-01T00:00:00.000Z"


def _settle(status: str, seq: int = 0, *, epoch: int = 1) -> tuple[int, bytes]:
    entry = {
        "seq": seq,
        "kind": "decision",
        "status": "ok",
        "epoch": epoch,
        "endedAt": _AT,
        "value": {"decisionType": "run_settle", "runStatus": status},
    }
    return seq, json.dumps(entry).encode()


def _row(status: str, **more: object) -> str:
    return json.dumps({"status": status, "updatedAt": _AT} | more)


def _over(*statuses: str, row: str | None) -> RunState:
    journal = tuple(_settle(status, seq) for seq, status in enumerate(statuses))
    return RunState(journal=journal, row=row)


def _about(findings: Iterable[invariants.Finding]) -> list[str]:
    return [finding.about for finding in findings]


@pytest.mark.parametrize(
    ("state", "wanted", "found"),
    [
        (_over("ok", row=_row("ok")), ["ok"], []),
        (_over("suspended", "ok", row=_row("ok")), ["ok"], []),
        (_over("error", "ok", row=_row("ok")), ["error", "ok"], []),
        (_over("ok", "ok", row=_row("ok")), ["ok"], ["settled"]),
        (_over("ok", row=_row("ok")), ["error"], ["settled"]),
        (_over("ok", row=_row("ok")), [], ["settled"]),
        (RunState(row=_row("ok")), [], ["settled"]),
        (_over("ok", row=_row("running")), ["ok"], ["row"]),
        (_over("ok", row=None), ["ok"], ["row"]),
        (_over("ok", row=_row("ok", wakeAt=_AT)), ["ok"], ["row"]),
        (_over("ok", row=_row("ok", updatedAt="2026-01-01T00:00:00.001Z")), ["ok"], ["row"]),
    ],
)
def test_a_run_has_exactly_its_settles_and_its_row_says_the_last(
    state: RunState, wanted: list[str], found: list[str]
) -> None:
    assert _about(invariants.settled({"r": state}, {"r": wanted})) == found


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (_over("ok", row=_row("ok")), []),
        (_over("suspended", row=_row("running")), []),
        (_over("error", row=_row("ok")), ["settle first"]),
        (_over(row=_row("ok")), ["settle first"]),
        (RunState(journal=((0, b"["),)), ["acknowledged"]),
        (RunState(blobs=(("r/a", b"x"),)), ["journal last"]),
    ],
)
def test_directly_after_a_death_the_row_is_never_ahead_and_blobs_are_never_alone(
    state: RunState, found: list[str]
) -> None:
    notes = Notes()
    for seq, payload in state.journal or ((0, b""),):
        notes.append(seq, payload)
    if not state.journal:
        notes.call("journal.delete")
    for ref, blob in state.blobs:
        notes.call("transcripts.put", ref=ref, value=digest(blob or b""))
    if state.row is not None:
        notes.call("journal.put_meta", value=digest(state.row.encode()))
    assert _about(invariants.directly_after(notes.kept(), {"r": state})) == found
    # What was acknowledged counts as well.
    notes.call("journal.put_meta", value=digest(b"another"))
    assert "acknowledged" in _about(invariants.directly_after(notes.kept(), {"r": state}))


def test_blobs_without_a_journal_are_for_a_run_that_had_one() -> None:
    notes = Notes().call("transcripts.put", ref="r/a", value=digest(b"x"))
    state = {"r": RunState(blobs=(("r/a", b"x"),))}
    assert _about(invariants.directly_after(notes.kept(), state)) == []


def test_what_an_audit_does_not_like_is_told() -> None:
    fine = RunAudit(run_id="r", verdict="consistent", row=None, journal_status="ok", entries=1)
    needed = BlobFinding(ref="r/a", state="missing", required=True)
    orphan = BlobFinding(ref="r/b", state="orphan")
    assert _about(invariants.audited([fine])) == []
    assert _about(invariants.audited([replace(fine, verdict="stranded")])) == ["audit"]
    assert _about(invariants.audited([replace(fine, blobs=(needed,))])) == ["audit"]
    assert _about(invariants.audited([fine, replace(fine, blobs=(orphan,))])) == ["orphans"]


def test_epochs_do_not_fall_along_a_journal() -> None:
    notes = Notes().call("journal.acquire", epoch=1).call("journal.acquire", epoch=2)
    fell = RunState(journal=(_settle("ok", 0, epoch=2), _settle("ok", 1, epoch=1)))
    assert _about(invariants.epochs(notes.kept(), {"r": fell})) == ["epochs"]
    rose = RunState(journal=(_settle("ok", 0, epoch=1), _settle("ok", 1, epoch=2)))
    assert _about(invariants.epochs(notes.kept(), {"r": rose})) == []


def test_a_loop_that_is_over_is_not_begun_again() -> None:
    notes = Notes().ran("turn:0").call("journal.append", kind="turns", key="loop", ref=0, seq=1)
    notes.ran("turn:0", "successor").ran("summary:1", "successor").ran("step:a", "successor")
    found = [
        f.expected.split(" ")[0] for f in invariants.paid(notes.kept(), in_flight=9, died=True)
    ]
    assert found == ["'turn:0'", "'summary:1'"]


# --- deaths -----------------------------------------------------------------------------------


def _journal(*entries: JournalEntry) -> RunState:
    numbered = [replace(entry, seq=seq) for seq, entry in enumerate(entries)]
    return RunState(journal=tuple((entry.seq, encode_entry(entry)) for entry in numbered))


def _opening(segment: int = 1) -> JournalEntry:
    span = f"{segment}.1"
    return JournalEntry(seq=0, kind="step", status="running", key="boom", span_id=span)


def _decided(kind: str, *, by: int, **facts: object) -> JournalEntry:
    value = {"decisionType": kind} | facts
    return JournalEntry(seq=0, kind="decision", status="ok", value=value, span_id=f"{by}.0")


def _told(
    segment: int = 1, *, count: int = 1, under_way: tuple[str, ...] = ("step boom",)
) -> JournalEntry:
    facts = {"count": count, "segment": segment, "underWay": list(under_way)}
    return _decided("recovered", by=segment + 1, **facts)


def _attempt(number: int = 2, *, segment: int = 2, of: int = 1) -> JournalEntry:
    value = {"seq": of, "attempt": number}
    return JournalEntry(seq=0, kind="attempt", status="ok", value=value, span_id=f"{segment}.0")


def _answer(segment: int = 2) -> JournalEntry:
    return JournalEntry(seq=0, kind="step", status="ok", ref=1, span_id=f"{segment}.1")


_START = _decided("run_start", by=1)


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ((_opening(), _told(), _attempt(), _answer()), ""),
        ((_opening(), _told(count=2), _attempt(), _answer()), "count=2"),
        ((_opening(), _told(under_way=()), _attempt(), _answer()), "under_way=()"),
        ((_opening(), _told(), _answer()), "none, by the segment that answered it"),
        ((_opening(), _told(), _attempt(3), _answer()), "seq 3: {'seq': 1, 'attempt': 3}"),
        ((_opening(), _told(), _attempt(of=0)), "seq 3: {'seq': 0, 'attempt': 2}"),
        ((_opening(), _attempt(), _answer()), "nothing"),
        ((_opening(), _told(), _told(2, count=2), _attempt(segment=3)), "[1, 2]"),
    ],
)
def test_a_death_is_told_once_and_every_attempt_is_journalled(
    entries: tuple[JournalEntry, ...], found: str
) -> None:
    state = {"r": _journal(_START, *entries)}
    said = [f.found for f in invariants.deaths(state, died=True, hands_over=False)]
    assert any(found in each for each in said) if found else said == []


def test_a_hand_over_alone_is_no_death_and_where_nobody_died_none_is_told() -> None:
    handed = {"r": _journal(_START, _opening(), _attempt(), _answer())}
    assert list(invariants.deaths(handed, died=True, hands_over=True)) == []
    outcome_of = {"r": _journal(_START, _opening(), _told(), _attempt(), _answer())}
    assert [f.found for f in invariants.deaths(outcome_of, died=False, hands_over=True)] == ["[1]"]
