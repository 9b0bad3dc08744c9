"""The replay kernel: what a journal says about the body's next call. No I/O.

A resume executes the body again from the top. Each call of the body asks the kernel, which
answers one of four things:

========== ============================================ ==================================
answer     the journal has                              the driver
========== ============================================ ==================================
Fresh      nothing under (scope, key, ordinal)          journals the call, then performs it
Dangling   the call, but no answer to it                performs it again (at least once)
Answered   the call and its answer                      hands the answer over, pays nothing
Waiting    a suspension that nothing has answered       parks
========== ============================================ ==================================

The ordinal counts the calls of one key in one scope, in the order in which the body makes
them; a scope is used by one task at a time, so that order is the body's own and not the
scheduler's. The first answer to a call wins; an answer is never taken back. A failed step
that is to be retried gets a new opening entry, and the later opening counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal.folds import CALL_KINDS, SUSPENSION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.core.journal.entries import JournalEntry

__all__ = ["Answered", "Call", "Dangling", "Decision", "Fresh", "Replay", "Waiting"]


@dataclass(frozen=True, slots=True)
class Call:
    """The identity of one call of the body."""

    kind: str
    scope: str
    key: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing is journalled: journal the call, then perform it.

    ``failed`` is the opening entry of an earlier, failed try that is to be made again.
    """

    call: Call
    failed: JournalEntry | None = None


@dataclass(frozen=True, slots=True)
class Dangling:
    """It was begun and never answered: perform it again under the same opening entry."""

    call: Call
    opening: JournalEntry


@dataclass(frozen=True, slots=True)
class Answered:
    """It was answered: hand that over."""

    call: Call
    answer: JournalEntry


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is a suspension without an answer."""

    call: Call
    opening: JournalEntry


Decision = Fresh | Dangling | Answered | Waiting


@dataclass(slots=True)
class _Opened:
    opening: JournalEntry
    answer: JournalEntry | None = None


@dataclass(slots=True)
class Replay:
    """What is known of one run's calls; grows as entries land."""

    retry_failed: bool = False
    boot_seq: int = -1
    _calls: dict[tuple[str, str, int], _Opened] = field(default_factory=dict)
    _by_seq: dict[int, _Opened] = field(default_factory=dict)
    _ordinals: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[JournalEntry], *, retry_failed: bool = False) -> Replay:
        """Fold a journal.

        With ``retry_failed``, a step that failed in an earlier segment counts as never made.
        """
        replay = cls(retry_failed=retry_failed)
        for entry in entries:
            replay.landed(entry)
            replay.boot_seq = entry.seq
        return replay

    def landed(self, entry: JournalEntry) -> bool:
        """Fold in one entry; return whether it is the first answer to a call."""
        if entry.ref is not None:
            opened = self._by_seq.get(entry.ref)
            if opened is None or opened.answer is not None:
                return False
            opened.answer = entry
            return True
        if entry.kind in CALL_KINDS:
            opened = _Opened(entry)
            if entry.kind == "rand":
                opened.answer = entry
            self._calls[entry.identity] = opened
            self._by_seq[entry.seq] = opened
        return False

    def next(self, kind: str, scope: str, key: str) -> Decision:
        """Decide the body's next call of ``key`` in ``scope``.

        Raises `NonDeterminismError` when the journal has a call of another kind there.
        """
        call = Call(kind, scope, key, self.take_ordinal(scope, key))
        opened = self._calls.get((scope, key, call.ordinal))
        if opened is None:
            return Fresh(call)
        opening, answer = opened.opening, opened.answer
        if opening.kind != kind:
            message = (
                f"call {key!r} number {call.ordinal} in scope {scope!r} is a {kind} now, and was "
                f"a {opening.kind} when seq {opening.seq} was journalled: the body took another "
                "way; restore the body that began this run, or start a new run"
            )
            raise NonDeterminismError(message, scope=scope, key=key, ordinal=call.ordinal)
        if answer is None:
            return Waiting(call, opening) if kind in SUSPENSION_KINDS else Dangling(call, opening)
        if self.retry_failed and answer.status == "error" and answer.seq <= self.boot_seq:
            return Fresh(call, failed=opening)
        return Answered(call, answer)

    def take_ordinal(self, scope: str, key: str) -> int:
        """Return how often ``key`` was used in ``scope`` before, and count this use."""
        ordinal = self._ordinals.get((scope, key), 0)
        self._ordinals[scope, key] = ordinal + 1
        return ordinal

    def return_ordinal(self, scope: str, key: str) -> None:
        """Uncount the last use: its call came to nothing, and nothing was journalled."""
        self._ordinals[scope, key] -= 1

    def tries_of(self, opening: JournalEntry) -> list[JournalEntry]:
        """Return every opening entry of the same call, the newest first."""
        tries = [opened.opening for opened in self._by_seq.values()]
        same = [
            one for one in tries if (one.kind, one.identity) == (opening.kind, opening.identity)
        ]
        return sorted(same, key=lambda one: one.seq, reverse=True)

    def answer_to(self, seq: int) -> JournalEntry | None:
        """Return the answer to the call that ``seq`` opened, if there is one."""
        opened = self._by_seq.get(seq)
        return None if opened is None else opened.answer

    def waiting(self) -> Iterator[JournalEntry]:
        """Yield the suspensions without an answer, in the order of their journal."""
        for opened in self._by_seq.values():
            if opened.answer is None and opened.opening.kind in SUSPENSION_KINDS:
                yield opened.opening

    def has_asked(self, key: str) -> bool:
        """Whether the run has ever waited for ``key``, answered by now or not."""
        openings = (opened.opening for opened in self._by_seq.values())
        return any((one.kind, one.key) == ("external", key) for one in openings)
