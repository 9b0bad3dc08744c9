"""What of a pair can be tried, under which deaths, and when enough of it was.

The matrix has a row for each mutation and a column for each death of a tenure. The shortfall is
what is still below its minimum, by name: while there is any, a soak has not passed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from rulvar.conformance.harness.children import Child
from rulvar.conformance.harness.machine_clock import set_offset
from rulvar.conformance.soak.history import FORKED
from rulvar.conformance.soak.plan import DEATHS, FATAL
from rulvar.core.capabilities import (
    has_fenced_journal,
    has_fenced_transcripts,
    has_lease_admin,
    has_lease_batch,
    has_lease_revival,
    has_leases,
    has_whole_run_delete,
)
from rulvar.core.errors import ConfigError, LeaseHeldError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import FullJournal
    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.plan import CoverageGoals, Death
    from rulvar.conformance.soak.progress import Progress
    from rulvar.core.stores import StorePair, Stores

__all__ = [
    "ABOUT_LEASE",
    "Cell",
    "CoverageMatrix",
    "Shortfall",
    "coverage_of",
    "shortfall",
    "thin_names",
    "with_clock",
]

Cell: TypeAlias = "tuple[Operation, Death]"
"""A surface, and the kind of death under which it was tried."""

_HOUR_MS = 3_600_000
_TRULY = 1.5
"""How many times to live are waited for, so that a lease has truly run out."""
_PATIENCE_S = 20.0

ABOUT_LEASE: frozenset[Operation] = frozenset({"renew", "renew_all", "release", "revive"})
"""Their only argument is the lease, so it cannot be one of another run."""


@dataclass(frozen=True, slots=True)
class CoverageMatrix:
    """What one pair offers to a storm.

    ``surfaces`` take a lease; ``grants`` give one out by a run's id alone; ``clocked`` says
    that leases live by the clock of the process that takes them.
    """

    surfaces: tuple[Operation, ...]
    grants: tuple[Operation, ...]
    notes: tuple[str, ...] = ()
    clocked: bool = True

    @property
    def blobs(self) -> bool:
        """Whether blobs are fenced."""
        return "put_blob" in self.surfaces

    @property
    def deletes(self) -> tuple[Operation, ...]:
        """The surfaces that end a run."""
        return tuple(op for op in self.surfaces if op in {"delete", "delete_whole_run"})

    @property
    def seizes(self) -> bool:
        """Whether an operator can take a live lease away."""
        return "seize" in self.grants

    @property
    def revives(self) -> bool:
        """Whether a lease that has run out can be revived."""
        return "revive" in self.surfaces

    @property
    def fatal(self) -> tuple[Death, ...]:
        """The deaths from which somebody takes over."""
        return tuple(death for death in FATAL if death in self.deaths)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Every kind of death that can occur here."""
        missing = set() if self.seizes else {"seized"}
        if not self.deletes:
            missing.add("deleted")
        if not self.clocked:
            missing.add("clock")
        return tuple(death for death in DEATHS if death not in missing)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every surface with every death that it can be tried under."""
        return tuple(
            (op, death)
            for op in self.surfaces
            for death in self.deaths
            if not (death == "foreign" and op in ABOUT_LEASE)
        )


def coverage_of(stores: StorePair) -> CoverageMatrix:
    """Return what a pair offers. Raises `ConfigError` when it has no leases at all."""
    journal, notes = stores.journal, []
    if not has_leases(journal):
        message = (
            f"{type(journal).__name__} has no leases, so a soak has nothing to try: it needs "
            "acquire, renew and release, and an append that takes a lease"
        )
        raise ConfigError(message)
    surfaces: list[Operation] = ["append", "renew", "release"]
    grants: list[Operation] = ["acquire"]
    if has_fenced_journal(journal):
        surfaces += ["put_meta", "delete"]
        if has_whole_run_delete(journal):
            surfaces.append("delete_whole_run")
    else:
        notes.append("rows and deletion are left out: the journal store declares no fence on them")
    if has_fenced_transcripts(stores.transcripts):
        surfaces += ["put_blob", "delete_blob"]
    else:
        notes.append("blobs are left out: the transcript store declares no fence")
    if has_lease_batch(journal):
        surfaces.append("renew_all")
    if has_lease_revival(journal):
        surfaces.append("revive")
    if has_lease_admin(journal):
        surfaces.append("seize_over")
        grants.append("seize")
    else:
        notes.append("no run is seized: the store has no LeaseAdmin")
    return CoverageMatrix(tuple(surfaces), tuple(grants), tuple(notes))


def with_clock(matrix: CoverageMatrix, opener: Opener, run_id: str, ttl_ms: int) -> CoverageMatrix:
    """Return the ground with what another process finds out about the store's clock.

    A clock that is made wrong proves nothing where the store does not look at it: then no
    tenure dies of one. The run leaves a tombstone.
    """
    child = Child()
    patience = threading.Timer(_PATIENCE_S + ttl_ms * _TRULY / 1000, child.kill)
    patience.start()
    try:
        child.open(opener)
        if child.run(_believes, run_id, ttl_ms):
            return matrix
    except Exception:  # noqa: BLE001 - the storm meets it as well, and judges it
        return matrix
    finally:
        patience.cancel()
        child.end()
    note = (
        "no process dies of a wrong clock: the leases do not go by the clock of the process that "
        "takes them"
    )
    return replace(matrix, clocked=False, notes=(*matrix.notes, note))


def _believes(stores: Stores, tell: Callable[[object], None], run_id: str, ttl_ms: int) -> bool:
    """Return whether a lease that was taken an hour ahead outlives its true time."""
    del tell
    journal = cast("FullJournal", stores.journal)
    set_offset(_HOUR_MS)
    try:
        lease = journal.acquire(run_id, "clock")
    finally:
        set_offset(0)
    # True time must pass: whether the store goes by it is what is asked.
    time.sleep(ttl_ms * _TRULY / 1000)
    try:
        lease = journal.acquire(run_id, "clock-true")
    except LeaseHeldError:
        return True
    else:
        return False
    finally:
        journal.release(lease)
        journal.delete(run_id)


@dataclass(frozen=True, slots=True, order=True)
class Shortfall:
    """One number that is below its minimum.

    ``surface`` and ``death`` say which; a name in angle brackets stands for a whole.
    """

    surface: str
    death: str
    have: int
    need: int

    @property
    def missing(self) -> int:
        """How many are missing."""
        return self.need - self.have

    def __str__(self) -> str:
        what = {
            "<accepted>": "accepted mutations",
            "<refused>": "refused mutations",
            "<takeovers>": "takeovers",
            "<stops>": "stops",
            "<kills>": "kills",
        }.get(self.surface)
        if self.death == FORKED:
            what = "forks of a process with its store open"
        if what is None and not self.surface:
            what = f"takeovers from the {self.death}"
        if what is None and not self.death:
            what = f"{self.surface} accepted"
        if what is None and self.death == "overtaken":
            what = f"{self.surface} overtaken in the middle of a call"
        if what is None:
            what = f"{self.surface} refused to the {self.death}"
        return f"{what}: {self.have} of {self.need}"


def shortfall(progress: Progress, matrix: CoverageMatrix, goals: CoverageGoals) -> list[Shortfall]:
    """Return everything that is below its minimum, the thinnest first."""
    faults, takeovers = progress.faults, progress.takeovers
    mutations = sum(progress.accepted[op] for op in matrix.surfaces)
    numbers = [
        Shortfall("<accepted>", "", mutations, goals.accepted),
        Shortfall("<refused>", "", progress.refusals, goals.refused),
        Shortfall("<takeovers>", "", takeovers.total(), goals.takeovers),
        Shortfall("<stops>", "", faults["stopped"], goals.stops),
        Shortfall("<kills>", "", faults["killed"], goals.kills),
        Shortfall("", FORKED, faults[FORKED], goals.forks),
        *(
            Shortfall(op, "", progress.accepted[op], goals.per_surface)
            for op in (*matrix.surfaces, *matrix.grants)
        ),
        *(
            Shortfall(op, "overtaken", progress.overtaken[op], _overtaken(op, goals))
            for op in (*matrix.surfaces, *matrix.grants)
        ),
        *(
            Shortfall(op, death, progress.refused[op, death], goals.per_cell)
            for op, death in matrix.cells
        ),
        *(Shortfall("", death, takeovers[death], goals.per_death) for death in matrix.fatal),
    ]
    thin = [each for each in numbers if each.missing > 0]
    return sorted(thin, key=lambda each: each.have / each.need)


def _overtaken(op: Operation, goals: CoverageGoals) -> int:
    # There is little time in which a lease has run out and nobody else has the run.
    return max(1, goals.overtaken // 2) if op == "revive" else goals.overtaken


def thin_names(thin: list[Shortfall]) -> dict[str, int]:
    """Return what the processes are told: names of cells to what is missing there."""
    return {
        f"{each.surface} {each.death}": each.missing
        for each in thin
        if not each.surface.startswith("<")
    }
