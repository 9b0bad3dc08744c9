"""What of a pair can be stormed: its surfaces, and under which deaths each can be tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rulvar.conformance.soak.plan import DEATHS, FATAL
from rulvar.core.capabilities import (
    has_fenced_journal,
    has_fenced_transcripts,
    has_lease_admin,
    has_lease_revival,
    has_leases,
    has_whole_run_delete,
)
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.plan import Death
    from rulvar.core.stores import StorePair

__all__ = ["Cell", "Ground", "survey"]

Cell: TypeAlias = "tuple[Operation, Death]"
"""A surface, and the kind of death under which it was tried."""

_ABOUT_LEASE: frozenset[Operation] = frozenset({"renew", "release", "revive"})
"""Their only argument is the lease, so it cannot be one of another run."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What one pair offers to a storm.

    ``surfaces`` take a lease; ``grants`` give one out by a run's id alone.
    """

    surfaces: tuple[Operation, ...]
    grants: tuple[Operation, ...]
    notes: tuple[str, ...] = ()

    @property
    def blobs(self) -> bool:
        """Whether blobs are fenced."""
        return "blob-put" in self.surfaces

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
        return tuple(death for death in FATAL if death != "seized" or self.seizes)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Every kind of death that can occur here."""
        missing = set() if self.seizes else {"seized"}
        if not self.deletes:
            missing.add("deleted")
        return tuple(death for death in DEATHS if death not in missing)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every surface with every death that it can be tried under."""
        return tuple(
            (op, death)
            for op in self.surfaces
            for death in self.deaths
            if not (death == "foreign" and op in _ABOUT_LEASE)
        )


def survey(stores: StorePair) -> Ground:
    """Return what a pair offers. Raises `ConfigError` when it has no leases at all."""
    journal, notes = stores.journal, []
    if not has_leases(journal):
        message = (
            f"{type(journal).__name__} has no leases, so there is nothing to storm: a soak needs "
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
        surfaces += ["blob-put", "blob-delete"]
    else:
        notes.append("blobs are left out: the transcript store declares no fence")
    if has_lease_revival(journal):
        surfaces.append("revive")
    if has_lease_admin(journal):
        grants.append("seize")
    else:
        notes.append("nobody seizes a run: the store has no LeaseAdmin")
    return Ground(tuple(surfaces), tuple(grants), tuple(notes))
