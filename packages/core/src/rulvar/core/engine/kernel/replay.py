"""The replay kernel: what a journal says about the body's next call. No I/O.

A resume executes the body again from the top. Each call of the body asks the kernel, which
answers one of these:

========== ============================================ ==================================
answer     the journal has                              the driver
========== ============================================ ==================================
Fresh      nothing more in this scope                   journals the call, then performs it
Dangling   the call, but nothing that ended it          performs it again (at least once)
Answered   the call and its answer                      hands the answer over, pays nothing
Waiting    a suspension that nothing has answered       parks
GivenUp    a call that the body gave up                 performs nothing, and waits until the
                                                        body gives it up again
========== ============================================ ==================================

**One sequence a scope.** The calls of a scope are compared in order: each call must equal the
next opening of its scope, in kind and name, in ``key=`` where one was given, and in the number
of its branches. Anything else is `NonDeterminismError`, raised before anything new is
performed. So is a new call in a scope that is complete: its call was answered, or the body
made another call behind it. `unasked` finds what a body left out at its end.

**Arguments.** Openings keep a short hash of the call's arguments. Other arguments than the
opening's are a *reordering*, and refused, where another opening of that kind and name in the
scope (for branches: of that parallel) has them. Where they stand nowhere they are only told:
`Decision.changed_args`.

**patched** is the deliberate change: see `patched`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal.calls import (
    BLOCK_KIND,
    GIVEN_UP,
    PATCHED_KIND,
    SUSPENSION_KINDS,
    Calls,
    maker_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.core.journal.calls import CallState
    from rulvar.core.journal.entries import JournalEntry

__all__ = [
    "Answered",
    "Call",
    "Dangling",
    "Decision",
    "Fresh",
    "GivenUp",
    "Replay",
    "Waiting",
    "given_up_after_ms",
    "unasked_error",
    "unknown_entry",
    "would_perform",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the body, as it asks for it.

    ``args_hash`` is None where the arguments do not encode; ``call_key`` is the caller's
    ``key=``; ``branches`` is how many branches a parallel has.
    """

    kind: str
    scope: str
    key: str
    ordinal: int = 0
    args_hash: str | None = None
    call_key: str | None = None
    branches: int | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing is journalled: journal the call, then perform it."""

    call: Call


@dataclass(frozen=True, slots=True)
class Dangling:
    """It was begun and never ended: perform it again under the same opening entry.

    ``retried`` is the retry that took its answer away, if one did.
    """

    call: Call
    opening: JournalEntry
    changed_args: bool = False
    retried: JournalEntry | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """It was answered: hand that over."""

    call: Call
    opening: JournalEntry
    answer: JournalEntry
    changed_args: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is a suspension without an answer."""

    call: Call
    opening: JournalEntry


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The body gave it up before: perform nothing, and wait until it does so again.

    ``opening`` is None for a call that was not made before, inside one that was given up:
    the body is a little further this time. ``given_up`` is the entry that gave it up.
    """

    call: Call
    opening: JournalEntry | None
    given_up: JournalEntry | None = None


Decision = Fresh | Dangling | Answered | Waiting | GivenUp


@dataclass(slots=True)
class _Cursor:
    """How far a body has come in one scope."""

    at: int = 0
    ordinals: dict[str, int] = field(default_factory=dict)
    patched: dict[str, bool] = field(default_factory=dict)
    mistaken: set[tuple[str, str, str]] = field(default_factory=set)
    """(kind, name, hash) of openings that were asked for with arguments that stand nowhere."""


@dataclass(slots=True)
class Replay:
    """What is known of one run's calls, and how far the body has come; grows as entries land."""

    calls: Calls = field(default_factory=Calls)
    boot_seq: int = -1
    _cursors: dict[str, _Cursor] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> Replay:
        """Fold a journal."""
        replay = cls()
        for entry in entries:
            replay.calls.add(entry)
            replay.boot_seq = entry.seq
        return replay

    def landed(self, entry: JournalEntry) -> bool:
        """Fold in an entry of this life; return whether it is the first answer to a call.

        An opening that lands is one that the body has just asked for.
        """
        ended = self.calls.add(entry)
        if entry.ref is None and entry.seq in self.calls.by_seq:
            self._cursor(entry.scope).at = len(self.calls.scopes[entry.scope])
        return ended is not None

    # --- what the body asks -------------------------------------------------------------------

    def next(self, call: Call) -> Decision:
        """Decide the body's next call in its scope.

        Raises `NonDeterminismError` when the journal has another call there, or no room for
        a new one.
        """
        cursor = self._cursor(call.scope)
        call = _numbered(call, cursor)
        sequence = self.calls.scopes.get(call.scope, [])
        while cursor.at < len(sequence) and sequence[cursor.at].opening.kind == PATCHED_KIND:
            # The code no longer asks: whoever took the question out keeps its True.
            cursor.patched[sequence[cursor.at].opening.key] = True
            cursor.at += 1
        if cursor.at >= len(sequence):
            return self._new(call, cursor)
        state = sequence[cursor.at]
        changed = self._compare(call, state, cursor)
        cursor.at += 1
        cursor.ordinals[call.key] = call.ordinal + 1
        return _decided(call, state, changed_args=changed)

    def patched(self, scope: str, name: str) -> bool | None:
        """Whether the new way is taken at this place; None: yes, and it must be journalled.

        Decided once per scope and name. True where nothing of the scope, or below it, stands
        behind this place; the journalled answer counts for every later life, and for later
        calls of that name in the scope.
        """
        cursor = self._cursor(scope)
        known = cursor.patched.get(name)
        if known is not None:
            return known
        sequence = self.calls.scopes.get(scope, [])
        at = cursor.at
        while at < len(sequence) and sequence[at].opening.kind == PATCHED_KIND:
            cursor.patched[sequence[at].opening.key] = True
            at += 1
            if sequence[at - 1].opening.key == name:
                cursor.at = at
                return True
        answer = None if at >= len(sequence) and not self._is_closed(scope) else False
        cursor.patched[name] = answer is None
        return answer

    def unasked(self, scope: str = "") -> JournalEntry | None:
        """Return the first opening that the body has not asked for, in a scope and below it."""
        for path, sequence in self.calls.scopes.items():
            if path != scope and not path.startswith(f"{scope}/"):
                continue
            if path != scope and self._was_given_up(path):
                continue
            for state in sequence[self._cursor(path).at :]:
                if state.opening.kind != PATCHED_KIND:
                    return state.opening
        return None

    def not_made(self, call: Call) -> None:
        """Take a fresh call back: it came to nothing, and nothing was journalled."""
        self._cursor(call.scope).ordinals[call.key] = call.ordinal

    def _new(self, call: Call, cursor: _Cursor) -> Decision:
        if (call.kind, call.key, call.args_hash or "") in cursor.mistaken:
            raise _reordered(call)
        scope = call.scope
        while (made := maker_of(scope)) is not None:
            maker = self.calls.maker(scope)
            if maker is not None and maker.given_up is not None:
                return GivenUp(call, None)
            if maker is not None and maker.answer is not None:
                message = (
                    f"{_named(call)} is new: the call that it is made in was complete when seq "
                    f"{maker.answer.seq} was journalled"
                )
                raise _other_way(message, call)
            behind = self._first_behind(made[0])
            if behind is not None:
                message = (
                    f"{_named(call)} is new: the journal continues behind it, with {_shown(behind)}"
                )
                raise _other_way(message, call)
            scope = made[0]
        cursor.ordinals[call.key] = call.ordinal + 1
        return Fresh(call)

    def _first_behind(self, scope: str) -> JournalEntry | None:
        sequence = self.calls.scopes.get(scope, [])
        for state in sequence[self._cursor(scope).at :]:
            if state.opening.kind != PATCHED_KIND:
                return state.opening
        return None

    def _compare(self, call: Call, state: CallState, cursor: _Cursor) -> bool:
        """Refuse another call than the journal's; return whether its arguments have changed."""
        opening = state.opening
        if (opening.kind, opening.key) != (call.kind, call.key):
            what = f"{_named(call)} stands where the journal has {_shown(opening)}"
            raise _other_way(what, call)
        if opening.call_key != call.call_key:
            message = (
                f"{_named(call)} has the key {call.call_key!r} now, and had "
                f"{opening.call_key!r} when seq {opening.seq} was journalled"
            )
            raise _other_way(message, call)
        value = opening.value
        branches = value.get("branches") if isinstance(value, dict) else None
        if call.branches is not None and branches != call.branches:
            message = (
                f"{_named(call)} has {call.branches} branches now, and had {branches} when seq "
                f"{opening.seq} was journalled"
            )
            raise _other_way(message, call)
        if call.args_hash is None or opening.args_hash in {None, call.args_hash}:
            return False
        if call.args_hash in self._hashes_beside(opening):
            raise _reordered(call)
        cursor.mistaken.add((opening.kind, opening.key, opening.args_hash or ""))
        return True

    def _hashes_beside(self, opening: JournalEntry) -> set[str | None]:
        """Return the argument hashes of the other openings that one could be mistaken for."""
        made = maker_of(opening.scope)
        scopes = [opening.scope]
        if made is not None:
            siblings = opening.scope[: opening.scope.rindex("[") + 1]
            scopes = [path for path in self.calls.scopes if maker_of(path) == made]
            scopes = [path for path in scopes if path.startswith(siblings)]
        return {
            state.opening.args_hash
            for path in scopes
            for state in self.calls.scopes.get(path, ())
            if (state.opening.kind, state.opening.key) == (opening.kind, opening.key)
            and state.opening is not opening
        }

    def _is_closed(self, scope: str) -> bool:
        """Whether the call that made a scope, or one around it, has ended or been passed."""
        while (made := maker_of(scope)) is not None:
            maker = self.calls.maker(scope)
            if maker is not None and not maker.is_open:
                return True
            if self._first_behind(made[0]) is not None:
                return True
            scope = made[0]
        return False

    def _was_given_up(self, scope: str) -> bool:
        while (made := maker_of(scope)) is not None:
            maker = self.calls.maker(scope)
            if maker is not None and maker.given_up is not None:
                return True
            scope = made[0]
        return False

    def _cursor(self, scope: str) -> _Cursor:
        return self._cursors.setdefault(scope, _Cursor())

    # --- what the segment asks ----------------------------------------------------------------

    def tries_of(self, opening: JournalEntry) -> list[JournalEntry]:
        """Return the opening entries of all tries of one call, the newest first.

        A retry made every other one void.
        """
        void = self.calls.void.get((opening.scope, opening.kind, opening.key), ())
        tries = [state.opening for state in void if state.opening.ordinal == opening.ordinal]
        return sorted([*tries, opening], key=lambda one: one.seq, reverse=True)

    def answer_to(self, seq: int) -> JournalEntry | None:
        """Return the answer to the call that ``seq`` opened, if there is one."""
        state = self.calls.by_seq.get(seq)
        return None if state is None else state.answer

    def waiting(self) -> Iterator[JournalEntry]:
        """Yield the suspensions that nothing has ended, in the order of their journal."""
        for state in self.calls.by_seq.values():
            if state.is_open and state.opening.kind in SUSPENSION_KINDS:
                yield state.opening

    def has_asked(self, key: str) -> bool:
        """Whether the run has ever waited for ``key``, answered by now or not."""
        openings = (state.opening for state in self.calls.by_seq.values())
        return any((one.kind, one.key) == ("external", key) for one in openings)


def _numbered(call: Call, cursor: _Cursor) -> Call:
    return Call(
        kind=call.kind,
        scope=call.scope,
        key=call.key,
        ordinal=cursor.ordinals.get(call.key, 0),
        args_hash=call.args_hash,
        call_key=call.call_key,
        branches=call.branches,
    )


def _decided(call: Call, state: CallState, *, changed_args: bool) -> Decision:
    if state.given_up is not None:
        return GivenUp(call, state.opening, state.given_up)
    if state.answer is not None:
        return Answered(call, state.opening, state.answer, changed_args)
    if call.kind in SUSPENSION_KINDS:
        return Waiting(call, state.opening)
    return Dangling(call, state.opening, changed_args, state.retried)


def would_perform(decision: Decision) -> bool:
    """Whether a call would be made anew, or waited for: the end of what a trial may do.

    An unanswered ``parallel`` or ``ctx.timeout`` performs nothing itself: what was journalled
    inside is still to be replayed. Nor does a new ``patched``.
    """
    kind = decision.call.kind
    if isinstance(decision, Fresh):
        return kind != PATCHED_KIND
    if isinstance(decision, Dangling):
        return kind not in {BLOCK_KIND, "parallel"}
    return isinstance(decision, Waiting)


def given_up_after_ms(given_up: JournalEntry | None) -> int:
    """Return how long the first life waited for a call that it gave up, in milliseconds."""
    value = None if given_up is None or given_up.kind != GIVEN_UP else given_up.value
    after_ms = value.get("afterMs") if isinstance(value, dict) else None
    return after_ms if isinstance(after_ms, int) else 0


def unasked_error(left_out: JournalEntry) -> NonDeterminismError:
    """Return what blocks a body that ended without asking for a call of its journal."""
    where = f"the branch {left_out.scope!r}" if left_out.scope else "the body"
    message = f"{where} ended without {_shown(left_out)}, which it made before; {_REMEDY}"
    return NonDeterminismError(
        message, scope=left_out.scope, key=left_out.key, ordinal=left_out.ordinal
    )


def unknown_entry(entry: JournalEntry) -> NonDeterminismError:
    """Return what blocks a journal whose calls this version of the library does not know."""
    does = "opens" if entry.ref is None else "answers"
    message = (
        f"seq {entry.seq} {does} a call as {entry.kind!r}, which this version of the library does "
        "not know: execute the run with the version that wrote it"
    )
    return NonDeterminismError(message, scope=entry.scope, key=entry.key, ordinal=entry.ordinal)


def _named(call: Call) -> str:
    place = f" in scope {call.scope!r}" if call.scope else ""
    number = f" number {call.ordinal}" if call.ordinal else ""
    return f"{call.kind} {call.key!r}{number}{place}"


def _shown(opening: JournalEntry) -> str:
    return f"{opening.kind} {opening.key!r} (seq {opening.seq})"


_REMEDY = (
    "the body made other calls than its journal: go back to the code that this run was executed "
    "by, or make the change with ctx.patched"
)


def _other_way(what: str, call: Call) -> NonDeterminismError:
    message = f"{what}; {_REMEDY}"
    return NonDeterminismError(message, scope=call.scope, key=call.key, ordinal=call.ordinal)


def _reordered(call: Call) -> NonDeterminismError:
    message = (
        f"{_named(call)} has the arguments of another call of that name: the calls are made in "
        "another order, and each would get the answer of another; give each a key"
    )
    return _other_way(message, call)
