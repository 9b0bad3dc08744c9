"""The calls of a journal as they count now: in their scopes, answered, given up, or void.

A call is opened by an entry without ``ref`` and answered by one whose ``ref`` names it. The
calls of one scope form one sequence, in the order of their openings. Three things change what
counts, and this module is their only account; the replay kernel, the audit and the queries
go by it:

- **The first answer wins.** Later ones count for nothing.
- **A giving-up outranks every answer.** A body that left a call by cancellation never saw its
  answer, whether or not one had landed. A timeout block that fired gives up every call that
  its entry names.
- **A retry makes calls void.** It names the calls whose errors ended the run. Each is made
  again, and what the body did because of its error is void: the later openings of its scope,
  of the scopes around it, and all that lies below those. Siblings stand. The answers of the
  calls around it are void too. A child that failed keeps its opening, for that names its run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.core.journal.entries import JournalEntry

__all__ = [
    "BLOCK_KIND",
    "CALL_KINDS",
    "GIVEN_UP",
    "PATCHED_KIND",
    "RETRY",
    "SELF_ANSWERED_KINDS",
    "SUSPENSION_KINDS",
    "CallState",
    "Calls",
    "branch_scope",
    "maker_of",
]

SUSPENSION_KINDS = frozenset({"external", "timer"})
SELF_ANSWERED_KINDS = frozenset({"rand", "patched"})
"""Calls whose opening entry holds their answer."""

BLOCK_KIND = "timeout"
PATCHED_KIND = "patched"
CALL_KINDS = (
    SUSPENSION_KINDS
    | SELF_ANSWERED_KINDS
    | {"agent", "child", "parallel", "step", BLOCK_KIND, "turns", "worktree"}
)
GIVEN_UP = "given_up"
"""The kind of the entry that gives a call up."""

_ANSWER_KINDS = CALL_KINDS | {GIVEN_UP, "resolution", "abandon"}

RETRY = "run_retry"
"""The decision that makes failed calls void."""

_SCOPE = re.compile(r"(?P<around>.*)/(?P<name>[^/]*)#(?P<ordinal>[0-9]+)\[[0-9]+\]\Z", re.DOTALL)


def branch_scope(scope: str, name: str, ordinal: int, index: int) -> str:
    """Return the path of the scope of one branch."""
    return f"{_below(scope, name, ordinal)}{index}]"


def _below(scope: str, name: str, ordinal: int) -> str:
    return f"{scope}/{quote(name, safe='')}#{ordinal}["


def maker_of(scope: str) -> tuple[str, str, int] | None:
    """Return (scope, name, ordinal) of the call that made a branch's scope; None for the root."""
    found = _SCOPE.match(scope)
    if found is None:
        return None
    return found["around"], unquote(found["name"]), int(found["ordinal"])


@dataclass(slots=True, eq=False)
class CallState:
    """One call that counts: its opening, and its outcome."""

    opening: JournalEntry
    answer: JournalEntry | None = None
    given_up: JournalEntry | None = None
    """The entry by which the body gave the call up, or the firing that ended it."""
    retried: JournalEntry | None = None
    """The last retry that took its answer away; its time limits count from there."""

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended it."""
        return self.answer is None and self.given_up is None


@dataclass(slots=True)
class Calls:
    """A journal's calls by scope and by seq; grows as entries are folded in."""

    scopes: dict[str, list[CallState]] = field(default_factory=dict)
    by_seq: dict[int, CallState] = field(default_factory=dict)
    void: dict[tuple[str, str, str], list[CallState]] = field(default_factory=dict)
    """What retries made void, by (scope, kind, name), oldest first."""
    unknown: JournalEntry | None = None
    """The first entry that opens or answers a call in a way that this version does not know."""

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> Calls:
        """Fold a journal."""
        calls = cls()
        for entry in entries:
            calls.add(entry)
        return calls

    def add(self, entry: JournalEntry) -> CallState | None:
        """Fold one entry in; return the call that it ended, if it is the first to end it."""
        if entry.ref is not None:
            return self._end(entry)
        if entry.kind in CALL_KINDS:
            self._open(entry)
        elif entry.kind == "decision":
            self._decide(entry)
        elif entry.status in {"running", "suspended"} and self.unknown is None:
            self.unknown = entry
        return None

    def _open(self, entry: JournalEntry) -> None:
        state = CallState(entry)
        if entry.kind in SELF_ANSWERED_KINDS:
            state.answer = entry
        self.by_seq[entry.seq] = state
        self.scopes.setdefault(entry.scope, []).append(state)

    def _end(self, entry: JournalEntry) -> CallState | None:
        if entry.kind not in _ANSWER_KINDS and self.unknown is None:
            self.unknown = entry
        state = self.by_seq.get(entry.ref or 0)
        if state is None:
            return None
        if entry.kind == GIVEN_UP:
            state.given_up = entry
            return None
        if state.answer is not None or state.given_up is not None:
            return None
        state.answer = entry
        for seq in fired_calls(entry):
            under_way = self.by_seq.get(seq)
            if under_way is not None:
                under_way.given_up = entry
        return state

    def maker(self, scope: str) -> CallState | None:
        """Return the call that made a scope, where it counts."""
        made = maker_of(scope)
        if made is None:
            return None
        around, name, ordinal = made
        for state in reversed(self.scopes.get(around, ())):
            opening = state.opening
            if (opening.kind, opening.key, opening.ordinal) == ("parallel", name, ordinal):
                return state
        return None

    def below(self, opening: JournalEntry) -> Iterator[str]:
        """Yield the scopes that a call made, with all that lies below them."""
        start = _below(opening.scope, opening.key, opening.ordinal)
        return (scope for scope in list(self.scopes) if scope.startswith(start))

    def failed_beside(self, seq: int) -> list[int]:
        """Return the seqs of the failed calls that a retry of ``seq`` makes again, it included.

        A parallel that let an error through names the calls that failed in its branches.
        """
        found = [seq]
        state = self.by_seq.get(seq)
        while state is not None:
            state = self.maker(state.opening.scope)
            if state is None or state.answer is None:
                continue
            value = state.answer.value
            named = value.get("failed") if isinstance(value, dict) else None
            for other in named if isinstance(named, list) else ():
                if isinstance(other, int) and other not in found:
                    found.append(other)
        return found

    # --- retries ------------------------------------------------------------------------------

    def _decide(self, entry: JournalEntry) -> None:
        value = entry.value
        if not isinstance(value, dict) or value.get("decisionType") != RETRY:
            return
        named = value.get("calls")
        for seq in named if isinstance(named, list) else ():
            state = self.by_seq.get(seq) if isinstance(seq, int) else None
            if state is not None:
                self._make_void(state, entry)

    def _make_void(self, state: CallState, retry: JournalEntry) -> None:
        kept = state.opening.kind == "child" and not _is_cancelled(state.answer)
        self._cut(state, retry, keep=kept)
        maker = self.maker(state.opening.scope)
        while maker is not None:
            self._cut(maker, retry, keep=True)
            maker = self.maker(maker.opening.scope)

    def _cut(self, state: CallState, retry: JournalEntry, *, keep: bool) -> None:
        """Make a scope void from a call on; ``keep`` that call itself, without its answer."""
        scope = self.scopes[state.opening.scope]
        if state not in scope:
            return
        at = scope.index(state)
        for around in scope[:at]:
            ended = None if around.opening.kind != BLOCK_KIND else around.answer
            if ended is not None and ended.seq > state.opening.seq:
                self._reopen(around, retry)  # the call was made inside this block
        if keep:
            self._reopen(state, retry)
            at += 1
        gone = scope[at:]
        del scope[at:]
        for each in gone:
            self._forget(each)

    def _reopen(self, state: CallState, retry: JournalEntry) -> None:
        state.answer = state.given_up = None
        state.retried = retry

    def _forget(self, state: CallState) -> None:
        opening = state.opening
        self.by_seq.pop(opening.seq, None)
        self.void.setdefault((opening.scope, opening.kind, opening.key), []).append(state)
        if opening.kind != "parallel":
            return
        for scope in self.below(opening):
            for each in self.scopes.pop(scope):
                self.by_seq.pop(each.opening.seq, None)
                inner = each.opening
                self.void.setdefault((inner.scope, inner.kind, inner.key), []).append(each)


def _is_cancelled(answer: JournalEntry | None) -> bool:
    """Whether a child's run was cancelled: it cannot go on, a retry makes a new one."""
    data = None if answer is None or answer.error is None else answer.error.get("data")
    return isinstance(data, dict) and data.get("type") in {"RunCancelledError", "TimeoutError"}


def fired_calls(answer: JournalEntry) -> list[int]:
    """Return the calls that the firing of a timeout block gave up; none for other entries."""
    value = answer.value
    if answer.kind != BLOCK_KIND or answer.status != "error" or not isinstance(value, dict):
        return []
    named = value.get("calls")
    return [seq for seq in named if isinstance(seq, int)] if isinstance(named, list) else []
