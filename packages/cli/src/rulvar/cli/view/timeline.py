"""The timeline of a run, read from its journal: tenures, takeovers, calls. No I/O.

A *tenure* is the part of the journal that was written under one epoch. An owner
that was frozen cannot write once a successor has taken over, because the fence refuses it; so
the epochs never fall along a journal, and each change of epoch has one of these reasons:

============ =================================================================
how it began the journal before it
============ =================================================================
started      nothing
resumed      ends in a settle (and perhaps an answer or a cancellation)
took-over    ends in the middle: its owner neither settled nor stopped in order,
             and the successor says so
handed-over  the same, but its owner had released the run in order, or an operator
             had taken it
went-on      the same, but it was the same segment: its lease had expired, was
             not taken, and it acquired the run again
answered     anything; the tenure is only a resolution or a cancellation
============ =================================================================

A tenure that finds a call begun and not answered runs it again: at least once. An entry says
which segment wrote it. Where a writer left that out, the count of segments distinguishes
took-over and went-on, and where that leaves it open, the timeline says took-over.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rulvar.core.journal import (
    ATTEMPT,
    attempts,
    last_settle,
    recovered_of,
    run_start,
    segment_of,
    witnesses,
    works_after,
)
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rulvar.core.journal import JournalEntry, Recovered

__all__ = ["Tenure", "Timeline", "TimelineCall", "read_timeline"]

Beginning = Literal["started", "resumed", "took-over", "handed-over", "went-on", "answered"]

_HIDDEN_KINDS = frozenset({"decision", "resolution", "abandon", ATTEMPT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineCall:
    """One call of the body: a step, a suspension, a recorded value.

    ``begun_under`` and ``answered_under`` are epochs; where they differ, the call was begun
    by one owner and finished by a later one. ``took_ms`` is from begin to answer; None for a
    step that a later owner ran again, for the journal does not say when that began.
    ``attempts`` is how often it was begun.
    """

    seq: int
    kind: str
    scope: str
    name: str
    ordinal: int
    status: str
    begun_under: int | None
    answered_under: int | None
    started_at: str | None
    ended_at: str | None
    took_ms: int | None
    deadline_at: str | None
    error: str | None
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A stretch of the journal under one epoch.

    ``silence_ms`` is how long no entry had been written before it. ``unfinished`` names the calls
    that were begun and not answered when it ended; ``finished_for_others`` those that it
    answered although an earlier tenure had begun them. ``settled`` is the run's status that
    it journalled, and ``segment`` the number of the segment that wrote it. ``death`` is what it
    says of its predecessor, where that had died.
    """

    epoch: int | None
    began: Beginning
    first_seq: int
    last_seq: int
    entries: int
    started_at: str | None
    ended_at: str | None
    silence_ms: int | None
    settled: str | None
    segment: int | None
    unfinished: tuple[str, ...]
    finished_for_others: tuple[str, ...]
    answers: tuple[str, ...] = ()
    death: Recovered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The timeline of a whole journal.

    ``has_result`` says whether the journal keeps the run's result: the other engine's does
    not, and its ``result`` is None whatever it was.
    ``epochs_fall_at`` is the seq of the first entry whose epoch is lower than an earlier
    one's: it must be None, for a fence lets no such entry in. ``deaths`` are the segments that
    ended neither settled nor stopped in order.
    """

    entries: int
    workflow: str | None = None
    genesis: str | None = None
    args_provided: bool = False
    args: object = None
    status: str | None = None
    result: object = None
    has_result: bool = False
    error: dict[str, object] | None = None
    epochs_fall_at: int | None = None
    tenures: tuple[Tenure, ...] = ()
    calls: tuple[TimelineCall, ...] = ()
    waiting_for: tuple[TimelineCall, ...] = ()
    deaths: tuple[Recovered, ...] = ()

    @property
    def takeovers(self) -> tuple[Tenure, ...]:
        """The tenures that began where another had died."""
        return tuple(tenure for tenure in self.tenures if tenure.began == "took-over")


@dataclass(slots=True)
class _Call:
    opening: JournalEntry
    answer: JournalEntry | None = None


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

    calls: dict[int, _Call] = field(default_factory=dict)
    tenures: list[Tenure] = field(default_factory=list)
    settled: str | None = None
    segment: int | None = None
    only_death: bool = False
    """Whether the last tenure recorded a death and nothing else."""
    last_time: int | None = None


def read_timeline(entries: Sequence[JournalEntry], *, segments: int | None = None) -> Timeline:
    """Read the timeline of a journal, of any writer: what is unknown is left out.

    ``segments`` is how many have begun so far, as the run's row counts them.
    """
    reading = _Reading()
    for epoch, group in groupby(entries, key=lambda entry: entry.epoch):
        reading.tenures.append(_tenure(reading, epoch, list(group)))
    start, settle = run_start(entries), last_settle(entries)
    # The waits of a run that has ended cannot be answered any more.
    ended = settle is not None and settle.status in TERMINAL_STATUSES
    over = ended and settle is not None and not works_after(entries, settle.seq)
    made = attempts(entries)
    calls = tuple(_timeline_call(call, made) for call in reading.calls.values())
    return Timeline(
        entries=len(entries),
        workflow=start.workflow if start else None,
        genesis=start.genesis if start else None,
        args_provided=start.args_provided if start else False,
        args=start.args if start else None,
        status=settle.status if settle else None,
        result=settle.value if settle else None,
        has_result=settle is not None and settle.status == "ok" and settle.has_value,
        error=dict(settle.error) if settle and settle.error else None,
        epochs_fall_at=_first_fall(entries),
        tenures=tuple(_distinguish(reading.tenures, segments)),
        calls=calls,
        waiting_for=() if over else tuple(call for call in calls if call.status == "suspended"),
        deaths=tuple(_deaths(entries)),
    )


def _deaths(entries: Sequence[JournalEntry]) -> Iterator[Recovered]:
    """Yield every death that is journalled; the last one of an exhausted run in its settle."""
    told: set[int | None] = set()
    for entry in entries:
        for death in (recovered_of(entry), *witnesses(entry)[-1:]):
            if death is not None and death.segment not in told:
                told.add(death.segment)
                yield death


def _tenure(reading: _Reading, epoch: int | None, group: list[JournalEntry]) -> Tenure:
    began = _beginning(reading, group)
    texts = [text for text in map(_written_at, group) if text is not None]
    times = [time for time in map(_ms, texts) if time is not None]
    silence = None
    if times and reading.last_time is not None:
        silence = max(0, min(times) - reading.last_time)
    finished = _fold(reading, group)
    settle = last_settle(group)
    if settle is not None:
        reading.settled = settle.status
    elif began != "answered":
        reading.settled = None
    if began != "answered":
        reading.segment = _segment(group)
        reading.only_death = all(recovered_of(entry) is not None for entry in group)
    if times:
        reading.last_time = max(times)
    return Tenure(
        epoch=epoch,
        began=began,
        first_seq=group[0].seq,
        last_seq=group[-1].seq,
        entries=len(group),
        started_at=min(texts, default=None),
        ended_at=max(texts, default=None),
        silence_ms=silence,
        settled=settle.status if settle else None,
        segment=settle.segment if settle else _segment(group),
        unfinished=_unfinished(reading) if settle is None and began != "answered" else (),
        finished_for_others=tuple(finished),
        answers=tuple(_answers(reading, group)),
        death=_death(group),
    )


def _beginning(reading: _Reading, group: list[JournalEntry]) -> Beginning:
    if not reading.tenures:
        return "started"
    if all(_from_outside(entry) for entry in group):
        return "answered"
    if _death(group) is not None or (reading.only_death and reading.settled is None):
        return "took-over"
    if reading.settled is not None:
        return "resumed"
    mine, before = _segment(group), reading.segment
    if mine is None or before is None:
        return "took-over"  # another writer's: the count of segments decides
    return "went-on" if mine == before else "handed-over"


def _segment(group: list[JournalEntry]) -> int | None:
    """Return the number of the segment that wrote a tenure, where it says that."""
    return next((number for number in map(segment_of, group) if number is not None), None)


def _death(group: list[JournalEntry]) -> Recovered | None:
    told = ((recovered_of(entry), *witnesses(entry)[-1:]) for entry in group)
    return next((death for each in told for death in each if death is not None), None)


def _distinguish(tenures: list[Tenure], segments: int | None) -> list[Tenure]:
    """Find the tenures that are not takeovers: no new segment began them."""
    told = list(tenures)
    unsettled: list[int] = []
    before = 0
    for index, tenure in enumerate(tenures):
        if tenure.began != "answered":
            unsettled.append(index)
        last = index == len(tenures) - 1
        number = tenure.segment if tenure.settled is not None else segments if last else None
        if number is not None and number - before == 1:
            for later in unsettled[1:]:
                if told[later].began == "took-over" and told[later].death is None:
                    told[later] = replace(told[later], began="went-on")
        if tenure.settled is not None:
            before, unsettled = number if number is not None else before, []
    return told


def _from_outside(entry: JournalEntry) -> bool:
    return entry.kind == "resolution" or _is_cancellation(entry)


def _is_cancellation(entry: JournalEntry) -> bool:
    settle = last_settle([entry])
    return settle is not None and settle.status == "cancelled"


def _fold(reading: _Reading, group: list[JournalEntry]) -> list[str]:
    """Take the group's calls and answers in; return what it finished for others."""
    finished: list[str] = []
    for entry in group:
        opened = reading.calls.get(entry.ref) if entry.ref is not None else None
        if entry.ref is None and entry.kind not in _HIDDEN_KINDS:
            reading.calls[entry.seq] = _Call(entry)
        elif opened is not None and opened.answer is None:
            opened.answer = entry
            if entry.kind == "step" and opened.opening.epoch != entry.epoch:
                finished.append(_name(opened.opening))
    return finished


def _unfinished(reading: _Reading) -> tuple[str, ...]:
    return tuple(
        _name(call.opening)
        for call in reading.calls.values()
        if call.answer is None and call.opening.status == "running"
    )


def _answers(reading: _Reading, group: list[JournalEntry]) -> list[str]:
    words: list[str] = []
    for entry in group:
        if entry.kind == "resolution":
            opened = reading.calls.get(entry.ref) if entry.ref is not None else None
            words.append(f"resolved {_name(opened.opening) if opened else entry.key}")
        elif _is_cancellation(entry):
            words.append("cancelled the run")
    return words


def _name(entry: JournalEntry) -> str:
    return entry.key if entry.ordinal == 0 else f"{entry.key} #{entry.ordinal}"


def _timeline_call(call: _Call, made: Mapping[int, int]) -> TimelineCall:
    opening, answer = call.opening, call.answer
    status = opening.status if answer is None else answer.status
    if answer is not None and answer.kind == "resolution" and status not in {"error", "cancelled"}:
        status = "ok"
    ended = answer.ended_at if answer else opening.ended_at
    again = opening.kind == "step" and answer is not None and answer.epoch != opening.epoch
    begin, end = (None if again else _ms(opening.started_at)), _ms(ended)
    error = (answer or opening).error
    message = error.get("message") if error else None
    return TimelineCall(
        seq=opening.seq,
        kind=opening.kind,
        scope=opening.scope,
        name=opening.key,
        ordinal=opening.ordinal,
        status=status,
        begun_under=opening.epoch,
        answered_under=answer.epoch if answer else None,
        started_at=opening.started_at,
        ended_at=ended,
        took_ms=end - begin if begin is not None and end is not None else None,
        deadline_at=opening.deadline_at,
        error=str(message) if message is not None else None,
        attempts=made.get(opening.seq, 1),
    )


def _first_fall(entries: Sequence[JournalEntry]) -> int | None:
    highest = 0
    for entry in entries:
        if entry.epoch is None:
            continue
        if entry.epoch < highest:
            return entry.seq
        highest = entry.epoch
    return None


def _written_at(entry: JournalEntry) -> str | None:
    # An answer carries the time of its call's beginning too: the later one is its own.
    return entry.ended_at or entry.started_at


def _ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None  # another writer's spelling: left out
