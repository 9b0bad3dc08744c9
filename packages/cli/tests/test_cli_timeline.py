"""A journal told: who held the run, who took it over after what silence, what ran again."""

from __future__ import annotations

from dataclasses import replace

from rulvar.cli.view.inspection import Inspection
from rulvar.cli.view.run_view import show_document, show_text
from rulvar.cli.view.tables import lines_of
from rulvar.cli.view.timeline import read_timeline
from rulvar.core.journal import JournalEntry


def at(seconds: int) -> str:
    return f"2026-01-02T03:04:{seconds:02d}.000Z"


def decision(seq: int, epoch: int, second: int, **value: object) -> JournalEntry:
    return JournalEntry(
        seq=seq, kind="decision", status="ok", epoch=epoch, value=value, ended_at=at(second)
    )


def begun(seq: int, epoch: int, second: int, name: str, kind: str = "step") -> JournalEntry:
    return JournalEntry(
        seq=seq,
        kind=kind,
        status="running" if kind == "step" else "suspended",
        key=name,
        epoch=epoch,
        started_at=at(second),
    )


def answered(seq: int, epoch: int, second: int, ref: int, name: str) -> JournalEntry:
    return JournalEntry(
        seq=seq,
        kind="step",
        status="ok",
        key=name,
        epoch=epoch,
        ref=ref,
        started_at=at(0),
        ended_at=at(second),
    )


def start(epoch: int = 1) -> JournalEntry:
    return decision(0, epoch, 0, decisionType="run_start", workflow="count", genesis="g")


TAKEOVER = [
    start(),
    begun(1, 1, 1, "read a"),
    answered(2, 1, 2, 1, "read a"),
    begun(3, 1, 3, "read b"),
    # The owner froze here; its lease ran out.
    answered(4, 2, 12, 3, "read b"),
    decision(5, 2, 13, decisionType="run_settle", runStatus="ok", segment=2, result=7),
]


def test_a_takeover_names_the_silence_and_what_ran_again() -> None:
    timeline = read_timeline(TAKEOVER)
    first, second = timeline.tenures
    assert (first.epoch, first.began, first.settled) == (1, "started", None)
    assert first.unfinished == ("read b",)
    assert (second.epoch, second.began, second.settled) == (2, "took-over", "ok")
    assert second.silence_ms == 9000
    assert second.finished_for_others == ("read b",)
    assert timeline.takeovers == (second,)
    assert timeline.epochs_fall_at is None
    assert (timeline.status, timeline.result, timeline.workflow) == ("ok", 7, "count")
    again = timeline.calls[1]
    assert (again.begun_under, again.answered_under, again.took_ms) == (1, 2, None)
    assert timeline.calls[0].took_ms == 1000


def test_an_owner_that_took_its_run_again_is_not_taken_for_another() -> None:
    settle = decision(5, 2, 13, decisionType="run_settle", runStatus="ok", segment=1)
    timeline = read_timeline([*TAKEOVER[:5], settle])
    assert [tenure.began for tenure in timeline.tenures] == ["started", "went-on"]
    assert timeline.takeovers == ()
    # Before it settles, the row's count of segments tells the same.
    assert read_timeline(TAKEOVER[:5], segments=1).tenures[1].began == "went-on"
    assert read_timeline(TAKEOVER[:5], segments=2).tenures[1].began == "took-over"
    assert read_timeline(TAKEOVER[:5]).tenures[1].began == "took-over"


def test_a_resume_after_a_settle_is_no_takeover() -> None:
    suspended = [
        start(),
        begun(1, 1, 1, "approval", kind="external"),
        decision(2, 1, 2, decisionType="run_settle", runStatus="suspended", segment=1),
    ]
    timeline = read_timeline(suspended)
    assert [call.name for call in timeline.waiting_for] == ["approval"]
    resolution = JournalEntry(
        seq=3, kind="resolution", status="ok", key="approval", ref=1, epoch=2, ended_at=at(30)
    )
    done = decision(4, 3, 31, decisionType="run_settle", runStatus="ok", segment=2)
    timeline = read_timeline([*suspended, resolution, done])
    assert [tenure.began for tenure in timeline.tenures] == ["started", "answered", "resumed"]
    assert timeline.tenures[1].answers == ("resolved approval",)
    assert timeline.waiting_for == ()
    assert timeline.takeovers == ()


def test_a_word_from_outside_to_a_run_whose_owner_died_hides_no_takeover() -> None:
    word = JournalEntry(seq=4, kind="resolution", status="ok", ref=1, epoch=2, ended_at=at(12))
    timeline = read_timeline([*TAKEOVER[:4], word, replace(TAKEOVER[5], epoch=3)])
    assert [tenure.began for tenure in timeline.tenures] == ["started", "answered", "took-over"]


def test_an_entry_of_a_dead_epoch_is_found() -> None:
    late = answered(6, 1, 20, 1, "read a")
    assert read_timeline([*TAKEOVER, late]).epochs_fall_at == 6


def test_another_writers_journal_is_told_as_far_as_it_goes() -> None:
    foreign = [
        JournalEntry(seq=0, kind="agent", status="running", key="x", started_at="yesterday"),
        JournalEntry(seq=4, kind="", status="", ref=0),
    ]
    timeline = read_timeline(foreign)
    assert [tenure.epoch for tenure in timeline.tenures] == [None]
    assert timeline.calls[0].took_ms is None
    assert read_timeline([]).tenures == ()


def spanned(entry: JournalEntry, segment: int) -> JournalEntry:
    return replace(entry, span_id=f"{segment}.{entry.seq}")


def died(seq: int, epoch: int, second: int, *, segment: int, count: int = 1) -> JournalEntry:
    return decision(
        seq,
        epoch,
        second,
        decisionType="recovered",
        count=count,
        segment=segment,
        owner="box:1",
        ended="lease-expired",
        lastSeenAt=at(3),
        underWay=["step read b"],
    )


def attempt(seq: int, epoch: int, number: int) -> JournalEntry:
    value = {"seq": 3, "attempt": number}
    return JournalEntry(seq=seq, kind="attempt", status="ok", epoch=epoch, value=value)


BEFORE = [spanned(entry, 1) for entry in TAKEOVER[:4]]


def test_only_an_owner_that_died_is_taken_over() -> None:
    after = [
        *(attempt(5, 2, 2), answered(6, 2, 12, 3, "read b")),
        decision(7, 2, 13, decisionType="run_settle", runStatus="ok", segment=2),
    ]
    handed = read_timeline([*BEFORE, *(spanned(entry, 2) for entry in after)])
    assert [tenure.began for tenure in handed.tenures] == ["started", "handed-over"]
    assert (handed.takeovers, handed.deaths) == ((), ())
    timeline = read_timeline(
        [*BEFORE, *(spanned(e, 2) for e in (died(4, 2, 11, segment=1), *after))]
    )
    assert [tenure.began for tenure in timeline.tenures] == ["started", "took-over"]
    assert [tenure.segment for tenure in timeline.tenures] == [1, 2]
    [death] = timeline.deaths
    assert (death.segment, death.owner, death.under_way) == (1, "box:1", ("step read b",))
    assert timeline.tenures[1].death == death
    assert [call.attempts for call in timeline.calls] == [1, 2]


def test_the_same_segment_under_a_later_epoch_went_on() -> None:
    settle = decision(5, 2, 13, decisionType="run_settle", runStatus="ok", segment=1)
    again = [spanned(answered(4, 2, 12, 3, "read b"), 1), spanned(settle, 1)]
    assert [tenure.began for tenure in read_timeline([*BEFORE, *again]).tenures] == [
        "started",
        "went-on",
    ]


def test_whoever_got_no_further_than_to_tell_of_a_death_does_not_hide_it() -> None:
    told = spanned(died(4, 2, 11, segment=1), 2)
    later = [spanned(answered(5, 3, 20, 3, "read b"), 2)]
    timeline = read_timeline([*BEFORE, told, *later])
    assert [tenure.began for tenure in timeline.tenures] == ["started", "took-over", "took-over"]
    assert len(timeline.deaths) == 1


def test_an_exhausted_run_names_its_last_death_too() -> None:
    witness = {"segment": 2, "ended": "unknown", "underWay": ["step read b"], "count": 2}
    settle = JournalEntry(
        seq=6,
        kind="decision",
        status="ok",
        epoch=3,
        value={"decisionType": "run_settle", "runStatus": "exhausted", "segment": 2},
        error={"code": "run-exhausted", "message": "m", "data": {"witnesses": [{}, witness]}},
    )
    told = spanned(died(4, 2, 11, segment=1), 2)
    timeline = read_timeline([*BEFORE, told, spanned(attempt(5, 2, 2), 2), settle])
    assert [death.segment for death in timeline.deaths] == [1, 2]
    assert [tenure.began for tenure in timeline.tenures] == ["started", "took-over", "took-over"]
    assert timeline.status == "exhausted"


def test_a_result_that_the_journal_does_not_keep_is_not_null() -> None:
    kept = read_timeline(
        [start(), decision(1, 1, 1, decisionType="run_settle", runStatus="ok", result=None)]
    )
    assert (kept.has_result, kept.result) == (True, None)
    elsewhere = read_timeline(
        [start(), decision(1, 1, 1, decisionType="run_settle", runStatus="ok")]
    )
    assert (elsewhere.has_result, elsewhere.result) == (False, None)
    assert not read_timeline([start()]).has_result
    for timeline, shown in ((kept, "null"), (elsewhere, "not in this journal")):
        inspection = Inspection(
            run_id="r",
            meta=None,
            leases_known=False,
            lease=None,
            timeline=timeline,
            blobs=(),
            problems=(),
        )
        text = "\n".join(lines_of(show_text(inspection, now_ms=0), width=None, coloured=False))
        assert f"result     {shown}" in text
        journal = show_document(inspection)["journal"]
        assert isinstance(journal, dict)
        assert journal["has_result"] is timeline.has_result
