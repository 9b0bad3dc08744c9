"""The mutations of a pair, each as something that an actor can try under any lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.contract.levels import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.state import Part
    from rulvar.core.records import Lease

__all__ = ["SURFACES", "Strike", "Surface", "prepare"]


@dataclass(frozen=True, slots=True)
class Strike:
    """What a mutation is aimed at: a run whose journal ends at ``tail``, and its blob."""

    run_id: str
    lease: Lease | None
    tail: int
    blob: str = "turn"

    @property
    def ref(self) -> str:
        """The blob, one that `prepare` stored by default."""
        return f"{self.run_id}/{self.blob}"


@dataclass(frozen=True, slots=True)
class Surface:
    """One mutation.

    ``about_lease`` is set for the mutations whose only argument is the lease, so that the
    lease cannot name another run than the call. ``final`` ones end the lease when they land.
    ``once`` ones have nothing to do after they have landed. ``part`` is what it changes in the
    run, or one part of that.
    """

    name: str
    words: str
    level: Level
    strike: Callable[[Actor, Strike], object]
    capability: str | None = None
    about_lease: bool = False
    final: bool = False
    once: bool = False
    part: Part = "journal"


def prepare(actor: Actor, run_id: str, lease: Lease | None, *, fenced: bool, blobs: bool) -> int:
    """Write something of each kind, so that there is something to lose; return the tail."""
    actor.append(run_id, 0, lease=lease)
    actor.append(run_id, 5, lease=lease)
    actor.put_meta(run_id, lease=lease if fenced else None)
    if blobs:
        actor.put(f"{run_id}/turn")
        actor.put(f"{run_id}/deep/er")
    return 5


def _append_above(actor: Actor, at: Strike) -> object:
    return actor.append(at.run_id, at.tail + 3, lease=at.lease)


def _append_below(actor: Actor, at: Strike) -> object:
    return actor.append(at.run_id, at.tail, lease=at.lease)


SURFACES: tuple[Surface, ...] = (
    Surface("append", "an append above the tail", Level.LEASABLE, _append_above),
    Surface("append-stale", "an append whose seq is stale as well", Level.LEASABLE, _append_below),
    Surface(
        "renew",
        "a renewal",
        Level.LEASABLE,
        lambda actor, at: actor.renew(_lease(at)),
        about_lease=True,
        part="lease",
    ),
    Surface(
        "release",
        "a release",
        Level.LEASABLE,
        lambda actor, at: actor.release(_lease(at)),
        about_lease=True,
        part="lease",
        final=True,
        once=True,
    ),
    Surface(
        "put_meta",
        "a row",
        Level.FENCED,
        lambda actor, at: actor.put_meta(at.run_id, lease=at.lease, status="ok"),
        part="row",
    ),
    Surface(
        "delete",
        "a deletion",
        Level.FENCED,
        lambda actor, at: actor.delete(at.run_id, lease=at.lease),
        final=True,
        once=True,
    ),
    Surface(
        "delete_whole_run",
        "a deletion with its blobs",
        Level.FENCED,
        lambda actor, at: actor.delete_whole_run(at.run_id, lease=at.lease),
        capability="WholeRunDelete",
        final=True,
        once=True,
    ),
    Surface(
        "blob-put",
        "a blob over another",
        Level.FENCED_PAIR,
        lambda actor, at: actor.put(at.ref, lease=at.lease),
        part="blobs",
    ),
    Surface(
        "blob-new",
        "a new blob",
        Level.FENCED_PAIR,
        lambda actor, at: actor.put(f"{at.run_id}/new", lease=at.lease),
        part="blobs",
    ),
    Surface(
        "blob-delete",
        "the removal of a blob",
        Level.FENCED_PAIR,
        lambda actor, at: actor.delete_blob(at.ref, lease=at.lease),
        part="blobs",
        once=True,
    ),
    Surface(
        "blob-delete-missing",
        "the removal of a blob that is not there",
        Level.FENCED_PAIR,
        lambda actor, at: actor.delete_blob(f"{at.run_id}/missing", lease=at.lease),
        part="blobs",
    ),
)


def _lease(at: Strike) -> Lease:
    if at.lease is None:
        message = "this mutation is about a lease"
        raise TypeError(message)
    return at.lease
