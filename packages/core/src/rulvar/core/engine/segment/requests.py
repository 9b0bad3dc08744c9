"""Requests to a run that is live here: an answer, a cancellation, its deletion.

Each is called on the segment's own loop, and acts under the segment's own lease.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.engine.kernel.endings import Ending
from rulvar.core.engine.kernel.schemas import check_resolution, choose_wait
from rulvar.core.errors import LeaseHeldError
from rulvar.core.journal.drafts import answer_draft
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from rulvar.core.engine.segment.lifecycle import Segment

__all__ = ["cancel", "child_is_live", "delete", "resolve"]


def child_is_live(run_id: str, child_id: str) -> LeaseHeldError:
    """Return the refusal to take a run away from under its child."""
    message = (
        f"run {run_id!r} has the child {child_id!r}, which is held: wait for it, or "
        "cancel it, then delete its parent"
    )
    return LeaseHeldError(message, run_id=child_id, reason="held")


async def resolve(segment: Segment, key: str, value: object, seq: int | None = None) -> None:
    """Answer the earliest open suspension of ``key``, or the one that ``seq`` opened.

    Raises `NotAskedError` when there is none, `AlreadyAnsweredError` when another answer
    came first, and `InvalidResolutionError` when the value does not fit its schema.
    """
    segment.check()
    opening = choose_wait(
        segment.run_id,
        key,
        seq,
        segment.replay.waiting(),
        is_answered=partial(_is_answered, segment, key, seq),
    )
    fitting = normalize(value)
    check_resolution(opening, fitting, run_id=segment.run_id)
    draft = answer_draft(opening, now=segment.now(), kind="resolution", value=fitting)
    # While it is on its way the run does not suspend: what waits for it is about to continue.
    segment.scheduler.answers_under_way += 1
    try:
        await segment.append(draft, claim=partial(segment.claim, opening))
    finally:
        segment.scheduler.answers_under_way -= 1
        segment.scheduler.look_soon()


def _is_answered(segment: Segment, key: str, seq: int | None) -> bool:
    if seq is None:
        return segment.replay.has_asked(key)
    answer = segment.replay.answer_to(seq)
    return answer is not None and answer.key == key


async def cancel(segment: Segment) -> None:
    """Cancel the run: its outcome will be ``cancelled``."""
    await segment.through_writer(lambda _runtime, writer: writer.authority())
    segment.end(Ending.CANCELLED)


async def delete(segment: Segment) -> None:
    """Delete the run. Raises `LeaseHeldError` (``held``) while a child of it lives here."""
    segment.check()
    for child_id in segment.children:
        raise child_is_live(segment.run_id, child_id)
    await segment.through_writer(lambda _runtime, writer: writer.delete_run())
    segment.end(Ending.DELETED)
