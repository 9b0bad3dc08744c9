"""What the coordinator does to the processes: SIGSTOP, SIGCONT and SIGKILL, chosen by the seed.

A stop may land anywhere, also while a process holds the store's write lock. Then nobody else
comes through, and nobody can take over: a busy store is not what a storm is for. So a stop
under which every other process waits in a call is ended at once, and counted as what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.soak.history import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.conformance.soak.company import Contestant
    from rulvar.conformance.soak.history import Recorder
    from rulvar.conformance.soak.plan import Plan
    from rulvar.conformance.soak.progress import Progress

__all__ = ["Faults"]

_MS = 1_000_000
_LOOK_AFTER = 12 * _MS
_WAITING_FOR = 10 * _MS
_CONFIRMED_WITHIN = 60 * _MS
_PAUSE_MS = 30.0
_SHORT = 0.2
_EAGER = 0.6
_BYSTANDER = 0.03
_KILL_PAUSE_MS = 1_500.0


@dataclass(slots=True)
class _Freeze:
    """One stop: whom, since when, until when at most, and whether a takeover ends it."""

    who: Contestant
    began: int
    until: int
    eager: bool
    through: int


class Faults:
    """Chooses whom to stop and to kill, and when to let him go on."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        progress: Progress,
        contestants: Sequence[Contestant],
        bystanders: Sequence[Contestant],
    ) -> None:
        self._choices = plan.choices(0)
        self._ttl_ns = plan.lease_ttl_ms * _MS
        self._recorder = recorder
        self._progress = progress
        self._contestants = contestants
        self._bystanders = bystanders
        self._frozen: list[_Freeze] = []
        self._suspects: list[tuple[_Freeze, int]] = []
        self._least = (len(contestants) + 1) // 2
        self._next_stop = now() + self._ttl_ns
        self._next_kill = now() + 4 * self._ttl_ns
        self.frozen: dict[str, tuple[int, int]] = {}
        """From when to when each process was stopped last: told before it goes on."""
        self.killed: list[Contestant] = []
        """Whose life was just ended: to be begun again."""

    def turn(self) -> list[Contestant]:
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

    def thawed(self, who: Contestant) -> None:
        """Take note that a process goes on."""
        began, ended = self.frozen[str(who.process)]
        kind = "stopped" if who in self._contestants else "bystander-stopped"
        self._recorder.fault(kind, who.process, began, ended)

    def end(self) -> list[Contestant]:
        """Return everybody who is still stopped."""
        frozen, self._frozen = self._frozen, []
        instant = now()
        for each in frozen:
            self.frozen[str(each.who.process)] = (each.began, instant)
        return [each.who for each in frozen]

    # --- stops --------------------------------------------------------------------------------

    def _stop(self, instant: int) -> None:
        pause = self._choices.expovariate(1 / _PAUSE_MS)
        self._next_stop = instant + int(pause * _MS)
        bystander = self._choices.random() < _BYSTANDER
        free = [
            each
            for each in (self._bystanders if bystander else self._contestants)
            if not each.frozen and self._is_up(each)
        ]
        if not free or (not bystander and len(free) <= self._least):
            return
        who = self._choices.choice(free)
        if bystander:
            length = self._choices.uniform(0.05, 0.5)
        elif self._choices.random() < _SHORT:
            length = self._choices.uniform(0.01, 0.5)
        else:
            length = self._choices.uniform(1.1, 2.0)
        who.freeze()
        began = now()
        self._frozen.append(
            _Freeze(
                who,
                began,
                began + int(length * self._ttl_ns),
                self._choices.random() < _EAGER,
                self._through_of_others(who),
            )
        )

    def _is_up(self, who: Contestant) -> bool:
        """Whether its present life has begun to do something."""
        return not who.ended and self._progress.lives.get(who.process) == who.life

    def _through_of_others(self, who: Contestant) -> int:
        return sum(
            self._progress.through[each.process] for each in self._contestants if each is not who
        )

    def _is_over(self, freeze: _Freeze, instant: int) -> bool:
        who = freeze.who
        if who.ended or instant >= freeze.until:
            return True
        if who in self._bystanders:
            return False
        if freeze.eager and self._progress.taken_from.get(who.process, 0) > freeze.began:
            return True
        if not self._suspects and self._holds_all_up(freeze, instant):
            self._suspects.append((freeze, instant))
            return True
        return False

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
        running = [
            each for each in self._contestants if each.process not in stopped and not each.ended
        ]
        waits = [self._progress.waits_since(each.process) for each in running]
        return bool(waits) and all(
            since is not None and instant - since > _WAITING_FOR for since in waits
        )

    # --- kills --------------------------------------------------------------------------------

    def _kill(self, instant: int) -> None:
        pause = self._choices.expovariate(1 / _KILL_PAUSE_MS)
        self._next_kill = instant + int(pause * _MS)
        free = [
            each
            for each in self._contestants
            if self._is_up(each) and self._progress.holds(each.process)
        ]
        if not free:
            self._next_kill = instant + self._ttl_ns // 4
            return
        who = self._choices.choice(free)
        self._frozen = [each for each in self._frozen if each.who is not who]
        began = now()
        who.kill()
        self._recorder.fault("killed", who.process, began, now())
        self.killed.append(who)
