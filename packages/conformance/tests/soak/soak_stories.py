"""Histories for the checker: told by hand, one event after another, or simulated over a store."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rulvar.conformance.soak.history import (
    Attempt,
    AttemptId,
    History,
    Seen,
    content_of,
)
from rulvar.core.errors import LeaseHeldError, RulvarError
from rulvar.core.spi import JournalRecord, Lease, RunMeta
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from rulvar.conformance.soak.history import (
        Operation,
        Outcome,
        Stored,
    )


@dataclass
class Story:
    """A history under construction; every event takes one tick."""

    attempts: list[Attempt] = field(default_factory=list)
    looks: list[Seen] = field(default_factory=list)
    tick: int = 0
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def now(self) -> int:
        self.tick += 1
        return self.tick

    def attempt(
        self,
        op: Operation,
        lease: Lease | None,
        *,
        process: int = 1,
        life: int = 1,
        run_id: str = "r",
        target: str = "",
        outcome: Outcome = "landed",
        reason: str = "",
        granted: int | None = None,
        content: str = "",
        death: str = "",
        invoked_at: int | None = None,
    ) -> Attempt:
        number = self.numbers[process, life] = self.numbers.get((process, life), 0) + 1
        made = Attempt(
            id=AttemptId(process, life, number),
            op=op,
            run_id=run_id,
            invoked_at=self.now() if invoked_at is None else invoked_at,
            lease=lease,
            target=target,
            content=content or f"bytes of {process}.{life}.{number}",
            death=death,
            outcome=outcome,
            reason=reason,
            granted=granted,
            returned_at=None if outcome == "unknown" else self.now(),
        )
        self.attempts.append(made)
        return made

    def grant(self, epoch: int, *, process: int = 1, run_id: str = "r") -> Lease:
        owner = f"w{process}"
        self.attempt("acquire", None, process=process, run_id=run_id, target=owner, granted=epoch)
        return Lease(run_id=run_id, owner=owner, epoch=epoch)

    def append(self, lease: Lease, *, process: int = 1, outcome: Outcome = "landed") -> Attempt:
        return self.attempt("append", lease, process=process, run_id=lease.run_id, outcome=outcome)

    def refused(self, op: Operation, lease: Lease, reason: str, *, process: int = 1) -> Attempt:
        return self.attempt(op, lease, process=process, outcome="refused", reason=reason)

    def look(
        self,
        *journal: Attempt | Stored,
        lease: Lease | None = None,
        row: Attempt | None = None,
        blobs: Mapping[str, Attempt] | None = None,
        run_id: str = "r",
    ) -> None:
        self.looks.append(
            Seen(
                run_id=run_id,
                at=self.now(),
                lease=lease,
                journal=tuple(
                    each if isinstance(each, tuple) else stored(each) for each in journal
                ),
                row=None if row is None else stored(row),
                blobs={name: stored(each) for name, each in (blobs or {}).items()},
            )
        )

    def history(self) -> History:
        return History(
            attempts=sorted(self.attempts, key=lambda each: each.invoked_at), seen=self.looks
        )


def stored(attempt: Attempt) -> Stored:
    return (str(attempt.id), attempt.content)


# --- simulated ------------------------------------------------------------------------------

_RUNS = ("a", "b")
_BLOBS = ("one", "two")
_WEIGHTS: dict[Operation, int] = {
    "append": 30,
    "put_meta": 10,
    "put_blob": 10,
    "delete_blob": 5,
    "renew": 5,
    "renew_all": 5,
    "release": 3,
    "delete": 1,
    "delete_whole_run": 1,
}


class Simulation:
    """Several processes over one store object, interleaved by a seed.

    A process is stopped for any time before and after each call, and killed at any of these
    instants. Nothing waits, so it is the same history for the same seed and store.
    """

    def __init__(
        self, seed: int, store: ReferenceStore, clock: ManualClock, *, steps: int = 1_000
    ) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.twin = store.transcripts()
        self.clock = clock
        self.story = Story()
        self._index: dict[AttemptId, int] = {}
        self.seqs = 0
        self.leases: dict[int, list[Lease]] = {1: [], 2: [], 3: []}
        lives = dict.fromkeys(self.leases, 1)
        running = {each: self._process(each, 1) for each in self.leases}
        for _ in range(steps):
            process = self.random.choice(sorted(running))
            if self.random.random() < 0.03:
                running[process].close()
                lives[process] += 1
                running[process] = self._process(process, lives[process])
            next(running[process])
        for each in running.values():
            each.close()
        for run_id in _RUNS:
            self._look(run_id, None)

    def _process(self, process: int, life: int) -> Generator[None, None, None]:
        leases = self.leases[process]
        while True:
            chance = self.random.random()
            if chance < 0.1:
                self.clock.advance(700)
                yield
            elif not leases or chance < 0.25:
                op: Operation = self.random.choice(["acquire", "seize", "seize_over"])
                yield from self._grant(op, process, life)
            else:
                # Mostly the newest; an old one is what a zombie has.
                lease = leases[-1] if chance < 0.8 else self.random.choice(leases)
                yield from self._mutate(lease, process, life)

    def _grant(self, op: Operation, process: int, life: int) -> Generator[None, None, None]:
        run_id = self.random.choice(_RUNS)
        owner = f"w{process}"
        over = None
        if op == "seize_over":
            leases = [each for known in self.leases.values() for each in known]
            over = self.random.choice(leases) if leases else None
            op = "seize" if over is None else op
        made = self._invoke(op, over, process, life, run_id, target=owner)
        yield
        try:
            if op == "acquire":
                lease = self.store.acquire(run_id, owner)
            else:
                lease = self.store.seize(run_id, owner, over=over)
        except LeaseHeldError as error:
            yield
            self._return(made, "refused", reason=error.reason)
            return
        yield
        self._return(made, "landed", granted=lease.epoch)
        yield
        self._look(run_id, lease)
        self.leases[process].append(lease)

    def _mutate(self, lease: Lease, process: int, life: int) -> Generator[None, None, None]:
        op = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        foreign = self.random.random() < 0.1 and op not in {"renew", "renew_all", "release"}
        run_id = next(each for each in _RUNS if (each != lease.run_id) == foreign)
        target = self.random.choice(_BLOBS) if op in {"put_blob", "delete_blob"} else ""
        made = self._invoke(op, lease, process, life, run_id, target=target)
        yield
        try:
            made = self._call(made, lease)
        except LeaseHeldError as error:
            yield
            self._return(made, "refused", reason=error.reason)
            return
        except RulvarError:
            yield
            self._return(made, "nothing")
            return
        yield
        self._return(made, "landed")

    def _call(self, made: Attempt, lease: Lease) -> Attempt:
        ref = f"{made.run_id}/{made.target}"
        if made.op == "append":
            self.seqs += 1
            payload = json.dumps({"seq": self.seqs, "id": str(made.id)}).encode()
            made = self._offer(made, payload)
            record = JournalRecord(seq=self.seqs, payload=payload)
            self.store.append(made.run_id, record, lease=lease)
        elif made.op == "put_meta":
            made = self._offer(made, str(made.id).encode())
            self.store.put_meta(_row(made), lease=lease)
        elif made.op == "put_blob":
            made = self._offer(made, str(made.id).encode())
            self.twin.put(ref, str(made.id).encode(), lease=lease)
        elif made.op == "delete_blob":
            self.twin.delete(ref, lease=lease)
        elif made.op == "renew_all":
            for refusal in self.store.renew_all([lease]):
                raise refusal
        elif made.op in {"renew", "release"}:
            getattr(self.store, made.op)(lease)
        else:
            getattr(self.store, made.op)(made.run_id, lease=lease)
        return made

    def _invoke(
        self,
        op: Operation,
        lease: Lease | None,
        process: int,
        life: int,
        run_id: str,
        *,
        target: str,
    ) -> Attempt:
        made = self.story.attempt(
            op,
            lease,
            process=process,
            life=life,
            run_id=run_id,
            target=target,
            outcome="unknown",
        )
        self._index[made.id] = len(self.story.attempts) - 1
        return made

    def _change(self, made: Attempt, **changes: Any) -> Attempt:
        index = self._index[made.id]
        changed = self.story.attempts[index] = replace(self.story.attempts[index], **changes)
        return changed

    def _offer(self, made: Attempt, data: bytes) -> Attempt:
        return self._change(made, content=content_of(data))

    def _return(
        self, made: Attempt, outcome: Outcome, *, reason: str = "", granted: int | None = None
    ) -> None:
        self._change(
            made,
            outcome=outcome,
            reason=reason,
            granted=granted,
            returned_at=self.story.now(),
        )

    def _look(self, run_id: str, lease: Lease | None) -> None:
        rows = {meta.run_id: meta for meta in self.store.list_runs()}
        row = rows.get(run_id)
        blobs: dict[str, Stored] = {}
        for ref in self.twin.list_refs(run_id):
            data = self.twin.get(ref)
            if data is not None:
                blobs[ref.partition("/")[2]] = (data.decode(), content_of(data))
        self.story.looks.append(
            Seen(
                run_id=run_id,
                at=self.story.now(),
                lease=lease,
                journal=tuple(
                    (json.loads(each.payload)["id"], content_of(each.payload))
                    for each in self.store.load(run_id)
                ),
                row=None
                if row is None
                else (row.name or "", content_of((row.name or "").encode())),
                blobs=blobs,
            )
        )


def _row(made: Attempt) -> RunMeta:
    return RunMeta(
        run_id=made.run_id,
        status="running",
        updated_at="2026-01-01T00:00:00.000Z",
        name=str(made.id),
    )


def simulate(seed: int, broken: type[ReferenceStore] = ReferenceStore) -> History:
    clock = ManualClock()
    return Simulation(seed, broken(clock=clock, lease_ttl_ms=1_000), clock).story.history()
