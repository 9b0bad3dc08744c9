"""What one worker process does, until it is told to end or is killed.

It fights for runs, works on those that it was granted, and keeps using every lease that has died:
under a tenure that was stopped, put to sleep, seized or given back it attempts every mutation, as
a holder does that has not noticed. What it does to itself is in `local_faults`.

All its mutations come from one thread, one after the other; renewals come from a second one,
as a worker's do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.soak.client import MutationCall, RecordingClient
from rulvar.conformance.soak.forks import Forks
from rulvar.conformance.soak.history import FORKED, Recorder, now
from rulvar.conformance.soak.leases import DeadLeasePool, Renewals, Tenure, inherit, mutation_of
from rulvar.conformance.soak.local_faults import SelfStop, WrongClock, block, stall
from rulvar.conformance.soak.orders import OrdersFile
from rulvar.core.errors import StoreBusyError
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rulvar.conformance.soak.client import Answer, Within
    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.orders import Orders, WorkerConfig
    from rulvar.core.stores import Stores

__all__ = ["OPERATOR", "storm"]

OPERATOR = "operator-"
"""How the owner string of whoever seizes a live lease begins."""

_LIVE = 3
_FEW = 4
_SWITCH_S = 0.000_01
_MISFORTUNES = ("stalled", "blocked", "clock", "seized", FORKED)
_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})
_OF_SEIZURES = ("seize ", "seize_over ", " seized", "seize overtaken", "seize_over overtaken")
_WEIGHTS: dict[Operation, float] = {
    "append": 6,
    "put_meta": 2,
    "put_blob": 2,
    "delete_blob": 1,
    "renew": 0.5,
    "renew_all": 0.5,
}


def storm(stores: Stores, tell: Callable[[object], None], config: WorkerConfig) -> None:
    """Storm until the end is ordered: what the kit's child process is asked to run."""
    del tell  # everything is said in the report
    worker = _Worker(stores, config)
    try:
        worker.run()
    finally:
        worker.close()


class _Worker:
    def __init__(self, stores: Stores, config: WorkerConfig) -> None:
        self._plan = config.plan
        self._matrix = config.matrix
        self._folder = Path(config.folder)
        self._process = config.process
        self._life = config.life
        self._ttl_ns = config.plan.lease_ttl_ms * 1_000_000
        self._owner = f"w{config.process}"
        self._choices = config.choices()
        self._recorder = Recorder(self._folder, config.process, config.life)
        self._client = RecordingClient(stores, self._recorder, blobs=config.matrix.blobs)
        self._forks = Forks(stores, config)
        self._clock = WrongClock(self._recorder, config.process, self._choices)
        self._orders_file = OrdersFile(self._folder)
        self._orders: Orders = self._orders_file.look()
        self._live: list[Tenure] = []
        self._asleep: list[tuple[int, int, Tenure]] = []
        self._dead = DeadLeasePool(config.matrix, self._choices, config.process)
        self._held_since: dict[str, int] = {}
        self._not_before: dict[str, int] = {}
        self._deletions = [f"{op} overtaken" for op in config.matrix.deletes]
        self._next_local_fault = 0
        self._renewals = Renewals(self._folder, self._ttl_ns / 4e9, self._renew_all)
        self._self_stop = SelfStop(self._folder, config.process)
        self._trapped_at = 0

    def run(self) -> None:
        """Storm until the end is ordered."""
        self._inherit()
        self._plan_local_fault()
        self._renewals.start()
        self._self_stop.start()
        # A thread that wants to go on does so soon: whatever lies between two steps gets wider.
        sys.setswitchinterval(_SWITCH_S)
        while self._turn():
            self._renewals.check()

    def close(self) -> None:
        """End the other threads, then the report."""
        self._self_stop.end()
        self._renewals.end()
        self._recorder.close()

    def _turn(self) -> bool:
        self._orders = self._orders_file.look()
        if self._orders.ending:
            return False
        self._notice_freeze()
        if self._clock.turn_back():
            self._mark_live("clock")
        instant = now()
        self._wake(instant)
        if instant >= self._next_local_fault:
            self._local_fault()
        elif self._is_thin("seize overtaken", "seize_over overtaken") and self._chance(0.04):
            self._seize(self._choices.choice(self._orders.runs))
        elif self._take_targets(instant):
            pass
        elif self._dead.in_burst and self._chance(min(0.8, self._orders.dead_share + 0.25)):
            self._continue_burst()
        elif self._chance(self._orders.dead_share):
            self._attempt_dead()
        else:
            self._work(instant)
        return True

    def _chance(self, probability: float) -> bool:
        return self._choices.random() < probability

    def _inherit(self) -> None:
        if self._life == 1:
            return
        for each in inherit(self._folder, self._process, self._life - 1):
            tenure = self._tenure(each.lease)
            tenure.death = "killed"
            try:
                look = None if each.looked else self._client.look(each.lease)
            except StoreBusyError:
                continue  # nobody knows what is there, so the lease is not used
            if look is not None:
                tenure.tail = look.tail
            # Some go on at once, under a lease that may still be live; some wait.
            wait = self._choices.choice((0.0, 0.0, 0.6, 1.2))
            instant = now()
            self._asleep.append((instant + int(wait * self._ttl_ns), instant, tenure))

    def _notice_freeze(self) -> None:
        frozen = self._orders.frozen.get(str(self._process))
        if frozen is None:
            return
        for tenure in self._known():
            tenure.mark_if_run_out("stopped", self._ttl_ns, *frozen)
        for tenure in [each for each in self._live if each.death == "stopped"]:
            self._retire(tenure, self._choices.randrange(8, 24))

    def _known(self) -> list[Tenure]:
        asleep = (tenure for _, _, tenure in self._asleep)
        return [*self._live, *asleep, *self._dead.unaware()]

    def _mark_live(self, death: str) -> None:
        for tenure in self._live:
            tenure.death = tenure.death or death

    def _wake(self, instant: int) -> None:
        for entry in [each for each in self._asleep if each[0] <= instant]:
            self._asleep.remove(entry)
            _, since, tenure = entry
            tenure.mark_if_run_out("stalled", self._ttl_ns, since, instant)
            if self._matrix.revives and self._chance(0.6):
                self._revive(tenure)
            self._retire(tenure, self._choices.randrange(8, 24))

    # --- taking runs --------------------------------------------------------------------------

    def _tenure(self, lease: Lease) -> Tenure:
        ops = [op for op in _WEIGHTS if op in self._matrix.surfaces]
        some = [op for op in ops if self._chance(0.6)] or ["append"]
        return Tenure(
            lease,
            lease.run_id in self._orders.side_runs,
            now(),
            weights={op: _WEIGHTS[op] for op in some},
            until=now() + int(self._choices.uniform(0.1, 0.7) * self._ttl_ns),
            death="clock" if self._clock.wrong else "",
        )

    def _begin(self, lease: Lease) -> None:
        """Look at a run that was just granted, and work on it from then on."""
        tenure = self._tenure(lease)
        self._held_since.pop(lease.run_id, None)
        try:
            look = self._client.look(lease)
        except StoreBusyError:
            return  # it may be live, and must not be used: let it run out
        if look is None:
            self._retire(tenure, 4)
            return
        tenure.tail = look.tail
        tenure.blobs = set(look.blobs)
        self._live.append(tenure)

    def _take(self, instant: int) -> None:
        side = self._chance(self._wish(*self._deletions, usual=0.35) if self._deletions else 0)
        mine = {tenure.lease.run_id for tenure in self._live}
        mine |= {tenure.lease.run_id for _, _, tenure in self._asleep}
        # Now and then it asks for what it has: no lease is granted twice.
        again = self._chance(0.02)
        runs = self._orders.side_runs if side else self._orders.runs
        free = [
            run_id
            for run_id in runs
            if (again or run_id not in mine) and self._not_before.get(run_id, 0) <= instant
        ]
        if not free:
            self._attempt_dead()
            return
        run_id = self._choices.choice(free)
        answer = self._client.acquire(run_id, self._owner, self._in_danger("acquire"))
        if answer.granted is not None:
            self._begin(answer.granted)
            return
        wait = self._choices.uniform(0.01, 0.1)
        self._not_before[run_id] = now() + int(wait * self._ttl_ns)
        since = self._held_since.setdefault(run_id, instant)
        if answer.reason == "held" and run_id not in mine:
            stuck = instant - since > 4 * self._ttl_ns
            if stuck or self._chance(self._wish(*_OF_SEIZURES, usual=0.03)):
                self._seize(run_id)

    def _take_targets(self, instant: int) -> bool:
        """Take over what somebody was stopped in the middle of; return whether there was."""
        targets = [
            run_id
            for run_id in self._orders.targets
            if self._not_before.get(run_id, 0) <= instant
            and all(run_id != tenure.lease.run_id for tenure in self._live)
        ]
        if not targets or self._chance(0.3):
            return False
        run_id = self._choices.choice(targets)
        self._not_before[run_id] = instant + int(0.1 * self._ttl_ns)
        if not self._seize(run_id):
            answer = self._client.acquire(run_id, self._owner, self._in_danger("acquire"))
            if answer.granted is not None:
                self._begin(answer.granted)
        return True

    def _wish(self, *names: str, usual: float) -> float:
        """Return a probability that is larger when one of these is thin."""
        return min(0.7, usual * 6) if self._is_thin(*names) else usual

    def _is_thin(self, *names: str) -> bool:
        return any(name in self._orders.thin for name in names)

    def _seize(self, run_id: str) -> bool:
        """Take a live lease away, as an operator; return whether there was one to take."""
        if not self._matrix.seizes:
            return False
        info = self._client.present(run_id)
        if info is None or not info.live or info.owner == self._owner:
            return False
        op: Operation = self._choices.choice(("seize", "seize_over"))
        over = Lease(run_id=run_id, owner=info.owner, epoch=info.epoch)
        answer = self._client.seize(
            run_id,
            f"{OPERATOR}{self._process}",
            self._in_danger(op),
            over=over if op == "seize_over" else None,
        )
        if answer.granted is not None:
            self._begin(answer.granted)
        return True

    # --- working ------------------------------------------------------------------------------

    def _work(self, instant: int) -> None:
        if not self._live or (len(self._live) < _LIVE and self._chance(0.15)):
            self._take(instant)
            return
        tenure = self._choices.choice(self._live)
        thin = self._thin_endings(tenure)
        if thin and self._chance(0.3 if len(self._orders.thin) > _FEW else 0.6):
            self._make(tenure, self._choices.choice(thin))
        elif instant < tenure.until:
            self._make(tenure, self._pick(tenure.weights))
        else:
            self._finish(tenure, instant)

    def _thin_endings(self, tenure: Tenure) -> list[Operation]:
        """Return the endings of a tenure of which there were too few so far."""
        endings: tuple[Operation, ...] = ("release",)
        if tenure.side:
            endings += self._matrix.deletes
        thin = self._orders.thin
        return [op for op in endings if f"{op} " in thin or f"{op} overtaken" in thin]

    def _pick(self, weights: Mapping[Operation, float]) -> Operation:
        thin = self._orders.thin
        shares = [
            weights[op] * (4 if f"{op} " in thin or f"{op} overtaken" in thin else 1)
            for op in weights
        ]
        return self._choices.choices(list(weights), shares)[0]

    def _finish(self, tenure: Tenure, instant: int) -> None:
        deletes, sleepy = self._matrix.deletes, "revive overtaken" in self._orders.thin
        if tenure.side and deletes and self._chance(0.6):
            self._make(tenure, self._choices.choice(deletes))
        elif self._clock.ahead or self._chance(0.2 if sleepy else 0.5):
            if self._chance(0.5):  # as a segment that stops in order: its row first
                self._make(tenure, "put_meta")
            if tenure in self._live:
                self._make(tenure, "release")
        elif self._chance(0.9 if sleepy else 0.6):
            # It sleeps while others work: nobody renews it.
            self._live.remove(tenure)
            wait = self._choices.uniform(1.02, 1.2 if sleepy else 2.0)
            until = tenure.renewed_at + int(wait * self._ttl_ns)
            self._asleep.append((until, instant, tenure))
        else:
            tenure.until = instant + int(self._choices.uniform(0.5, 1.5) * self._ttl_ns)

    def _mutation(self, tenure: Tenure, *, far: bool = False) -> MutationCall:
        return mutation_of(tenure, self._choices, far=far)

    def _make(self, tenure: Tenure, op: Operation) -> None:
        """Make one mutation under a lease that it believes to be live."""
        mutation, danger = self._mutation(tenure), True
        if op == "delete_blob":
            # What is not there can be deleted too late by anybody, and nobody will see it.
            danger = bool(tenure.blobs) and self._chance(0.9)
            if danger:
                mutation = mutation._replace(target=self._choices.choice(sorted(tenure.blobs)))
            elif self._chance(0.8):
                op = "put_blob"
        answer = self._client.attempt(op, mutation, self._in_danger(op) if danger else None)
        self._learn(tenure, op, mutation, answer)
        if answer.outcome == "refused":
            self._lose(tenure, answer)

    def _in_danger(self, op: Operation) -> Within:
        """Return what may stop the process in the middle of a call, if too few of its kind were."""
        part = None
        instant = now()
        if (
            self._orders.self_stops
            and f"{op} overtaken" in self._orders.thin
            and instant - self._trapped_at > self._ttl_ns // 32
            and self._chance(0.9)
        ):
            self._trapped_at = instant
            part = 4 * self._choices.random() ** 2
        return lambda call: self._self_stop.during(op, part, call)

    def _learn(self, tenure: Tenure, op: Operation, mutation: MutationCall, answer: Answer) -> None:
        if answer.reason == "order":
            # Somebody has written above it: under a live lease that is for the checker.
            tenure.tail = max(tenure.tail + (1 << 33), answer.tail or 0)
        elif op == "append" and answer.outcome in {"landed", "unknown"}:
            tenure.tail = mutation.seq
        elif not answer.landed:
            return
        elif op in {"renew", "renew_all"}:
            tenure.renewed_at = now()
        elif op == "put_blob":
            tenure.blobs.add(mutation.target)
        elif op == "delete_blob":
            tenure.blobs.discard(mutation.target)
        elif op in _ENDINGS:
            tenure.death = "released" if op == "release" else "deleted"
            self._retire(tenure, self._choices.randrange(2, 8))

    def _lose(self, tenure: Tenure, answer: Answer) -> None:
        """Learn that a lease is dead, and why where that can be told."""
        if answer.reason == "superseded" and not tenure.death:
            info = None if answer.holder else self._client.present(tenure.lease.run_id)
            if (answer.holder if info is None else info.owner).startswith(OPERATOR):
                tenure.death = "seized"
        if answer.reason == "expired" and self._matrix.revives:
            self._revive(tenure)
        self._retire(tenure, self._choices.randrange(6, 16))

    def _retire(self, tenure: Tenure, strikes: int) -> None:
        """Keep a dead tenure, which goes on all the same."""
        if tenure in self._live:
            self._live.remove(tenure)
        tenure.retired_at = tenure.retired_at or now()
        self._dead.add(tenure, strikes)

    # --- striking -----------------------------------------------------------------------------

    def _continue_burst(self) -> None:
        self._attempt_with(self._dead.next_in_burst())

    def _attempt_dead(self) -> None:
        """Strike with some dead, forged or foreign lease."""
        death = self._dead.kind(self._orders.thin)
        tenure = self._dead.some(death)
        if tenure is not None:
            self._attempt_with(tenure)
            return
        known = self._live or self._dead.everybody()
        if not known:
            self._take(now())
            return
        tenure = self._choices.choice(known)
        mutation = self._mutation(tenure, far=True)._replace(death=death)
        if death == "forged":
            mutation = mutation._replace(lease=self._dead.forge(tenure.lease))
        else:
            others = [each for each in self._orders.runs if each != tenure.lease.run_id]
            if not self._live or not others:
                return
            mutation = mutation._replace(run_id=self._choices.choice(others))
        self._client.attempt(self._dead.surface(death, self._orders.thin), mutation)

    def _attempt_with(self, tenure: Tenure) -> None:
        """Strike with a tenure that is dead, as far as anybody knows."""
        op = self._dead.surface(tenure.death, self._orders.thin)
        mutation = self._mutation(tenure, far=True)
        answer = self._client.attempt(op, mutation)
        if answer.granted is not None:
            self._begin(answer.granted)
        elif answer.landed and op in _ENDINGS:
            # It was alive: its process was killed and came back, or its clock is wrong.
            self._dead.forget(tenure)
            self._learn(tenure, op, mutation, answer)
        elif answer.landed:
            self._learn(tenure, op, mutation, answer)

    def _revive(self, tenure: Tenure) -> None:
        """Ask for the next epoch of a lease that has run out, before somebody else does."""
        mutation = self._mutation(tenure)
        answer = self._client.attempt("revive", mutation, self._in_danger("revive"))
        if answer.granted is not None:
            self._begin(answer.granted)

    # --- local faults ---------------------------------------------------------------------------

    def _plan_local_fault(self) -> None:
        pause = self._choices.expovariate(1.0) * 2
        if not any(f" {kind}" in self._orders.thin for kind in _MISFORTUNES):
            pause *= 4
        self._next_local_fault = now() + int(pause * self._ttl_ns)

    def _local_fault(self) -> None:
        thin = self._orders.thin
        shares = [5 if f" {kind}" in thin else 1 for kind in _MISFORTUNES]
        kind = self._choices.choices(_MISFORTUNES, shares)[0]
        length_s = self._plan.lease_ttl_ms / 1000 * self._choices.uniform(1.05, 1.8)
        if kind == "seized":
            for run_id in self._choices.sample(self._orders.runs, min(3, len(self._orders.runs))):
                if all(run_id != tenure.lease.run_id for tenure in self._live):
                    self._seize(run_id)
        elif kind == "clock":
            if not self._clock.wrong:
                self._clock.turn(self._ttl_ns)
                self._mark_live("clock")
        elif self._live:
            self._be_away(kind, length_s)
        self._plan_local_fault()

    def _be_away(self, kind: str, length_s: float) -> None:
        """Fork, sleep, or keep every other thread from running, while runs are held."""
        if kind == FORKED:
            began, ended = self._forks.fork(self._choices.choice(self._live).lease)
        elif kind == "stalled":
            with self._renewals.away():
                began, ended = stall(length_s)
        else:
            began, ended = block(length_s)
        self._recorder.fault(kind, self._process, began, ended)
        for tenure in list(self._live) if kind != FORKED else ():
            tenure.mark_if_run_out(kind, self._ttl_ns, began, ended)
            if tenure.death == kind:
                self._retire(tenure, self._choices.randrange(8, 24))

    def _renew_all(self, orders: Orders) -> None:
        """Renew what is live: from the second thread."""
        frozen = orders.frozen.get(str(self._process))
        live = tuple(self._live)
        for tenure in live:
            if frozen is not None:
                tenure.mark_if_run_out("stopped", self._ttl_ns, *frozen)
        # Its first thread learns of a refusal by itself.
        answers = self._client.renew_many(
            [MutationCall(each.lease.run_id, each.lease, each.death, 0, 0, "", 0) for each in live]
        )
        for tenure, answer in zip(live, answers, strict=True):
            if answer.landed:
                tenure.renewed_at = now()
