"""The tenures of one process: live ones, dead ones that it goes on with, and who renews them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulvar.conformance.soak.client import MutationCall
from rulvar.conformance.soak.coverage import ABOUT_LEASE
from rulvar.conformance.soak.history import (
    GRANTS,
    Attempt,
    Returned,
    Seen,
    events_of,
    report_name,
)
from rulvar.conformance.soak.orders import OrdersFile
from rulvar.core.records import Lease

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.history import AttemptId, Operation
    from rulvar.conformance.soak.orders import Orders

__all__ = ["DeadLeasePool", "Inherited", "Renewals", "Tenure", "inherit", "mutation_of"]

_BLOBS = ("turn", "state", "deep/er")
_SOME_SIZE, _LARGE, _GAPS = 0.2, 0.1, 0.6
_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})


@dataclass(slots=True, eq=False)
class Tenure:
    """A lease, and what its holder knows of the run.

    ``renewed_at`` is the latest instant at which the lease is known to have been extended;
    ``weights`` says how often each mutation is made in this tenure, some never: what a dead
    tenure has slipped in must not be covered by the next write at once. ``until`` is when the
    holder means to be done, ``retired_at`` when he learned that it was dead. Instants are
    monotonic nanoseconds.
    """

    lease: Lease
    side: bool
    renewed_at: int
    tail: int = -1
    blobs: set[str] = field(default_factory=set)
    weights: Mapping[Operation, float] = field(default_factory=dict)
    until: int = 0
    death: str = ""
    retired_at: int = 0
    count: int = 0

    def mark_if_run_out(self, death: str, ttl_ns: int, began: int, ended: int) -> None:
        """Say what befell it, if its lease ran out in that time, and not before it."""
        runs_out = self.renewed_at + ttl_ns
        if (
            not self.death
            and self.renewed_at <= began < runs_out <= ended
            and not 0 < self.retired_at < began
        ):
            self.death = death


def mutation_of(tenure: Tenure, choices: random.Random, *, far: bool) -> MutationCall:
    """Return the next mutation of a tenure; a ``far`` one is above whatever anybody wrote."""
    size = 0
    if choices.random() < _SOME_SIZE:
        size = choices.randrange(1, 400_000 if choices.random() < _LARGE else 65_536)
    # Gaps are allowed. Without them nothing late could ever land above the tail.
    gap = 1 << choices.randrange(21, 32) if far else 1
    if not far and choices.random() < _GAPS:
        gap = 1 << choices.randrange(1, 20)
    tenure.count += 1
    return MutationCall(
        tenure.lease.run_id,
        tenure.lease,
        tenure.death,
        tenure.count,
        tenure.tail + gap,
        choices.choice(_BLOBS),
        size,
    )


@dataclass(slots=True)
class Inherited:
    """A lease that the life before had when it was killed; ``looked`` once it was looked at."""

    lease: Lease
    looked: bool = False


def inherit(folder: Path, process: int, life: int) -> list[Inherited]:
    """Return the leases that an earlier life had reported, and knew no end of."""
    path = folder / report_name(process, life)
    if not path.exists():
        return []
    found: dict[Lease, Inherited] = {}
    invoked: dict[AttemptId, Attempt] = {}
    for event in events_of(path):
        if isinstance(event, Attempt):
            invoked[event.id] = event
        elif isinstance(event, Returned):
            _take(invoked.pop(event.id).answered(event), found)
        elif isinstance(event, Seen) and event.lease in found:
            found[event.lease].looked = True
    # An ending without an answer may have landed.
    for attempt in invoked.values():
        if attempt.op in _ENDINGS and attempt.lease is not None:
            found.pop(attempt.lease, None)
    return list(found.values())


def _take(attempt: Attempt, found: dict[Lease, Inherited]) -> None:
    op, old = attempt.op, attempt.lease
    if attempt.outcome == "landed" and op in GRANTS and attempt.granted is not None:
        lease = Lease(run_id=attempt.run_id, owner=attempt.grantee, epoch=attempt.granted)
        found[lease] = Inherited(lease)
    elif old is not None and (
        (attempt.outcome == "landed" and op in _ENDINGS)
        or (attempt.outcome == "refused" and op != "revive" and attempt.reason != "foreign-run")
    ):
        found.pop(old, None)


_KEPT = 10
_MOST_WISHED = 30
_FAR = 1_000_000


class DeadLeasePool:
    """Some tenures of each kind of death; those that have just died strike in a burst."""

    def __init__(self, matrix: CoverageMatrix, choices: random.Random, process: int) -> None:
        self._matrix = matrix
        self._choices = choices
        self._forger = f"forger-{process}"
        self._kept: dict[str, deque[Tenure]] = {}
        self._bursts: deque[tuple[Tenure, int]] = deque()

    def add(self, tenure: Tenure, strikes: int) -> None:
        """Keep a dead tenure, and let it strike so many times at once."""
        self._kept.setdefault(tenure.death, deque(maxlen=_KEPT)).append(tenure)
        self._bursts.append((tenure, strikes))

    def forget(self, tenure: Tenure) -> None:
        """Let go of one that was alive after all, and has ended since."""
        for kept in self._kept.values():
            if tenure in kept:
                kept.remove(tenure)

    @property
    def in_burst(self) -> bool:
        """Whether one is in the middle of a burst."""
        return bool(self._bursts)

    def next_in_burst(self) -> Tenure:
        """Return the one whose turn it is."""
        tenure, left = self._bursts.popleft()
        if left > 1:
            self._bursts.append((tenure, left - 1))
        return tenure

    def unaware(self) -> tuple[Tenure, ...]:
        """Return those of which nobody knows what has befallen them."""
        return tuple(self._kept.get("", ()))

    def everybody(self) -> list[Tenure]:
        """Return all of them."""
        return [tenure for kept in self._kept.values() for tenure in kept]

    def kind(self, thin: Mapping[str, int]) -> str:
        """Choose a kind of death to strike with, most often one of which there is too little."""
        kinds = [death for death, kept in self._kept.items() if kept]
        kinds += ["forged", "foreign"]
        wanted = {name.partition(" ")[2] for name in thin}
        return self._choices.choices(kinds, [4 if kind in wanted else 1 for kind in kinds])[0]

    def some(self, death: str) -> Tenure | None:
        """Return some tenure that died of it; None for what is no tenure's death."""
        kept = self._kept.get(death)
        return self._choices.choice(kept) if kept else None

    def surface(self, death: str, thin: Mapping[str, int]) -> Operation:
        """Choose what to strike with, most often what is thin."""
        surfaces = [
            op for op in self._matrix.surfaces if not (death == "foreign" and op in ABOUT_LEASE)
        ]
        shares = [1 + min(_MOST_WISHED, thin.get(f"{op} {death}", 0)) for op in surfaces]
        return self._choices.choices(surfaces, shares)[0]

    def forge(self, lease: Lease) -> Lease:
        """Return a lease that nobody was ever granted."""
        if self._choices.choice((True, False)):
            return Lease(run_id=lease.run_id, owner=self._forger, epoch=lease.epoch)
        return Lease(run_id=lease.run_id, owner=lease.owner, epoch=lease.epoch + _FAR)


class Renewals:
    """Calls ``renew`` every ``every_s`` seconds, unless the process is away."""

    def __init__(self, folder: Path, every_s: float, renew: Callable[[Orders], None]) -> None:
        self._renew = renew
        self._every_s = every_s
        self._orders_file = OrdersFile(folder)
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def away(self) -> threading.Lock:
        """Return what keeps it from renewing while it is held."""
        return self._turn

    def check(self) -> None:
        """Raise what it met."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Renew nothing any more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every_s):
                with self._turn:
                    self._renew(self._orders_file.look())
        except BaseException as error:  # noqa: BLE001 - the first thread raises it
            self._error = error
