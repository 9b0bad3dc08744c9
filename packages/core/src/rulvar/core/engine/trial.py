"""Trials: can the present code replay a run's journal? Nothing is performed to find out.

The run's row, journal and blobs are copied into memory, and one segment is executed over the
copy that stops where anything would be performed anew. The stores are only read: no lease is
taken and nothing is written. The body's own code runs, between its calls; no function of a
step, turn, worktree or child does.

The copy's clock stands at the moment of the journal's last entry, so that no deadline comes
meanwhile. How a run ended is left out of its copy: the journal of one that is over is tried
like any other. A child is a run by itself, and is tried by its own id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from rulvar.core.clock import SystemClock
from rulvar.core.engine.driver import drive
from rulvar.core.engine.engine import Engine
from rulvar.core.engine.io.reads import Reads
from rulvar.core.engine.segment.begin import Resume
from rulvar.core.errors import ConfigError, NonDeterminismError
from rulvar.core.journal import (
    cancel_begun,
    last_moment,
    last_settle,
    read_journal,
    run_start,
    works_after,
)
from rulvar.core.memory import MemoryStores
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rulvar.core.engine.code.workflow import Workflow
    from rulvar.core.engine.kernel.outcome import RunOutcome
    from rulvar.core.engine.kernel.replay import Call
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.errors import RulvarError
    from rulvar.core.events import Event
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import JournalRecord
    from rulvar.core.stores import StorePair

__all__ = ["Trial", "try_run"]

_TRIED_FOR_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial has found.

    ``reason`` is why the code is blocked. ``then`` is what a real segment would do next, in
    words; ``replayed`` counts the calls that the journal answered. ``untried`` is the seq of
    the first call of the journal that the trial did not come to, if one is left: behind a call
    that the body gave up, and gives up no more in the short time of a trial. ``changed_args``
    names calls with arguments that no call of their name had.
    """

    run_id: str
    status: Literal["ok", "blocked"]
    reason: str | None = None
    replayed: int = 0
    then: str | None = None
    untried: int | None = None
    changed_args: tuple[str, ...] = ()


async def try_run(
    stores: StorePair,
    workflows: Iterable[Workflow],
    run_id: str,
    *,
    seconds: float = _TRIED_FOR_SECONDS,
) -> Trial:
    """Replay a run's journal by these workflows, and perform nothing.

    ``seconds`` is how long the body may take; one that has not come to all of its journal by
    then is blocked.

    Raises `ConfigError` for a run that is not there or never began, or whose workflow or version
    is not among ``workflows``; `StoreCorruptError` and `JournalCompatibilityError` for a
    journal that cannot be read, and what else a store raises.
    """
    workflows = tuple(workflows)
    copy, moment = await asyncio.to_thread(_copy, stores, run_id)
    with copy:
        changed: list[str] = []

        def watch(event: Event) -> None:
            if event.kind == "arguments.changed":
                changed.append(event.name)

        async with Engine(copy, workflows, observer=watch) as engine:
            runtime = replace(
                engine.runtime,
                perform=False,
                clock=_StillClock(moment),
                cancel_child=_cancel_nothing,
                launch=_launch_nothing,
            )
            trial = await _try(runtime, run_id, seconds)
        # The engine is closed: the watch was told everything.
        return replace(trial, changed_args=tuple(dict.fromkeys(changed)))


async def _try(runtime: Runtime, run_id: str, seconds: float) -> Trial:
    live: list[Segment] = []
    late: list[bool] = []

    def begin(segment: Segment) -> None:
        live.append(segment)
        timer.append(segment.loop.call_later(seconds, stop, segment))

    def stop(segment: Segment) -> None:
        late.append(True)
        segment.stop()

    timer: list[asyncio.TimerHandle] = []
    outcome: RunOutcome | None = None
    blocked: RulvarError | None = None
    try:
        outcome = await drive(runtime, runtime.own(run_id), Resume(), on_live=begin)
    except NonDeterminismError as error:
        blocked = error
    finally:
        for each in timer:
            each.cancel()
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError  # a segment that is told to stop ends in order
    replayed = live[0].replayed if live else 0
    blocked = blocked or (live[0].blocked if live else None)
    if blocked is not None:
        return Trial(run_id=run_id, status="blocked", reason=str(blocked), replayed=replayed)
    left = live[0].replay.unasked() if live else None
    if late and left is not None:
        reason = (
            f"the body has not come to {left.kind} {left.key!r} (seq {left.seq}) of its journal "
            f"in {seconds:g} s: it waits for something else than its calls"
        )
        return Trial(run_id=run_id, status="blocked", reason=reason, replayed=replayed)
    return Trial(
        run_id=run_id,
        status="ok",
        replayed=replayed,
        then=_then(live[0].scheduler.untried if live else None, outcome),
        untried=None if left is None else left.seq,
    )


def _then(untried: Call | None, outcome: RunOutcome | None) -> str | None:
    if untried is not None:
        return f"{untried.kind} {untried.key!r}"
    if outcome is None or outcome.status == "running":
        return None
    if outcome.error is not None:
        return f"ends as {outcome.status}: {outcome.error.message}"
    return f"ends as {outcome.status}"


class _StillClock(SystemClock):
    """The machine's clock, but for the wall time, which stands."""

    __slots__ = ("_at_ms",)

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        """Return the one moment."""
        return self._at_ms


async def _cancel_nothing(_child_id: str, _parent_id: str, _genesis: str) -> None:
    """Leave a child that was given up alone: there is none in the copy."""


def _launch_nothing(*_args: object, **_options: object) -> NoReturn:
    message = "a trial begins no child"
    raise AssertionError(message)


# --- the copy -----------------------------------------------------------------------------------


def _copy(stores: StorePair, run_id: str) -> tuple[MemoryStores, int]:
    """Copy what a segment reads of a run; with the moment at which its journal ends, in ms."""
    reads = Reads(stores)
    meta = reads.meta(run_id)
    records = reads.load(run_id)
    entries = read_journal(run_id, records)
    if run_start(entries) is None:
        message = f"run {run_id!r} is not in this store, or never began: check the id"
        raise ConfigError(message)
    row = None
    if meta is not None:
        row = replace(meta, status="running", wake_at=None, blocked=None, stopped=meta.segments)
    blobs = {ref: blob for ref in reads.refs(run_id) if (blob := reads.blob(ref)) is not None}
    copy = MemoryStores.copy_of(run_id, _without_end(records, entries), row, blobs)
    moment = last_moment(entries)
    return copy, SystemClock().now_ms() if moment is None else parse_time(moment)


def _without_end(
    records: Sequence[JournalRecord], entries: Sequence[JournalEntry]
) -> list[JournalRecord]:
    """Return the records of what the body did: without how the run ended, or is being cancelled."""
    end: int | None = None
    settle = last_settle(entries)
    over = settle is not None and settle.status in TERMINAL_STATUSES
    if settle is not None and over and not works_after(entries, settle.seq):
        end = settle.seq
    before = [entry for entry in entries if end is None or entry.seq < end]
    while cancel_begun(before):
        end = before.pop().seq
    return [record for record in records if end is None or record.seq < end]
