"""The model's interleavings against a real store: every answer, and everything that can be read.

Each trace has run ids of its own, so thousands of them share one store. Time is the run's: before
a call the clock is set to the hour of the run that the call is about, so that one run's lease
runs out and another's does not. A store under a manual clock is compared to the millisecond;
one behind a URL is given a machine clock that is wrong (`rulvar.conformance.machine_clock`).

What is not the model's business is kept here: the bytes. Epochs need only rise, so each of the
model's stands for the number that the store granted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from rulvar.conformance import machine_clock
from rulvar.conformance.actors import record
from rulvar.conformance.protocol.rules import SOUND, step
from rulvar.conformance.protocol.state import (
    ABSENT,
    EXPIRED,
    OWNERS,
    RUNS,
    STALE,
    Answer,
)
from rulvar.conformance.protocol.traces import covering
from rulvar.conformance.state import RunState, read_run
from rulvar.core.errors import ConfigError, JournalOrderViolation, LeaseHeldError
from rulvar.core.fencing import assert_fenced_writes
from rulvar.core.records import Lease, RunMeta
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rulvar.conformance.actors import FullJournal, FullTranscripts
    from rulvar.conformance.protocol.explore import Counterexample, Exploration
    from rulvar.conformance.protocol.state import Action, Call, LeaseValue, State
    from rulvar.conformance.subject import Place, Subject
    from rulvar.core.records import JournalRecord
    from rulvar.core.stores import Stores

__all__ = ["Difference", "Replay", "Stage", "answer_in_words", "sound_steps"]

LEASE_TTL_MS = 3_600_000
_HALF_MS = LEASE_TTL_MS // 2
_OPTIONAL: tuple[Call, ...] = ("seize", "revive", "raise_epoch", "delete_whole_run")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a store did not do what the model does: the actions, the last of them the one."""

    actions: tuple[Action, ...]
    answers: tuple[Answer, ...]
    expected: str
    got: str


@dataclass(slots=True)
class Replay:
    """What was replayed against one store."""

    store: str
    traces: int = 0
    calls: int = 0
    transitions: int = 0
    counterexamples: int = 0
    difference: Difference | None = None


def _missing_calls(stores: Stores) -> frozenset[Call]:
    """Return the calls of the model that these stores do not have."""
    return frozenset(
        call for call in _OPTIONAL if not callable(getattr(stores.journal, call, None))
    )


class _Hours:
    """The clock of the store under replay, set to any hour at will."""

    def __init__(self, place: Place) -> None:
        self._manual = place.clock
        self._first_ms = 0 if place.clock is None else place.clock.now_ms()

    @property
    def exact(self) -> bool:
        """Whether nothing else moves it."""
        return self._manual is not None

    def set(self, ms: int) -> int:
        """Set it to so many milliseconds after the beginning; return what it shows then."""
        if self._manual is not None:
            self._manual.set(self._first_ms + ms)
            return self._first_ms + ms
        machine_clock.set_offset(ms)
        return machine_clock.true_now_ms() + ms


class Stage:
    """A store under replay. Close it after use.

    Raises `ConfigError` for a subject whose store is no fenced pair, whose place is not its
    own, or whose leases do not believe the clock that they are given.
    """

    def __init__(self, subject: Subject) -> None:
        self._place = place = subject.fresh(lease_ttl_ms=LEASE_TTL_MS, manual_clock=True)
        self.replay = Replay(subject.name)
        self._number = 0
        try:
            self._open(subject, place)
        except BaseException:
            self.close()
            raise

    def _open(self, subject: Subject, place: Place) -> None:
        if not place.fresh:
            message = (
                f"{subject.name} is a place that others may use: give @tmp@/ or a relative path"
            )
            raise ConfigError(message)
        self.stores = place.open()
        assert_fenced_writes(self.stores)
        if not place.honours_ttl:
            message = f"{subject.name} takes no lease_ttl_ms: its leases cannot be made to run out"
            raise ConfigError(message)
        self.missing = _missing_calls(self.stores)
        self._hours = _Hours(place)
        self._look_at_the_clock(subject.name)

    def _look_at_the_clock(self, name: str) -> None:
        """Let a lease run out, so that a store with another clock is not called wrong."""
        self._hours.set(0)
        self.stores.journal.acquire("model-clock", "ann")  # type: ignore[attr-defined]
        self._hours.set(LEASE_TTL_MS)
        try:
            self.stores.journal.acquire("model-clock", "bob")  # type: ignore[attr-defined]
        except LeaseHeldError:
            message = (
                f"the leases of {name} do not run out by this process's clock: replay a factory "
                "that takes home.clock (FactorySubject) instead"
            )
            raise ConfigError(message) from None

    def close(self) -> None:
        """Remove the place, and give the machine its clock back."""
        if machine_clock.offset_ms():
            machine_clock.set_offset(0)
        self._place.discard()

    # --- what is replayed -------------------------------------------------------------------

    def cover(self, explored: Exploration) -> bool:
        """Replay every transition of an explored graph; return whether all were as they should."""
        for trace in covering(explored):
            edges = (stride.edge for stride in trace)
            if not self._run(
                (edge.action, edge.answer, explored.nodes[edge.target].state) for edge in edges
            ):
                return False
            self.replay.traces += 1
            self.replay.transitions += sum(stride.new for stride in trace)
        return True

    def can(self, found: Counterexample) -> bool:
        """Whether the store has every call of a counterexample."""
        return self.missing.isdisjoint(moment.action.call for moment in found.moments)

    def refute(self, found: Counterexample) -> bool:
        """Replay a counterexample of a missing guard: the store must do as the protocol does."""
        steps = sound_steps(found)
        if not self._run(steps):
            return False
        self.replay.counterexamples += 1
        return True

    def _run(self, steps: Iterable[tuple[Action, Answer, State]]) -> bool:
        self._number += 1
        trace = _Trace(self.stores, self._hours, self._number)
        for action, answer, after in steps:
            wrong = trace.take(action, answer, after)
            if wrong is not None:
                expected, got = wrong
                self.replay.difference = Difference(
                    tuple(trace.actions), tuple(trace.answers), expected, got
                )
                return False
            self.replay.calls += 1
        return True


def sound_steps(found: Counterexample) -> list[tuple[Action, Answer, State]]:
    """Return what the protocol, with all its guards, does with a counterexample's actions."""
    state = found.moments[0].before
    steps = []
    for moment in found.moments:
        state, answer = step(state, moment.action, SOUND)
        steps.append((moment.action, answer, state))
    return steps


class _Trace:
    """One interleaving on a store, under run ids of its own."""

    def __init__(self, stores: Stores, hours: _Hours, number: int) -> None:
        self._stores = stores
        self._journal = cast("FullJournal", stores.journal)
        self._transcripts = cast("FullTranscripts", stores.transcripts)
        self._hours = hours
        self._ids = tuple(f"model-{number:06}-{name}" for name in RUNS)
        self._hour = [0] * len(RUNS)
        self._now = 0
        self._epochs: list[dict[int, int]] = [{0: 0} for _ in RUNS]
        self._there = [RunState() for _ in RUNS]
        self._flying: dict[int, Action] = {}
        self.actions: list[Action] = []
        self.answers: list[Answer] = []

    def take(self, action: Action, answer: Answer, after: State) -> tuple[str, str] | None:
        """Do one step; return what was expected and what came where the two differ."""
        self.actions.append(action)
        self.answers.append(answer)
        wrong = self._do(action, answer)
        if wrong is not None:
            return wrong
        for number, expected in enumerate(self._there[: len(after.runs)]):
            _same_as_model(expected, after, number)
            wrong = self._compare(expected, after, number)
            if wrong is not None:
                return wrong
        return None

    def _do(self, action: Action, answer: Answer) -> tuple[str, str] | None:
        if action.phase == "begin":
            self._flying[action.actor] = action
            return None
        if action.phase in {"commit", "crash"}:
            flown = self._flying.pop(action.actor)
            if action.phase == "crash":
                return None
            action = flown
        if action.call == "time":
            self._hour[action.run] += action.more * _HALF_MS
            return None
        about = action.run if action.lease is None else action.lease.run
        self._now = self._hours.set(self._hour[about])
        got, words, write = self._call(action, answer)
        if got != answer:
            return answer_in_words(answer), words
        self._write(action, answer, write)
        return None

    # --- one call ---------------------------------------------------------------------------

    def _call(self, action: Action, expected: Answer) -> tuple[Answer | None, str, RunState]:
        """Make the call; return the model's word for what it did, that in words, and the bytes."""
        there = self._there[action.run]
        made, write = self._made(action, there)
        try:
            value = made()
        except LeaseHeldError as error:
            got = Answer("refused", reason=error.reason)
        except JournalOrderViolation:
            got = Answer("out of order")
        except Exception as error:  # noqa: BLE001 - told as what the store did
            return None, f"{type(error).__name__}: {error}", write
        else:
            if isinstance(value, Lease):
                return *self._granted(action, expected, value), write
            got = Answer("landed")
        return got, answer_in_words(got), write

    def _granted(self, action: Action, expected: Answer, lease: Lease) -> tuple[Answer | None, str]:
        owner = action.actor if action.lease is None else action.lease.owner
        words = f"granted {lease}"
        if (lease.run_id, lease.owner) != (self._ids[action.run], OWNERS[owner]):
            return None, words
        epochs = self._epochs[action.run]
        if lease.epoch <= max(epochs.values()):
            return None, f"{words}, though epoch {max(epochs.values())} was granted or raised to"
        if expected.word == "granted":
            epochs[expected.epoch] = lease.epoch
        return Answer("granted", epoch=expected.epoch), words

    def _made(  # noqa: PLR0911 - one return for each call
        self, action: Action, there: RunState
    ) -> tuple[Callable[[], object], RunState]:
        """Return the call as the store's own, and what it is to leave if it lands."""
        run_id = self._ids[action.run]
        journal, transcripts = self._journal, self._transcripts
        lease = None if action.lease is None else self._lease(action.lease)
        mark = f"step-{len(self.actions)}"
        match action.call:
            case "append":
                added = _record(there, mark, stale=action.more == STALE)
                left = replace(there, journal=(*there.journal, (added.seq, added.payload)))
                return lambda: journal.append(run_id, added, lease=lease), left
            case "put_meta":
                meta = RunMeta(
                    run_id=run_id,
                    status="running",
                    updated_at="2026-01-01T00:00:00.000Z",
                    name=mark,
                )
                left = replace(there, row=encode_meta(meta))
                return lambda: journal.put_meta(meta, lease=lease), left
            case "put_blob":
                ref, blob = f"{run_id}/turn", mark.encode()
                left = replace(there, blobs=((ref, blob),))
                return lambda: transcripts.put(ref, blob, lease=lease), left
            case "delete_blob":
                left = replace(there, blobs=())
                return lambda: transcripts.delete(f"{run_id}/turn", lease=lease), left
            case "delete":
                left = RunState(blobs=there.blobs)
                return lambda: journal.delete(run_id, lease=lease), left
            case "delete_whole_run":
                return lambda: journal.delete_whole_run(run_id, lease=lease), RunState()
            case _:
                return self._about_leases(action, lease), there

    def _about_leases(self, action: Action, lease: Lease | None) -> Callable[[], object]:
        run_id, journal = self._ids[action.run], self._journal
        if action.call == "raise_epoch":
            at_least = self._epoch(action.run, action.more)
            return lambda: journal.raise_epoch(run_id, at_least)
        if lease is None:
            owner = OWNERS[action.actor]
            return lambda: getattr(journal, action.call)(run_id, owner)
        return lambda: getattr(journal, action.call)(lease)

    def _lease(self, value: LeaseValue) -> Lease:
        return Lease(
            run_id=self._ids[value.run],
            owner=OWNERS[value.owner],
            epoch=self._epoch(value.run, value.epoch),
        )

    def _epoch(self, run: int, epoch: int) -> int:
        """Return the store's number for one of the model's, also for one yet to come."""
        epochs = self._epochs[run]
        if epoch in epochs:
            return epochs[epoch]
        last = max(known for known in epochs if known < epoch)
        return epochs[last] + epoch - last

    # --- what is there afterwards -----------------------------------------------------------

    def _write(self, action: Action, answer: Answer, left: RunState) -> None:
        """Note what the call has changed."""
        run = action.run
        expires_at = self._now + LEASE_TTL_MS
        if answer.word == "granted":
            owner = action.actor if action.lease is None else action.lease.owner
            held = (OWNERS[owner], self._epochs[run][answer.epoch], expires_at)
            self._there[run] = replace(self._there[run], lease=held)
        elif answer.word == "landed":
            if action.call == "renew" and left.lease is not None:
                left = replace(left, lease=(*left.lease[:2], expires_at))
            elif action.call in {"release", "raise_epoch"}:
                left = replace(left, lease=None)
            if action.call == "raise_epoch":
                self._epochs[run].setdefault(action.more, self._epoch(run, action.more))
            self._there[run] = left

    def _compare(self, expected: RunState, after: State, number: int) -> tuple[str, str] | None:
        got = read_run(self._stores, self._ids[number])
        if got.lease is None and not callable(getattr(self._journal, "get_lease", None)):
            expected = replace(expected, lease=None)
        if not self._hours.exact and got.lease is not None and expected.lease is not None:
            # Real time has passed as well: whether it is live is all that can be said.
            row = after.runs[number].row
            live = got.lease[2] > machine_clock.true_now_ms() + self._hour[number]
            if row is not None and live == (row.age < EXPIRED):
                expected = replace(expected, lease=(*expected.lease[:2], got.lease[2]))
        if got == expected:
            return None
        name = RUNS[number]
        return (
            f"of {name}: {'; '.join(expected.lines())}",
            f"of {name}: {'; '.join(got.lines())}",
        )


def _record(there: RunState, mark: str, *, stale: bool) -> JournalRecord:
    tail = there.journal[-1][0] if there.journal else -1
    return record(tail if stale else tail + 1, mark)


def answer_in_words(answer: Answer) -> str:
    """Return an answer as people say it."""
    more = answer.reason or (f"epoch {answer.epoch}" if answer.epoch else "")
    return f"{answer.word} ({more})" if more else answer.word


def _same_as_model(there: RunState, after: State, number: int) -> None:
    """Check that the bytes kept here are what the model's state stands for."""
    run = after.runs[number]
    row = None if run.row is None else OWNERS[run.row.owner]
    same = (
        len(there.journal) == len(run.journal)
        and (there.row is None) == (run.meta == ABSENT)
        and (not there.blobs) == (run.blob == ABSENT)
        and (None if there.lease is None else there.lease[0]) == row
    )
    if not same:
        message = f"the replay and the model disagree about {run}: {there} (a bug of the kit)"
        raise RuntimeError(message)
