"""What the model knows: values only, small enough to be compared and counted.

A state is the store (its runs), the owners' memory (every lease that each was ever granted: a
zombie tries them all) and the calls in flight. Numbers stand for names: run 0 is the run that
everything is about, run 1 the other one; owners count from 0, and ``OPERATOR`` is whoever
writes without a lease. Two states are the same exactly when no call can tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rulvar.core.formatting import counted
from rulvar.core.mutations import Mutation

__all__ = [
    "ABSENT",
    "CLOCK",
    "EXPIRED",
    "MUTATIONS",
    "NOBODY",
    "OPERATOR",
    "OWNERS",
    "RENEWED",
    "RUNS",
    "STALE",
    "WRITES",
    "Action",
    "Answer",
    "Bounds",
    "Call",
    "LeaseRow",
    "LeaseValue",
    "Phase",
    "Run",
    "State",
]

Call = Mutation | Literal["raise_epoch", "time"]
MUTATIONS: tuple[Call, ...] = (
    "append",
    "put_meta",
    "put_blob",
    "delete_blob",
    "delete",
    "delete_whole_run",
    "renew",
    "release",
)
"""The calls of the fence table: what a lease lets through, and a dead one must not."""

WRITES: tuple[Call, ...] = MUTATIONS[:6]
"""Those of them that name a run beside the lease, which may be of another."""

Phase = Literal["call", "begin", "commit", "crash"]
"""A call as one unit, or in two steps: its check, and its write; or its death between them."""

OWNERS = ("ann", "bob", "cyd", "dan")
RUNS = ("run", "other")
OPERATOR = -1
CLOCK = -2
STALE = 1
EXPIRED = 2
"""The age of a lease in halves of its time to live: 0 and 1 are live."""

RENEWED = "renewed"
"""What a `renew_all` says of a lease that it has not refused."""

ABSENT = -1
NOBODY = 0
"""The epoch that stands under what was written without a lease; granted epochs begin at 1."""


class LeaseValue(NamedTuple):
    """A lease as a caller offers it: true, dead or forged; the store judges by its own rows."""

    run: int
    owner: int
    epoch: int


class LeaseRow(NamedTuple):
    """The store's lease row of a run."""

    owner: int
    epoch: int
    age: int


class Run(NamedTuple):
    """One run in the store.

    ``high`` is the tombstone, 0 where there is none. The journal is the epochs under which its
    records were written; ``meta`` and ``blob`` are the epoch of the last write, or `ABSENT`.
    """

    high: int = 0
    row: LeaseRow | None = None
    journal: tuple[int, ...] = ()
    meta: int = ABSENT
    blob: int = ABSENT

    def visible(self) -> tuple[object, ...]:
        """Return what a reader can see: everything but the tombstone."""
        return self[1:]


class Action(NamedTuple):
    """One step of the interleaving: ``actor`` does something, or the clock moves.

    ``lease`` is the one that is offered, for `seize` the one that it is over; ``leases`` are
    those of a `renew_all`.
    ``more`` is `STALE` for an append whose seq is the tail's; what `raise_epoch` asks for; how
    many halves of a time to live pass (below 0: the clock is set back). A call in flight whose
    two steps are not one unit keeps there what its first step read.
    """

    call: Call
    actor: int
    run: int
    lease: LeaseValue | None = None
    more: int = 0
    phase: Phase = "call"
    leases: tuple[LeaseValue, ...] = ()

    @property
    def grantee(self) -> int:
        """Whom a grant is for: a revived lease keeps its owner, whoever offers it."""
        return self.lease.owner if self.call == "revive" and self.lease is not None else self.actor


class Answer(NamedTuple):
    """What came back: a grant with its epoch, a refusal with its reason, or neither.

    The reason of a landed `renew_all` says of each lease, in order, why it was refused.
    """

    word: Literal["granted", "landed", "refused", "out of order", "begun", "died", "passed"]
    epoch: int = 0
    reason: str = ""


class State(NamedTuple):
    """Everything: the store, each owner's leases, and the calls in flight.

    ``flying`` has a place for each owner and, last, which is `OPERATOR`, one for the operator.
    """

    runs: tuple[Run, ...]
    known: tuple[tuple[LeaseValue, ...], ...]
    flying: tuple[Action | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far the model goes: everything within these numbers is explored, nothing beyond.

    ``epochs`` and ``things`` (records, rows and blobs that a run has at once) are for each run;
    ``flights`` is how many calls may be between their two steps at once. ``calls`` are those
    that are made. The second of two runs is there to lend its leases: it is acquired
    ``other_epochs`` times, released, and its leases run out; nothing is written to it.
    ``forged`` says whether leases are tried that nobody was granted.
    """

    owners: int = 2
    runs: int = 1
    epochs: int = 2
    other_epochs: int = 1
    things: int = 1
    flights: int = 1
    forged: bool = True
    calls: frozenset[Call] = frozenset(
        (*MUTATIONS, "renew_all", "revive", "acquire", "seize", "raise_epoch", "time")
    )

    def start(self) -> State:
        """Return the state before anything happened."""
        return State(
            runs=tuple(Run() for _ in range(self.runs)),
            known=tuple(() for _ in range(self.owners)),
            flying=tuple(None for _ in range(self.owners + 1)),
        )

    def hold(self, state: State) -> bool:
        """Whether the state is within the bounds."""
        first = state.runs[0]
        things = len(first.journal) + (first.meta != ABSENT) + (first.blob != ABSENT)
        if first.high > self.epochs or things > self.things:
            return False
        return all(run.high <= self.other_epochs for run in state.runs[1:])

    def words(self) -> str:
        """Return the bounds as a line for people."""
        return (
            f"{counted(self.owners, 'owner')}, {counted(self.runs, 'run')}, "
            f"{counted(self.epochs, 'epoch')}, {self.things} stored, {self.flights} in flight"
        )
