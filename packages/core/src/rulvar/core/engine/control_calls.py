"""What an engine does to a run that is not live here: each under one brief lease.

A brief lease taken while an owner sleeps ends that owner: that is what the fence is for.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rulvar.core.engine.boot import read_run
from rulvar.core.engine.outcome import Failure, RunOutcome
from rulvar.core.engine.ownership import OwnedRun
from rulvar.core.errors import ConfigError, InvalidResolutionError, StoreError
from rulvar.core.journal import JournalEntry, open_suspensions
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.boot import RunState
    from rulvar.core.engine.door import Door
    from rulvar.core.engine.ownership import Ownership
    from rulvar.core.engine.parts import Parts

__all__ = ["briefly", "cancel", "delete", "resolve"]

T = TypeVar("T")

_log = logging.getLogger("rulvar.engine")


def briefly(
    parts: Parts, take: Callable[[], Ownership], act: Callable[[Parts, Door, Ownership], T]
) -> T:
    """Take a run, act under that lease, give it back.

    Raises `LeaseHeldError` (``held``) while somebody has it, and what ``act`` raises.
    """
    ownership = take()
    try:
        return act(parts, parts.door(ownership.run_id, ownership), ownership)
    finally:
        try:
            parts.give_back(ownership)
        except StoreError as error:
            # What was done stands; the lease runs out by itself.
            _log.warning("run %r: its lease could not be released: %s", ownership.run_id, error)


def _begun(parts: Parts, door: Door, ownership: Ownership) -> RunState:
    if isinstance(ownership, OwnedRun):
        ownership.verify = door.verify
    state = read_run(parts, door)
    if state.start is None:
        message = f"run {door.run_id!r} is not in this store, or never began"
        raise ConfigError(message)
    return state


def cancel(parts: Parts, door: Door, ownership: Ownership) -> RunOutcome:
    """Settle the run as ``cancelled``, or return the outcome that it has already."""
    state = _begun(parts, door, ownership)
    last = state.outcome
    status = "cancelled"
    now = format_time(parts.clock.now_ms())
    number = state.meta.segments or 0 if state.meta is not None else 0
    if last is not None:
        return RunOutcome(
            run_id=door.run_id,
            status=last.status,
            value=last.value,
            error=Failure.from_json(last.error) if last.error is not None else None,
            segment=last.segment or 0,
            epoch=door.epoch,
        )
    facts = {"decisionType": "run_settle", "runStatus": status, "segment": number}
    draft = JournalEntry(seq=0, kind="decision", status="ok", value=facts, ended_at=now)
    if state.meta is None:
        message = f"run {door.run_id!r} has a journal and no row: resume it, then cancel it"
        raise ConfigError(message)
    door.settle(draft, replace(state.meta, status=status, updated_at=now, wake_at=None))
    return RunOutcome(run_id=door.run_id, status=status, segment=number, epoch=door.epoch)


def resolve(parts: Parts, door: Door, ownership: Ownership, *, key: str, value: object) -> None:
    """Append a resolution, and mark the row so that a worker looks at the run again."""
    state = _begun(parts, door, ownership)
    run_id = door.run_id
    if state.outcome is not None:
        message = f"run {run_id!r} is {state.outcome.status}: it waits for nothing any more"
        raise InvalidResolutionError(message, run_id=run_id, key=key)
    waiting = [e for e in open_suspensions(state.entries) if e.kind == "external" and e.key == key]
    if not waiting:
        asked = any(e.kind == "external" and e.key == key for e in state.entries)
        message = f"run {run_id!r} does not wait for {key!r}"
        if asked:
            message = f"run {run_id!r}: {key!r} is resolved already; the first answer counts"
        raise InvalidResolutionError(message, run_id=run_id, key=key)
    opening = waiting[0]
    now = format_time(parts.clock.now_ms())
    door.append(
        JournalEntry(
            seq=0,
            kind="resolution",
            status="ok",
            scope=opening.scope,
            key=key,
            ordinal=opening.ordinal,
            value=value,
            ref=opening.seq,
            ended_at=now,
        )
    )
    if state.meta is not None and state.meta.status == "suspended":
        door.put_meta(replace(state.meta, wake_at=now))


def delete(parts: Parts, door: Door, ownership: Ownership) -> None:  # noqa: ARG001
    """Remove the run: blobs first, journal last; a landed delete has ended the lease."""
    door.delete_run()
