"""What a power cut may have left of a `Cut`: which changes arrived, whole, in part or not.

Every pending change has its own fate, whatever came before or after it, so any order of
arrival is covered. A write may be torn: at sectors of 512 or 4,096 bytes, where any of its
sectors may have arrived, and inside a sector, where it arrived up to some byte or from it on.
The size of a file may have arrived before its bytes: then they are zeros, or whatever lay on
the disk there. Each name has its fate too; those of one name arrive in their order.

On a disk that is *powersafe* (SQLite's own assumption unless it is told otherwise) a write that
is cut off changes no byte beside its own. On one that is not, it may leave junk in every sector
that it touches.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from power_disk import Truncation, Write, applied

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from power_disk import Cut, Pending

__all__ = ["Image", "build", "digest", "plans"]

Image = dict[str, bytes]
SECTORS = (512, 4096)
_EVERY_SUBSET_OF = 6


@dataclass(frozen=True, slots=True)
class Fate:
    """What of one change arrived: ranges of its bytes, and the sector size if it smashed."""

    kept: tuple[tuple[int, int], ...] = ()
    smashes: int = 0


LOST = Fate()
KEPT = Fate(((0, 1 << 62),))
Fates = tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole outcome: ``how`` it was chosen, each change's fate, and the names'.

    ``names`` is how many of each name's entries arrived. ``growth`` says what a file has where
    its size arrived and its bytes did not; ``shared`` what the file of shared memory has.
    """

    how: str
    fates: Fates
    names: tuple[tuple[str, int], ...]
    growth: str = "none"
    shared: str = "none"


# --- fates ------------------------------------------------------------------------------------


def _torn(change: Pending, source: random.Random, *, powersafe: bool) -> Fate:
    if isinstance(change, Truncation):
        return source.choice((LOST, KEPT))
    length = len(change.data)
    smashes = 0 if powersafe else source.choice((0, *SECTORS))
    sector = source.choice(SECTORS)
    first = sector - change.offset % sector
    edges = [0, *range(first, length, sector), length]
    kept: tuple[tuple[int, int], ...]
    kind = source.choice(("head", "tail", "scatter", "inside"))
    if len(edges) == 2:
        kind = "inside"
    if kind == "inside":
        cut = source.randrange(length + 1)
        kept = source.choice((((0, cut),), ((cut, length),)))
    elif kind == "scatter":
        kept = tuple(pair for pair in itertools.pairwise(edges) if source.random() < 0.5)
    else:
        edge = source.choice(edges[1:-1])
        kept = ((0, edge),) if kind == "head" else ((edge, length),)
    return Fate(kept, smashes)


@dataclass(frozen=True, slots=True)
class _Chooser:
    """The ways of choosing fates, each by its name."""

    changes: Sequence[Pending]
    source: random.Random
    powersafe: bool

    def _all(self, fate: Fate) -> list[Fate]:
        return [fate] * len(self.changes)

    def _tear(self, index: int) -> Fate:
        return _torn(self.changes[index], self.source, powersafe=self.powersafe)

    def in_order(self) -> list[Fate]:
        """Arrived in order, up to some change; the next one torn."""
        count = self.source.randrange(len(self.changes))
        fates = [KEPT] * count + [LOST] * (len(self.changes) - count)
        fates[count] = self._tear(count)
        return fates

    def one_lost(self) -> list[Fate]:
        """All but one, which is lost or torn."""
        fates = self._all(KEPT)
        index = self.source.randrange(len(fates))
        fates[index] = self.source.choice((LOST, self._tear(index)))
        return fates

    def one_kept(self) -> list[Fate]:
        """None but one, whole or torn."""
        fates = self._all(LOST)
        index = self.source.randrange(len(fates))
        fates[index] = self.source.choice((KEPT, self._tear(index)))
        return fates

    def subset(self) -> list[Fate]:
        """Each by the fall of a coin of its own weight."""
        share = self.source.choice((0.1, 0.5, 0.9))
        return [KEPT if self.source.random() < share else LOST for _ in self.changes]

    def torn(self) -> list[Fate]:
        """Each kept, lost or torn."""
        return [
            self.source.choice((KEPT, LOST, self._tear(index)))
            for index in range(len(self.changes))
        ]

    def by_file(self) -> list[Fate]:
        """Some files' changes and not the others'."""
        lucky = {change.file for change in self.changes if self.source.random() < 0.5}
        return [KEPT if change.file in lucky else LOST for change in self.changes]


WAYS = ("in_order", "one_lost", "one_kept", "subset", "torn", "by_file")


# --- plans ------------------------------------------------------------------------------------


def plans(cut: Cut, source: random.Random, *, powersafe: bool = True) -> Iterator[Plan]:
    """Yield plans: nothing, everything and two by chance, then every subset of a few and chance.

    It ends by itself only when nothing is pending.
    """
    count = len(cut.pending)
    names = tuple(_arrivals(cut))
    nothing = Plan("nothing arrived", (LOST,) * count, names[0])
    if not count and len(names) == 1:
        yield nothing
        yield Plan("nothing was pending", (), names[0], shared="junk")
        return
    ways = _Chooser(cut.pending, source, powersafe)
    first = [nothing, Plan("everything arrived", (KEPT,) * count, names[-1])]
    if count:
        first += [_by_chance(ways, names), _by_chance(ways, names)]
    source.shuffle(first)
    yield from first
    systematic = [
        Plan("each name's fate", (fate,) * count, arrived)
        for arrived in names[1:]
        for fate in (LOST, KEPT)
    ]
    if count <= _EVERY_SUBSET_OF:
        systematic += [
            Plan("every subset", fates, source.choice(names))
            for fates in itertools.product((LOST, KEPT), repeat=count)
        ]
    source.shuffle(systematic)
    while count or systematic:
        if systematic:
            yield systematic.pop()
        if count:
            yield _by_chance(ways, names)


def _by_chance(ways: _Chooser, names: tuple[tuple[tuple[str, int], ...], ...]) -> Plan:
    source = ways.source
    how = source.choice(WAYS)
    choose: Callable[[], list[Fate]] = getattr(ways, how)
    return Plan(
        how.replace("_", " "),
        tuple(choose()),
        source.choice(names),
        growth=source.choice(("none", "none", "zeros", "junk")),
        shared=source.choice(("none", "none", "none", "zeros", "junk")),
    )


def _arrivals(cut: Cut) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield how many entries of each name may have arrived: none first, all last."""
    counts: dict[str, int] = {}
    for entry in cut.entries:
        counts[entry.name] = counts.get(entry.name, 0) + 1
    choices = [[(name, number) for number in range(counts[name] + 1)] for name in counts]
    yield from itertools.product(*choices)


# --- images -----------------------------------------------------------------------------------


def build(cut: Cut, plan: Plan, source: random.Random, *, shared_memory: str) -> Image:
    """Return the files that the plan leaves; ``shared_memory`` is that file's name."""
    left = dict(plan.names)
    names = dict(cut.names)
    for entry in cut.entries:
        if left[entry.name] > 0:
            left[entry.name] -= 1
            if entry.file is None:
                names.pop(entry.name, None)
            else:
                names[entry.name] = entry.file
    image = {name: _content(cut, file, plan, source) for name, file in names.items()}
    if plan.shared != "none":
        size = 32_768
        image[shared_memory] = source.randbytes(size) if plan.shared == "junk" else bytes(size)
    return image


def _content(cut: Cut, file: int, plan: Plan, source: random.Random) -> bytes:
    content = bytearray(cut.synced[file])
    largest = size = len(content)
    for change, fate in zip(cut.pending, plan.fates, strict=True):
        if change.file != file:
            continue
        if isinstance(change, Truncation):
            size = change.size
            if fate.kept:
                applied(content, change)
            continue
        size = max(size, change.end)
        largest = max(largest, size)
        if fate.smashes and fate is not KEPT:
            _smash(content, change, fate.smashes, source)
        for start, end in fate.kept:
            part = change.data[start:end]
            if part:
                applied(content, Write(file, change.offset + start, part))
    if plan.growth != "none" and len(content) < largest:
        gap = largest - len(content)
        content.extend(bytes(gap) if plan.growth == "zeros" else source.randbytes(gap))
    return bytes(content)


def _smash(content: bytearray, write: Write, sector: int, source: random.Random) -> None:
    start = write.offset // sector * sector
    end = min(len(content), -(-write.end // sector) * sector)
    if start < end:
        content[start:end] = source.randbytes(end - start)


def digest(image: Image) -> bytes:
    """Return what two images have in common only when they are equal."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(image):
        total.update(f"{name} {len(image[name])} ".encode())
        total.update(image[name])
    return total.digest()
