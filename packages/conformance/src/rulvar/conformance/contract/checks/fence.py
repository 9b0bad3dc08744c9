"""The fence table: every mutation under every kind of lease (family F).

A row of the table is a kind of lease, made by the function that its `Kind` names; a column
is a mutation (`harness.mutations`). Each pair is one clause. Around each
refusal everything that can be read is compared byte for byte; afterwards whoever holds the
run goes on, so that a store which refuses everybody does not pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.mutations import SURFACES, Strike, prepare
from rulvar.core.checks import MAX_INTEGER
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.mutations import Surface
    from rulvar.core.errors import RefusalReason

__all__ = ["CLAUSES", "KINDS"]

CLAUSES = Section(level=Level.LEASABLE, source="Fence table", beside_others=True)


@dataclass(frozen=True, slots=True)
class _Scene:
    """A dead lease, where its journal ends, and who holds the run now, if anybody."""

    dead: Lease
    tail: int
    live: Lease | None
    target: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of dead lease: its name, in words, why the fence refuses it, how to make one."""

    name: str
    words: str
    reason: RefusalReason
    make: Callable[[CheckContext, Actor, Actor], _Scene]
    timed: bool = False
    foreign: bool = False


def _tenure(check: CheckContext, stalled: Actor, name: str = "run") -> tuple[Lease, int]:
    run = check.run_id(name)
    lease = stalled.acquire(run)
    tail = prepare(stalled, run, lease, fenced=check.claims(Level.FENCED), blobs=check.has_blobs)
    return lease, tail


def _superseded(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    live = successor.take_over(dead)
    successor.append(dead.run_id, tail + 1, lease=live)
    return _Scene(dead, tail + 1, live, dead.run_id)


def _superseded_by_itself(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    return _Scene(dead, tail, successor.take_over(dead, dead.owner), dead.run_id)


def _superseded_and_free(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    successor.release(successor.take_over(dead))
    return _Scene(dead, tail, None, dead.run_id)


def _released(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    stalled.release(dead)
    return _Scene(dead, tail, None, dead.run_id)


def _expired(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    check.expire()
    return _Scene(dead, tail, None, dead.run_id)


def _expired_and_taken(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    check.expire()
    return _Scene(dead, tail, successor.acquire(dead.run_id), dead.run_id)


def _forged_owner(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    live, tail = _tenure(check, stalled)
    return _Scene(replace(live, owner="somebody-else"), tail, live, live.run_id)


def _forged_epoch(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    live, tail = _tenure(check, stalled)
    return _Scene(replace(live, epoch=live.epoch + 1), tail, live, live.run_id)


def _forged_largest_epoch(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    live, tail = _tenure(check, stalled)
    return _Scene(replace(live, epoch=MAX_INTEGER), tail, live, live.run_id)


def _forged_lower_epoch(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    live = successor.take_over(dead)
    return _Scene(replace(live, epoch=live.epoch - 1), tail, live, dead.run_id)


def _never_granted(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    run = check.run_id()
    tail = prepare(stalled, run, None, fenced=False, blobs=check.has_blobs)
    return _Scene(Lease(run_id=run, owner="stalled", epoch=1), tail, None, run)


def _deleted(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    stalled.delete(dead.run_id)
    stalled.append(dead.run_id, 1)
    return _Scene(dead, tail, None, dead.run_id)


def _recreated(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    dead, tail = _tenure(check, stalled)
    stalled.delete(dead.run_id)
    live = successor.acquire(dead.run_id)
    successor.append(dead.run_id, 0, lease=live)
    return _Scene(dead, tail, live, dead.run_id)


def _foreign(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    other = stalled.acquire(check.run_id("other"))
    held, tail = _tenure(check, successor)
    return _Scene(other, tail, held, held.run_id)


def _foreign_twin(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    # The same owner under the same epoch on both runs: only the run tells them apart.
    other = stalled.acquire(check.run_id("other"))
    held, tail = _tenure(check, stalled)
    return _Scene(other, tail, held, held.run_id)


def _foreign_to_free(check: CheckContext, stalled: Actor, _: Actor) -> _Scene:
    other = stalled.acquire(check.run_id("other"))
    run = check.run_id()
    return _Scene(
        other, prepare(stalled, run, None, fenced=False, blobs=check.has_blobs), None, run
    )


def _foreign_dead(check: CheckContext, stalled: Actor, successor: Actor) -> _Scene:
    other = stalled.acquire(check.run_id("other"))
    stalled.release(other)
    held, tail = _tenure(check, successor)
    return _Scene(other, tail, held, held.run_id)


KINDS: tuple[Kind, ...] = (
    Kind("superseded", "a lease that a later one has passed", "superseded", _superseded),
    Kind(
        "superseded-owner",
        "a superseded lease whose owner holds the run again",
        "superseded",
        _superseded_by_itself,
    ),
    Kind(
        "superseded-free",
        "a superseded lease of a run that is not held now",
        "superseded",
        _superseded_and_free,
    ),
    Kind("released", "a released lease", "released", _released),
    Kind(
        "expired",
        "an expired lease of a run that was not taken since",
        "expired",
        _expired,
        timed=True,
    ),
    Kind(
        "expired-taken",
        "an expired lease of a run that a successor took",
        "superseded",
        _expired_and_taken,
        timed=True,
    ),
    Kind("forged-owner", "the live epoch under another owner", "unknown", _forged_owner),
    Kind("forged-epoch", "an epoch that was not granted yet", "unknown", _forged_epoch),
    Kind("forged-largest", "the largest epoch there is", "unknown", _forged_largest_epoch),
    Kind(
        "forged-past",
        "a past epoch under the present owner",
        "superseded",
        _forged_lower_epoch,
    ),
    Kind("never-granted", "a lease of a run that never had one", "unknown", _never_granted),
    Kind("deleted", "a lease that ended with its run", "released", _deleted),
    Kind("recreated", "a lease from before the run was recreated", "superseded", _recreated),
    Kind("foreign", "a live lease of another run", "foreign-run", _foreign, foreign=True),
    Kind(
        "foreign-twin",
        "a lease of another run with the same owner and epoch",
        "foreign-run",
        _foreign_twin,
        foreign=True,
    ),
    Kind(
        "foreign-free",
        "a live lease of another run, on a run that is not held",
        "foreign-run",
        _foreign_to_free,
        foreign=True,
    ),
    Kind("foreign-dead", "a dead lease of another run", "foreign-run", _foreign_dead, foreign=True),
)


def _refusal(kind: Kind, surface: Surface) -> Callable[[CheckContext], None]:
    def attempt(check: CheckContext) -> None:
        stalled, successor = check.actor("stalled"), check.actor("successor")
        scene = kind.make(check, stalled, successor)
        at = Strike(scene.target, scene.dead, scene.tail)
        surface.strike(stalled.refused(kind.reason), at)
        # Twice: a store that remembers the first attempt must not let the second through.
        surface.strike(stalled.refused(kind.reason), at)
        if scene.live is not None:
            holder = check.actor("holder")
            holder.append(scene.target, scene.tail + 10, lease=scene.live)
            holder.renew(scene.live)

    return attempt


def _live(surface: Surface) -> Callable[[CheckContext], None]:
    def attempt(check: CheckContext) -> None:
        worker = check.actor("worker")
        lease, tail = _tenure(check, worker)
        before = check.snapshot()
        if surface.name == "append-stale":
            surface.strike(worker.out_of_order(), Strike(lease.run_id, lease, tail))
            return
        surface.strike(worker, Strike(lease.run_id, lease, tail))
        quiet = surface.name in {"blob-delete-missing", "renew", "release"}
        check.require(
            quiet or check.snapshot() != before, f"{surface.words} lands", "nothing changed"
        )
        if not surface.final:
            worker.append(lease.run_id, tail + 20, lease=lease)

    return attempt


def _unleased(surface: Surface) -> Callable[[CheckContext], None]:
    def attempt(check: CheckContext) -> None:
        owner, bare = check.actor("owner"), check.actor("bare")
        lease, tail = _tenure(check, owner)
        before = check.snapshot()
        at = Strike(lease.run_id, None, tail)
        if surface.name == "append-stale":
            surface.strike(bare.out_of_order(), at)
            return
        surface.strike(bare, at)
        quiet = surface.name == "blob-delete-missing"
        check.require(
            quiet or check.snapshot() != before, f"{surface.words} lands", "nothing changed"
        )
        if surface.final:
            owner.refused("released").append(lease.run_id, tail + 20, lease=lease)
        else:
            owner.append(lease.run_id, tail + 20, lease=lease)

    return attempt


def _landing(surface: Surface, what: str) -> tuple[str, str]:
    """Return the sentences for the live lease and for none."""
    if surface.name == "append-stale":
        return (
            "Under the live lease a stale seq is refused as out of order.",
            "Without a lease a stale seq is refused as out of order.",
        )
    on = "" if surface.final else ", and the lease goes on"
    return (
        f"{what} under the live lease lands{on}.",
        f"{what} without a lease lands while the run is held.",
    )


def _fill(surface: Surface) -> None:
    what = surface.words[0].upper() + surface.words[1:]
    live, bare = _landing(surface, what)

    def add(
        name: str, sentence: str, check: Callable[[CheckContext], None], *, timed: bool
    ) -> None:
        CLAUSES.clause(
            f"F-{surface.name}-{name}",
            sentence,
            level=surface.level,
            capability=surface.capability,
            timed=timed,
        )(check)

    add("live", live, _live(surface), timed=False)
    if not surface.about_lease:
        add("unleased", bare, _unleased(surface), timed=False)
    for kind in KINDS:
        if not (kind.foreign and surface.about_lease):
            sentence = f"{what} under {kind.words} is refused as {kind.reason}; nothing changes."
            add(kind.name, sentence, _refusal(kind, surface), timed=kind.timed)


for _surface in SURFACES:
    _fill(_surface)
