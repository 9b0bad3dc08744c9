"""Tenures from their holder's side: live ones, and dead ones that he goes on with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rulvar.conformance.soak.history import GRANTS, report_name
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rulvar.conformance.soak.history import Operation

__all__ = ["Inherited", "Tenure", "inherit"]

_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})


@dataclass(slots=True, eq=False)
class Tenure:
    """A lease, and what its holder knows of the run.

    ``renewed_at`` is the latest instant at which the lease is known to have been extended;
    ``weights`` says how often each mutation is made in this tenure, some never: what a dead
    tenure has slipped in must not be covered by the next write at once. ``until`` is when the
    holder means to be done, ``buried_at`` when he learned that it was dead. Instants are
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
    buried_at: int = 0
    count: int = 0

    def mark_if_run_out(self, death: str, ttl_ns: int, began: int, ended: int) -> None:
        """Say what befell it, if its lease ran out in that time, and not before it."""
        runs_out = self.renewed_at + ttl_ns
        if (
            not self.death
            and self.renewed_at <= began < runs_out <= ended
            and not 0 < self.buried_at < began
        ):
            self.death = death


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
        owner = cast("str", attempt["target"]) if old is None else old.owner
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
