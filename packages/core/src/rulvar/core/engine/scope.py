"""One scope of a body: where a call is asked of the journal, opened and answered.

What `context` offers, `steps`, `turns`, `worktree` and `children` perform; all of them begin
and end a call here, so that each kind of call has the same manners: nothing begins in a
segment that has ended or beside another call of the same scope, and whatever a call came to
is journalled before the body sees it.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.engine.attempts import begin_again
from rulvar.core.engine.outcome import Failure
from rulvar.core.engine.replay import Answered, Fresh
from rulvar.core.journal import JournalEntry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from rulvar.core.engine.outcome import Caught
    from rulvar.core.engine.segment import Segment
    from rulvar.core.errors import RunError

__all__ = ["Opened", "Scope", "error_of", "unwrap"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A call that is to be performed.

    ``before`` is the opening entry under which an earlier segment had begun it: the same
    one after a crash, an older one when a failed call is made again.
    """

    entry: JournalEntry
    before: JournalEntry | None


class Scope:
    """The body's own scope (the empty path), or that of one branch."""

    def __init__(self, segment: Segment, path: str = "") -> None:
        self.segment = segment
        self.path = path

    async def boundary(self) -> None:
        """Pass, or be told that the segment has ended: the place between two calls."""
        await self.segment.boundary(self.path)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Refuse a call of a segment that has ended, or beside another of the same scope."""
        self.segment.check()
        self.segment.enter(self.path, name)
        try:
            yield
        finally:
            self.segment.leave(self.path)

    async def open(
        self,
        kind: str,
        key: str,
        *,
        status: str = "running",
        value: object = None,
        draw: Callable[[], object | Awaitable[object]] | None = None,
        deadline_at: str | None = None,
    ) -> Opened | Answered:
        """Return the journal's answer to this call, or its opening entry.

        The entry is journalled now, or was in an earlier segment. Only a new one draws its
        value with ``draw``, plain or async; when that raises, the call was never made.

        Raises `NonDeterminismError` when the journal has a call of another kind here, and
        `SegmentEnded`.
        """
        segment = self.segment
        decision = segment.replay.next(kind, self.path, key)
        if isinstance(decision, Answered):
            segment.replayed += 1
            return decision
        if not isinstance(decision, Fresh):
            await begin_again(segment, decision.opening)
            return Opened(decision.opening, before=decision.opening)
        if draw is not None:
            try:
                drawn = draw()
                value = await drawn if inspect.isawaitable(drawn) else drawn
            except BaseException:
                segment.replay.return_ordinal(self.path, key)
                raise
        draft = JournalEntry(
            seq=0,  # the door gives it its number
            kind=kind,
            status=status,
            scope=self.path,
            key=key,
            ordinal=decision.call.ordinal,
            value=value,
            deadline_at=deadline_at,
            started_at=segment.now(),
        )
        opening = await segment.append(draft)
        segment.check()  # the run may have been lost while the call was journalled
        return Opened(opening, before=decision.failed)

    async def answer(
        self,
        opening: JournalEntry,
        value: object = None,
        *,
        failure: Failure | None = None,
        status: str | None = None,
    ) -> JournalEntry:
        """Journal what a call came to. Raises `SegmentEnded`."""
        draft = JournalEntry(
            seq=0,
            kind=opening.kind,
            status=status or ("ok" if failure is None else "error"),
            scope=opening.scope,
            key=opening.key,
            ordinal=opening.ordinal,
            value=value,
            error=None if failure is None else failure.to_json(),
            ref=opening.seq,
            started_at=opening.started_at,
            ended_at=self.segment.now(),
        )
        return await self.segment.append(draft)

    async def failed(self, opening: JournalEntry, caught: Caught) -> BaseException:
        """Journal that a call raised; return what the body gets, made of that entry.

        Raise it outside of an ``except``, or the body sees a ``__context__`` that a replay
        has not. Raises `SegmentEnded`.
        """
        answer = await self.answer(opening, failure=caught.failure)
        return caught.raised_again(error_of(answer, self.segment.run_id))


def unwrap(answer: JournalEntry, run_id: str) -> object:
    """Return an answer's value, or raise the failure that was journalled."""
    if answer.status == "error":
        raise error_of(answer, run_id)
    return answer.value


def error_of(answer: JournalEntry, run_id: str) -> RunError:
    """Return the exception for a failure that was journalled."""
    failure = Failure.from_json(answer.error or {"message": f"{answer.key!r} failed"})
    return failure.to_error(run_id)
