"""Tenures from their holder's side: live ones, and dead ones that he goes on with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rulvar.conformance.soak.client import MutationCall
from rulvar.conformance.soak.history import GRANTS, report_name
from rulvar.core.records import Lease

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rulvar.conformance.soak.history import Operation

__all__ = ["Inherited", "Tenure", "inherit", "mutation_of"]

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


def _events(path: Path) -> Iterator[dict[str, object]]:
    *lines, _ = path.read_bytes().split(b"\n")
    for line in lines:
        yield cast("dict[str, object]", json.loads(line))


def inherit(folder: Path, process: int, life: int) -> list[Inherited]:
    """Return the leases that an earlier life had reported, and knew no end of."""
    path = folder / report_name(process, life)
    if not path.exists():
        return []
    found: dict[Lease, Inherited] = {}
    invoked: dict[object, dict[str, object]] = {}
    for event in _events(path):
        if "invoked" in event:
            invoked[event["invoked"]] = event
        elif "returned" in event:
            _take(event, invoked.pop(event["returned"]), found)
        elif "seen" in event:
            lease = _lease_of(event)
            if lease in found:
                found[lease].looked = True
    # An ending without an answer may have landed.
    for event in invoked.values():
        if event["op"] in _ENDINGS:
            found.pop(_lease_of(event), None)  # type: ignore[arg-type] # None is never there
    return list(found.values())


def _take(
    event: dict[str, object], attempt: dict[str, object], found: dict[Lease, Inherited]
) -> None:
    op, outcome, old = attempt["op"], event["outcome"], _lease_of(attempt)
    if outcome == "landed" and op in GRANTS:
        owner = cast("str", attempt["target"])
        if op == "revive" and old is not None:
            owner = old.owner
        run_id, epoch = cast("str", attempt["run"]), cast("int", event["granted"])
        lease = Lease(run_id=run_id, owner=owner, epoch=epoch)
        found[lease] = Inherited(lease)
    elif old is not None and (
        (outcome == "landed" and op in _ENDINGS)
        or (outcome == "refused" and op != "revive" and event.get("reason") != "foreign-run")
    ):
        found.pop(old, None)


def _lease_of(event: dict[str, object]) -> Lease | None:
    value = event["lease"]
    if value is None:
        return None
    run_id, owner, epoch = cast("tuple[str, str, int]", value)
    return Lease(run_id=run_id, owner=owner, epoch=epoch)
