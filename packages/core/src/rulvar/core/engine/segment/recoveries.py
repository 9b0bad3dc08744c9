"""Counted deaths: what a new segment records of a predecessor that ended unrecorded.

A segment ends in order when it settles, or when it lets its run go and says so in the row
(``stopped``). One that did neither has died with its process, or has lost its run: the next
segment journals that (`rulvar.core.journal.deaths`), before the body is entered. After so many
deaths in a row that nothing gets done in between, the run settles ``exhausted``.

The entry comes before the row. A crash between the two leaves a death that is journalled and a
row that does not know of it: the next segment finds both, and neither counts the death again nor
that crash, for no body was entered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rulvar.core.engine.kernel.outcome import Failure, RunOutcome
from rulvar.core.journal import (
    RECOVERED,
    RUN_SETTLE,
    last_moment,
    recoveries,
    structure,
)
from rulvar.core.journal.drafts import decision_draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.engine.lease.ownership import Predecessor
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.journal import (
        JournalEntry,
        Recovered,
        Settle,
    )
    from rulvar.core.records import RunMeta

__all__ = ["Recovery", "exhaust", "forgiven", "recover", "recovery_of"]

_log = logging.getLogger("rulvar.engine")

_MOST_UNDER_WAY = 10
_MOST_WITNESSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a new segment knows of the segments before it.

    ``deaths`` are those in a row that are journalled; ``died`` says whether the last segment,
    number ``segment``, is one that ended neither settled nor stopped in order, and ``told``
    whether that is among them already. ``limit`` is how many there may be, None without end.
    """

    deaths: tuple[Recovered, ...]
    segment: int
    died: bool
    told: bool
    limit: int | None

    @property
    def count(self) -> int:
        """How many deaths in a row there are, the last one included."""
        return len(self.deaths) + (self.died and not self.told)

    @property
    def exhausted(self) -> bool:
        """Whether the run has died once more than it may."""
        return self.died and self.limit is not None and self.count > self.limit


def recovery_of(
    meta: RunMeta | None,
    entries: Sequence[JournalEntry],
    last: Settle | None,
    *,
    segment: int,
    limit: int | None,
) -> Recovery:
    """Judge how the segment before this one, number ``segment``, has ended. No I/O.

    A row that is gone cannot say whether it was stopped: then it is not counted.
    """
    deaths = tuple(recoveries(entries))
    settled = last is not None and last.segment is not None and last.segment >= segment
    stopped = meta is not None and meta.stopped is not None and meta.stopped >= segment
    begun = meta is not None and meta.status == "running" and segment > 0
    return Recovery(
        deaths=deaths,
        segment=segment,
        died=begun and not settled and not stopped,
        told=any(death.segment == segment for death in deaths),
        limit=limit,
    )


def recover(
    writer: RunWriter,
    recovery: Recovery,
    entries: Sequence[JournalEntry],
    *,
    predecessor: Predecessor | None,
    now: str,
) -> None:
    """Journal that the last segment died, unless that was told. Raises as `RunWriter.append`."""
    if recovery.died and not recovery.told:
        facts = {"decisionType": RECOVERED, "count": recovery.count}
        facts |= _witness(writer.meta, recovery.segment, entries, predecessor)
        writer.append(decision_draft(facts, now=now))


def exhaust(
    writer: RunWriter,
    recovery: Recovery,
    entries: Sequence[JournalEntry],
    row: RunMeta,
    *,
    predecessor: Predecessor | None,
    now: str,
) -> RunOutcome:
    """Settle the run as ``exhausted``, with its witnesses. Raises as `RunWriter.settle`."""
    witnesses = [_told(death) for death in recovery.deaths]
    if not recovery.told:
        last = _witness(writer.meta, recovery.segment, entries, predecessor)
        witnesses.append({"count": recovery.count} | last)
    failure = Failure(
        code="run-exhausted",
        message=_message(writer.run_id, recovery.count, recovery.limit, witnesses[-1]),
        error_type="exhausted",
    )
    error = failure.to_json()
    data = error["data"]
    if isinstance(data, dict):
        data["witnesses"] = witnesses[-_MOST_WITNESSES:]
    facts = {"decisionType": RUN_SETTLE, "runStatus": "exhausted", "segment": recovery.segment}
    draft = decision_draft(facts, now=now, error=error)
    writer.settle(
        draft,
        replace(
            row,
            status="exhausted",
            updated_at=now,
            wake_at=None,
            recoveries=recovery.count,
            blocked=None,
        ),
    )
    _log.error("%s", failure.message)
    writer.emit("run.settled", name="exhausted", epoch=writer.epoch)
    return RunOutcome(
        run_id=writer.run_id,
        status="exhausted",
        error=failure,
        segment=recovery.segment,
        epoch=writer.epoch,
    )


def forgiven(row: RunMeta) -> RunMeta:
    """Return the row of a run that is to be tried again, its deaths forgotten.

    The journal forgets them by itself: a terminal settle begins the count anew.
    """
    return replace(row, recoveries=0)


def _message(run_id: str, count: int, limit: int | None, last: dict[str, object]) -> str:
    under_way = last.get("underWay")
    names = ", ".join(map(str, under_way)) if isinstance(under_way, list) else ""
    what = f"under way was: {names}" if names else "nothing that it had begun was unanswered"
    owner = f" of {last['owner']}" if last.get("owner") else ""
    return (
        f"run {run_id!r} ended its process, or lost its run, {count} times in a row without "
        f"getting anything done (max_recoveries={limit}); the last was segment "
        f"{last['segment']}{owner}, {what}: mend that, then retry the run"
    )


def _witness(
    meta: RunMeta | None,
    segment: int,
    entries: Sequence[JournalEntry],
    predecessor: Predecessor | None,
) -> dict[str, object]:
    """Return what is known of the segment that died."""
    moments = [last_moment(entries), None if meta is None else meta.updated_at]
    dangling = structure(entries).dangling
    names = [f"{entry.kind} {entry.key}" for entry in dangling[:_MOST_UNDER_WAY]]
    if len(dangling) > _MOST_UNDER_WAY:
        names.append(f"{len(dangling) - _MOST_UNDER_WAY} more")
    facts: dict[str, object] = {
        "segment": segment,
        "ended": "unknown" if predecessor is None else predecessor.ended,
        "lastSeenAt": max(filter(None, moments), default=None),
        "underWay": names,
    }
    if predecessor is not None:
        facts["owner"] = predecessor.owner
    return facts


def _told(death: Recovered) -> dict[str, object]:
    facts: dict[str, object] = {
        "count": death.count,
        "segment": death.segment,
        "ended": death.ended,
        "lastSeenAt": death.last_seen_at,
        "underWay": list(death.under_way),
    }
    if death.owner is not None:
        facts["owner"] = death.owner
    return facts
