"""Records workloads, cuts the power at every point of each, and judges every image.

An image is opened once, however often it comes up: what was found in it is kept by its digest,
and judged anew for each point at which a power cut may have left it.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from power_images import build, digest, plans
from power_judge import Judge
from power_observe import DATABASE, observe
from power_scribe import recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from power_disk import Cut
    from power_history import RunState
    from power_images import Image, Plan
    from power_judge import Kind, Violation
    from power_observe import Observation
    from power_scribe import Scribe

    from rulvar.stores.sqlite.connection import Durability

__all__ = ["Finding", "Recording", "Tally", "record", "samples", "sweep"]

_FRUITLESS_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation, with the point of the cut, how its image was chosen, and how often."""

    position: int
    what: str
    how: str
    violation: Violation

    def __str__(self) -> str:
        at = f"power lost at {self.position} ({self.what}); {self.how}"
        return f"{self.violation.kind}: {self.violation.text}\n    {at}"


@dataclass(slots=True)
class Tally:
    """What a sweep did and found.

    ``built`` counts every image at every point, ``distinct`` those with bytes of their own:
    each of these was opened. ``lossy`` counts distinct images that lack acknowledged calls as
    the setting allows, ``most_missing`` the most that one lacks.
    """

    workload: str
    durability: Durability
    calls: int = 0
    refused: int = 0
    points: int = 0
    built: int = 0
    distinct: int = 0
    opened: int = 0
    bad_images: int = 0
    lossy: int = 0
    most_missing: int = 0
    findings: list[Finding] = field(default_factory=list)
    kinds: dict[Kind, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something was looked at, and nothing was found: no image is no pass."""
        return self.distinct > 0 and not self.findings

    @property
    def consistent(self) -> int:
        """How many distinct images hold what was promised, at every point they may be left."""
        return self.distinct - self.bad_images


@dataclass(frozen=True, slots=True)
class Recording:
    """One workload as it was: the cuts, and the judge who knows its calls."""

    name: str
    durability: Durability
    cuts: tuple[Cut, ...]
    judge: Judge
    calls: int
    refused: int


def record(
    name: str,
    workload: Callable[[Scribe], None],
    folder: Path,
    durability: Durability,
    *,
    powersafe: bool = True,
    ignores_syncs: bool = False,
    expects: bool = True,
    before: tuple[Image, dict[str, RunState]] | None = None,
) -> Recording:
    """Do a workload in a new folder and return what the disk was told."""
    with recording(
        folder,
        durability,
        powersafe=powersafe,
        ignores_syncs=ignores_syncs,
        expects=expects,
        before=before,
    ) as scribe:
        workload(scribe)
    history = scribe.history
    return Recording(
        name=name,
        durability=durability,
        cuts=tuple(scribe.disk.cuts),
        judge=Judge(history, durability),
        calls=len(history.calls),
        refused=history.count("refused"),
    )


def samples(
    recorded: Recording, folder: Path, *, count: int, seed: int
) -> Iterator[tuple[Image, dict[str, RunState]]]:
    """Yield images of a recording that a store can read, and what it finds in each."""
    source = random.Random(f"{seed} {recorded.name} samples")
    for number in range(count):
        cut = source.choice(recorded.cuts[1:])
        some = itertools.islice(plans(cut, source), source.randrange(1, 12))
        plan = list(some)[-1]
        image = build(cut, plan, source, shared_memory=f"{DATABASE}-shm")
        found = observe(image, folder / f"sample-{number}", recorded.judge.run_ids)
        if found.problem is None:
            yield image, found.states


@dataclass(slots=True)
class _Point:
    """A cut and the plans for it that are still to come."""

    cut: Cut
    source: random.Random
    plans: Iterator[Plan] = field(init=False)
    powersafe: bool

    def __post_init__(self) -> None:
        self.plans = plans(self.cut, self.source, powersafe=self.powersafe)


def sweep(
    recorded: Recording,
    folder: Path,
    *,
    images: int,
    seed: int,
    smashing: bool = False,
    stop_after: int | None = None,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Open so many distinct images of a recording, from all of its points in turn.

    It opens fewer when the points have no more to give.

    ``smashing`` lets torn writes damage their sectors, as a disk that is not powersafe may.
    ``stop_after`` ends at so many violations.
    """
    tally = Tally(recorded.name, recorded.durability, recorded.calls, recorded.refused)
    tally.points = len(recorded.cuts)
    # One source for each point: how many images it gives changes nothing for the others.
    points = [
        _Point(cut, random.Random(f"{seed} {recorded.name} {cut.position}"), powersafe=not smashing)
        for cut in recorded.cuts
    ]
    found: dict[bytes, Observation] = {}
    state = _Sweep(recorded, folder, tally, found)
    fruitless = 0
    order = random.Random(seed)
    while points and tally.distinct < images and fruitless < _FRUITLESS_ROUNDS:
        before = tally.distinct
        order.shuffle(points)
        for point in tuple(points):
            if tally.distinct >= images:
                break
            plan = next(point.plans, None)
            if plan is None:
                points.remove(point)
                continue
            state.look(point, plan)
            if stop_after is not None and len(tally.findings) >= stop_after:
                return tally
        if progress is not None:
            progress(tally)
        fruitless = fruitless + 1 if tally.distinct == before else 0
    return tally


@dataclass(slots=True)
class _Sweep:
    recorded: Recording
    folder: Path
    tally: Tally
    found: dict[bytes, Observation]
    bad: set[bytes] = field(default_factory=set)
    lossy: set[bytes] = field(default_factory=set)

    def look(self, point: _Point, plan: Plan) -> None:
        """Build one image, open it if it is new, and judge it for this point."""
        tally = self.tally
        image = build(point.cut, plan, point.source, shared_memory=f"{DATABASE}-shm")
        tally.built += 1
        key = digest(image)
        if key not in self.found:
            tally.distinct += 1
            place = self.folder / f"image-{tally.distinct}"
            self.found[key] = observe(image, place, self.recorded.judge.run_ids)
            tally.opened += self.found[key].problem is None
        verdict = self.recorded.judge.verdict(self.found[key], point.cut.position)
        if verdict.missing:
            self.lossy.add(key)
            tally.lossy = len(self.lossy)
            tally.most_missing = max(tally.most_missing, verdict.missing)
        if verdict.violations and key not in self.bad:
            self.bad.add(key)
            tally.bad_images = len(self.bad)
            for violation in verdict.violations:
                tally.kinds[violation.kind] = tally.kinds.get(violation.kind, 0) + 1
                cut = point.cut
                tally.findings.append(Finding(cut.position, cut.what, plan.how, violation))
