"""The model's calls as a store's own: one interleaving, step by step, each compared.

What is not the model's business is kept here: run ids, the hour of each run, and the bytes.
Epochs need only rise, so each of the model's stands for the number that the store granted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.state import RunState, read_run
from rulvar.conformance.protocol.replay_clock import LEASE_TTL_MS
from rulvar.conformance.protocol.state import (
    ABSENT,
    EXPIRED,
    OWNERS,
    RENEWED,
    RUNS,
    STALE,
    Answer,
)
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError
from rulvar.core.records import Lease, RunMeta
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.conformance.harness.actors import FullJournal, FullTranscripts
    from rulvar.conformance.protocol.replay_clock import ReplayClock
    from rulvar.conformance.protocol.state import Action, LeaseValue, Run, State
    from rulvar.core.records import JournalRecord
    from rulvar.core.stores import Stores

__all__ = ["Trace", "format_answer"]


class Trace:
    """One interleaving on a store, under run ids of its own."""

    def __init__(self, stores: Stores, hours: ReplayClock, number: int) -> None:
        self._stores = stores
        self._journal = cast("FullJournal", stores.journal)
        self._transcripts = cast("FullTranscripts", stores.transcripts)
        self._clock = hours
        self._ids = tuple(f"model-{number:06}-{name}" for name in RUNS)
        self._hour = [0] * len(RUNS)
        self._since = [0] * len(RUNS)
        self._live = [False] * len(RUNS)
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
        wrong = self._do(action, answer, after)
        if wrong is not None:
            return wrong
        for number, run in enumerate(after.runs):
            expected = self._there[number]
            _same_as_model(expected, run)
            self._live[number] = run.row is not None and run.row.age < EXPIRED
            wrong = self._compare(expected, number)
            if wrong is not None:
                return wrong
        return None

    def _do(self, action: Action, answer: Answer, after: State) -> tuple[str, str] | None:
        if action.phase == "begin":
            self._flying[action.actor] = action
            return None
        if action.phase in {"commit", "crash"}:
            flown = self._flying.pop(action.actor)
            if action.phase == "crash":
                return None
            action = flown
        if action.call == "time":
            row = after.runs[action.run].row
            if row is not None:
                self._hour[action.run] = self._since[action.run] + self._clock.ages()[row.age]
            return None
        about = action.run
        if action.lease is not None and action.call != "seize":
            about = action.lease.run
        self._now = self._clock.set(self._hour[about])
        got, words, write = self._call(action, answer)
        if got != answer:
            return format_answer(answer), words
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
            if error.holder is not None and error.holder != self._holder(action.run):
                return None, f"a refusal that names {error.holder!r} as the holder", write
            got = Answer("refused", reason=error.reason)
        except JournalOrderViolation:
            got = Answer("out of order")
        except Exception as error:  # noqa: BLE001 - told as what the store did
            return None, f"{type(error).__name__}: {error}", write
        else:
            if isinstance(value, Lease):
                return *self._granted(action, expected, value), write
            got = Answer("landed")
            if action.call == "renew_all":
                got = self._each(action, cast("Sequence[LeaseHeldError]", value))
        return got, format_answer(got), write

    def _holder(self, run: int) -> str | None:
        lease = self._there[run].lease
        return lease[0] if lease is not None and self._live[run] else None

    def _granted(self, action: Action, expected: Answer, lease: Lease) -> tuple[Answer | None, str]:
        words = f"granted {lease}"
        if (lease.run_id, lease.owner) != (self._ids[action.run], OWNERS[action.grantee]):
            return None, words
        epochs = self._epochs[action.run]
        if lease.epoch <= max(epochs.values()):
            return None, f"{words}, though epoch {max(epochs.values())} was granted or raised to"
        if expected.word == "granted":
            epochs[expected.epoch] = lease.epoch
        return Answer("granted", epoch=expected.epoch), words

    def _each(self, action: Action, refusals: Sequence[LeaseHeldError]) -> Answer:
        """Return what a renewal of many says of each lease; refusals come in their order."""
        left = list(refusals)
        said = []
        for value in action.leases:
            refused = bool(left) and left[0].offered == self._lease(value)
            said.append(left.pop(0).reason if refused else RENEWED)
        return Answer("landed", reason=", ".join((*said, *(each.reason for each in left))))

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
        owner = OWNERS[action.actor]
        if action.call == "seize" and lease is not None:
            return lambda: journal.seize(run_id, owner, over=lease)
        if action.call == "renew_all":
            leases = [self._lease(value) for value in action.leases]
            return lambda: journal.renew_all(leases)
        if lease is None:
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
            held = (OWNERS[action.grantee], self._epochs[run][answer.epoch], expires_at)
            self._there[run] = replace(self._there[run], lease=held)
            self._since[run] = self._hour[run]
        elif answer.word == "landed":
            renews = action.call == "renew" or RENEWED in answer.reason
            if renews and left.lease is not None:
                left = replace(left, lease=(*left.lease[:2], expires_at))
                self._since[run] = self._hour[run]
            elif action.call in {"release", "raise_epoch"}:
                left = replace(left, lease=None)
            if action.call == "raise_epoch":
                self._epochs[run].setdefault(action.more, self._epoch(run, action.more))
            self._there[run] = left

    def _compare(self, expected: RunState, number: int) -> tuple[str, str] | None:
        name, run_id = RUNS[number], self._ids[number]
        shows = callable(getattr(self._journal, "get_lease", None))
        try:
            got = read_run(self._stores, run_id)
            self._clock.set(self._hour[number])
            info = self._journal.get_lease(run_id) if shows else None
        except Exception as error:  # noqa: BLE001 - told as what the store did
            return f"{name} can be read", f"{type(error).__name__}: {error}"
        if not shows:
            expected = replace(expected, lease=None)
        if not self._clock.exact and got.lease is not None and expected.lease is not None:
            # Real time has passed as well: whether it is live is all that can be said.
            expected = replace(expected, lease=(*expected.lease[:2], got.lease[2]))
        if got != expected:
            lines = (expected.lines(), got.lines())
        elif info is not None and info.live != self._live[number]:
            lines = ([f"a lease that is live: {self._live[number]}"], [f"live: {info.live}"])
        else:
            return None
        return f"of {name}: {'; '.join(lines[0])}", f"of {name}: {'; '.join(lines[1])}"


def _record(there: RunState, mark: str, *, stale: bool) -> JournalRecord:
    tail = there.journal[-1][0] if there.journal else -1
    return record(tail if stale else tail + 1, mark)


def format_answer(answer: Answer) -> str:
    """Return an answer as people say it."""
    more = answer.reason or (f"epoch {answer.epoch}" if answer.epoch else "")
    return f"{answer.word} ({more})" if more else answer.word


def _same_as_model(there: RunState, run: Run) -> None:
    """Check that the bytes kept here are what the model's state stands for."""
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
