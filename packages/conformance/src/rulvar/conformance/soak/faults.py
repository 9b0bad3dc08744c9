"""What the coordinator does to the processes: SIGSTOP, SIGCONT and SIGKILL, chosen by the seed.

A stop may land anywhere, also while a process holds the store's write lock. Then nobody else
comes through, and nobody can take over: a busy store is not what a storm is for. So a stop
under which every other process waits in a call is ended at once, and counted as what it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.soak.history import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.conformance.soak.history import Recorder
    from rulvar.conformance.soak.plan import Plan
    from rulvar.conformance.soak.processes import WorkerProcess
    from rulvar.conformance.soak.progress import Progress

__all__ = ["Faults"]

_MS = 1_000_000
_LOOK_AFTER = 12 * _MS
_WAITING_FOR = 10 * _MS
_CONFIRMED_WITHIN = 60 * _MS
_PAUSE_MS = 50.0
_HUNTED = 0.5
_SHORT = 0.1
_EAGER = 0.6
_BACKGROUND = 0.03
_RARER = 4
_KILL_PAUSE_MS = 1_500.0
_NUDGE_S = 0.2


@dataclass(slots=True)
class _Freeze:
    """One stop: whom, since when, until when at most.

    An eager one ends as soon as somebody has taken over; in a hunted one, others are sent to
    do so at once, so that what the process was in the middle of comes too late. ``targets`` are
    the runs that it was in the middle of a call about, or those that it held.
    """

    who: WorkerProcess
    began: int
    until: int
    eager: bool
    hunted: bool
    through: int
    targets: frozenset[str] | None = None


class Faults:
    """Chooses whom to stop and to kill, and when to let him go on."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        progress: Progress,
        workers: Sequence[WorkerProcess],
        background: Sequence[WorkerProcess],
        *,
        seizes: bool = True,
    ) -> None:
        self._choices = plan.choices(0)
        self._ttl_ns = plan.lease_ttl_ms * _MS
        self._recorder = recorder
        self._progress = progress
        self._workers = workers
        self._background = background
        self._frozen: list[_Freeze] = []
        self._suspects: list[tuple[_Freeze, int]] = []
        # A run that can be seized is taken at once, or others have no wish for it.
        self._patience = (0.3, 0.7) if seizes else (1.1, 2.0)
        self._least = (len(workers) + 1) // 2
        self._next_stop = now() + self._ttl_ns
        self._next_kill = now() + 4 * self._ttl_ns
        self.frozen: dict[str, tuple[int, int]] = {}
        """From when to when each process was stopped last: told before it goes on."""
        self._words = [(each, each.notice) for each in workers]
        self._self_stopped: set[int] = set()
        self.thin: frozenset[str] = frozenset()
        """What is still missing, by name."""
        self.killed: list[WorkerProcess] = []
        """Whose life was just ended: to be begun again."""

    def turn(self) -> list[WorkerProcess]:
        """Do what is due; return whom to let go on, once it has been told to them."""
        instant = now()
        self._confirm(instant)
        thawed = [each for each in self._frozen if self._is_over(each, instant)]
        for each in thawed:
            self._frozen.remove(each)
            self.frozen[str(each.who.process)] = (each.began, instant)
        if instant >= self._next_stop:
            self._stop(instant)
        if instant >= self._next_kill:
            self._kill(instant)
        return [each.who for each in thawed if not each.who.ended]

    def thawed(self, who: WorkerProcess) -> None:
        """Take note that a process goes on."""
        began, ended = self.frozen[str(who.process)]
        kind = "stopped" if who in self._workers else "background-stopped"
        if who.process in self._self_stopped:
            self._self_stopped.discard(who.process)
            kind = "self-stopped"
        self._recorder.fault(kind, who.process, began, ended)

    def end(self) -> list[WorkerProcess]:
        """Return everybody who is still stopped."""
        frozen, self._frozen = self._frozen, []
        instant = now()
        for each in frozen:
            self.frozen[str(each.who.process)] = (each.began, instant)
        return [each.who for each in frozen]

    def _rarer(self, *names: str) -> int:
        """Return how much rarer something may be than while there is too little of it."""
        return 1 if any(each.startswith(names) for each in self.thin) else _RARER

    # --- stops --------------------------------------------------------------------------------

    def _stop(self, instant: int) -> None:
        pause = self._choices.expovariate(1 / _PAUSE_MS) * self._rarer("<stops>", " stopped")
        self._next_stop = instant + int(pause * _MS)
        background = self._choices.random() < _BACKGROUND
        free = [
            each
            for each in (self._background if background else self._workers)
            if not each.frozen and self._is_up(each)
        ]
        if not free or (not background and len(free) <= self._least):
            return
        who = self._choices.choice(free)
        hunted = not background and self._chance(_HUNTED)
        low, high = self._patience if hunted else (1.1, 2.0)
        if background or (not hunted and self._chance(_SHORT)):
            low, high = (0.01, 0.5)
        length = self._choices.uniform(low, high)
        who.freeze()
        began = now()
        self._frozen.append(
            _Freeze(
                who,
                began,
                began + int(length * self._ttl_ns),
                eager=hunted or self._chance(_EAGER),
                hunted=hunted,
                through=self._through_of_others(who),
            )
        )

    def note_self_stops(self) -> None:
        """Take note of processes that have stopped themselves, in the middle of a call."""
        for who, notice in self._words:
            if notice.heard() and not who.frozen and not who.ended:
                who.frozen = True
                began = now()
                until = began + int(self._choices.uniform(*self._patience) * self._ttl_ns)
                through = self._through_of_others(who)
                self._frozen.append(
                    _Freeze(who, began, until, eager=True, hunted=True, through=through)
                )
                self._self_stopped.add(who.process)

    @property
    def self_stops(self) -> bool:
        """Whether enough others are left to take over from one that stops itself."""
        free = [each for each in self._workers if not each.frozen and self._is_up(each)]
        return len(free) > self._least

    def nudge(self) -> None:
        """Let everybody go on who is not to be stopped: a trap may have closed late."""
        for each in self._workers:
            if not each.frozen and not each.ended:
                each.thaw()

    def wait_for(self, who: WorkerProcess, seconds: float) -> bool:
        """Wait until somebody has ended by himself; return whether he did, in so many seconds.

        A call that goes on may yet be stopped by a trap, which nobody looks for any more.
        """
        until = time.monotonic() + seconds
        while not who.wait(min(_NUDGE_S, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            self.nudge()
        return True

    def _chance(self, probability: float) -> bool:
        return self._choices.random() < probability

    @property
    def targets(self) -> tuple[str, ...]:
        """The runs that hunted processes are kept from."""
        runs = [each.targets for each in self._frozen if each.hunted and each.targets]
        return tuple(sorted(frozenset[str]().union(*runs)))

    def _is_up(self, who: WorkerProcess) -> bool:
        """Whether its present life has begun to do something."""
        return not who.ended and self._progress.lives.get(who.process) == who.life

    def _through_of_others(self, who: WorkerProcess) -> int:
        return sum(
            self._progress.through[each.process] for each in self._workers if each is not who
        )

    def _is_over(self, freeze: _Freeze, instant: int) -> bool:
        who = freeze.who
        if who.ended or instant >= freeze.until:
            return True
        if who in self._background:
            return False
        if freeze.eager and self._is_taken(freeze):
            return True
        if not self._suspects and self._holds_all_up(freeze, instant):
            self._suspects.append((freeze, instant))
            return True
        return False

    def _is_taken(self, freeze: _Freeze) -> bool:
        process, looked = freeze.who.process, self._progress.looked
        if freeze.targets is None:
            # What it had reported before it was stopped has been read by now.
            busy = self._progress.busy_with(process)
            freeze.targets = frozenset(busy or self._progress.held_by(process))
        return bool(freeze.targets) and all(
            run_id in looked and looked[run_id][0] != process and looked[run_id][1] > freeze.began
            for run_id in freeze.targets
        )

    def _confirm(self, instant: int) -> None:
        """Count a stop as one inside a commit when the others went on as soon as it was over."""
        for entry in list(self._suspects):
            freeze, thawed = entry
            if self._through_of_others(freeze.who) != freeze.through:
                self._suspects.remove(entry)
                self._recorder.fault("stopped-in-commit", freeze.who.process, freeze.began, thawed)
            elif instant - thawed > _CONFIRMED_WITHIN:
                self._suspects.remove(entry)

    def _holds_all_up(self, freeze: _Freeze, instant: int) -> bool:
        """Whether every other process waits in a call, and nothing has gone through since."""
        if instant - freeze.began < _LOOK_AFTER:
            return False
        if self._through_of_others(freeze.who) != freeze.through:
            freeze.through = -1
            return False
        stopped = {each.who.process for each in self._frozen}
        running = [each for each in self._workers if each.process not in stopped and not each.ended]
        waits = [self._progress.waits_since(each.process) for each in running]
        return bool(waits) and all(
            since is not None and instant - since > _WAITING_FOR for since in waits
        )

    # --- kills --------------------------------------------------------------------------------

    def _kill(self, instant: int) -> None:
        pause = self._choices.expovariate(1 / _KILL_PAUSE_MS) * self._rarer("<kills>", " killed")
        self._next_kill = instant + int(pause * _MS)
        free = [
            each
            for each in self._workers
            if self._is_up(each) and self._progress.held_by(each.process)
        ]
        if not free:
            self._next_kill = instant + self._ttl_ns // 4
            return
        who = self._choices.choice(free)
        self._frozen = [each for each in self._frozen if each.who is not who]
        began = now()
        who.kill()
        self._self_stopped.discard(who.process)
        self._recorder.fault("killed", who.process, began, now())
        self.killed.append(who)
