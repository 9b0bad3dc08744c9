"""Certify every broken store of the gallery: each must fail the clause that it breaks.

    python gallery_run.py [--list] [--only NAME] [--times N] [--seed N] [--full] [--json]

Prints a line for each defect and leaves with 0 only when all of them were caught, each
``--times`` times, and the stores without a defect pass every clause that is named. ``--full``
runs the whole kit on each and lists everything that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gallery_defects import DEFECTS, SOUND, register, subject

from rulvar.conformance import certify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gallery_defects import Defect

__all__ = ["Row", "SoundRow", "caught", "families", "main", "stores", "try_defect", "try_sound"]

register()


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one defect: the outcome of its clause under each seed."""

    found: Defect
    outcomes: tuple[str, ...]
    seconds: float
    also: tuple[str, ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether it was caught each time."""
        return set(self.outcomes) == {"failed"}

    def lines(self) -> list[str]:
        """Return the row of the table."""
        number = self.outcomes.count("failed")
        others = sorted(set(self.outcomes) - {"failed"})
        mark = "caught" if self.ok else f"MISSED ({', '.join(others)})"
        tally = f"{number}/{len(self.outcomes)}"
        found = self.found
        head = f"{found.name:<44} {found.breaks:<32} {tally:>5} {self.seconds:7.2f} s  {mark}"
        rest = [] if self.also is None else [f"    {len(self.also)} failed: {_some(self.also)}"]
        return [head, f"    {found.words}", *rest]


@dataclass(frozen=True, slots=True)
class SoundRow:
    """What became of a store without a defect: the stories of what it did not pass."""

    name: str
    clauses: int
    stories: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it passed all of them."""
        return self.clauses > 0 and not self.stories

    def lines(self) -> list[str]:
        """Return the row of the table."""
        verdict = "sound" if self.ok else "FAILED"
        clauses = f"{self.clauses} named clause{'s' * (self.clauses != 1)}"
        return [f"{self.name:<44} {clauses}  {verdict}", *self.stories]


def caught(found: Defect, seed: int) -> str:
    """Return what became of the clause that the defect breaks."""
    return certify(subject(found), only=[found.breaks], seed=seed).results[0].outcome


def try_defect(found: Defect, seeds: Iterable[int], *, full: bool = False) -> Row:
    """Try the clause that a defect breaks under each seed, and all clauses if asked to."""
    began = time.monotonic()
    outcomes = tuple(caught(found, seed) for seed in seeds)
    seconds = (time.monotonic() - began) / len(outcomes)
    also = None
    if full:
        results = certify(subject(found)).results
        also = tuple(each.clause_id for each in results if each.outcome == "failed")
    return Row(found, outcomes, seconds, also)


def try_sound(name: str, clauses: Iterable[str]) -> SoundRow:
    """Try those clauses on a store without a defect."""
    certificate = certify(subject(SOUND[name]), only=sorted(clauses))
    stories = tuple(each.story or each.reason for each in certificate.problems)
    return SoundRow(name, certificate.ran, stories)


def stores(chosen: Iterable[Defect]) -> Counter[str]:
    """Return how many defects there are over each store."""
    return Counter(each.name.partition("-")[0] for each in chosen)


def families(chosen: Iterable[Defect]) -> Counter[str]:
    """Return how many defects break a clause of each family: what stands before its dash."""
    return Counter(each.breaks[0] for each in chosen)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _say(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _quietly(lines: Iterable[str]) -> None:
    """Tell the head of a row on stderr, so that one sees it move."""
    sys.stderr.write(f"{next(iter(lines))}\n")


def _tally(counted: Counter[str]) -> str:
    return ", ".join(f"{key} {number}" for key, number in sorted(counted.items()))


def _document(rows: list[Row], sound: list[SoundRow]) -> dict[str, object]:
    chosen = [row.found for row in rows]
    return {
        "seeded": len(rows),
        "caught": sum(row.ok for row in rows),
        "ok": all(row.ok for row in rows) and all(row.ok for row in sound),
        "stores": dict(stores(chosen)),
        "families": dict(families(chosen)),
        "defects": [
            {
                "name": row.found.name,
                "words": row.found.words,
                "breaks": row.found.breaks,
                "outcomes": list(row.outcomes),
                "seconds": round(row.seconds, 3),
                **({} if row.also is None else {"also": list(row.also)}),
            }
            for row in rows
        ],
        "sound": [
            {"name": row.name, "clauses": row.clauses, "ok": row.ok, "stories": list(row.stories)}
            for row in sound
        ],
    }


def _names(chosen: Iterable[Defect]) -> list[str]:
    found = list(chosen)
    names = [f"{each.name:<44} {each.breaks:<32} {each.words}" for each in found]
    return [*names, f"{len(found)} broken stores ({_tally(stores(found))})"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hatch run gallery",
        description="Certify every broken store of the gallery; 0 only when all are caught.",
        epilog="examples: hatch run gallery --list; "
        "hatch run gallery --only reference-fence-ignores-owner --full; "
        "hatch run gallery --times 20 --only sqlite-append-checks-first; "
        "hatch run gallery --json",
    )
    parser.add_argument("--list", action="store_true", help="show the names and leave")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only this defect; repeatable"
    )
    parser.add_argument(
        "--times", type=int, metavar="N", default=1, help="how often each must be caught"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="the first seed; 0 by default"
    )
    parser.add_argument("--full", action="store_true", help="run the whole kit on each as well")
    parser.add_argument("--json", action="store_true", help="print JSON, and rows on stderr")
    options = parser.parse_args()
    unknown = sorted(set(options.only or ()) - DEFECTS.keys())
    if unknown:
        parser.error(f"no such defect: {', '.join(unknown)}; --list shows them all")
    if options.times < 1:
        parser.error(f"--times is 1 or more, not {options.times}")
    return options


def main() -> int:
    """Run the gallery."""
    options = _options()
    if options.list:
        _say(_names(DEFECTS[name] for name in options.only or DEFECTS))
        return 0
    tell: Callable[[Iterable[str]], None] = _quietly if options.json else _say
    chosen = [DEFECTS[name] for name in options.only or DEFECTS]
    seeds = range(options.seed, options.seed + options.times)
    rows: list[Row] = []
    for found in chosen:
        rows.append(try_defect(found, seeds, full=options.full))
        tell(rows[-1].lines())
    sound: list[SoundRow] = []
    for name in SOUND:
        sound.append(try_sound(name, {each.breaks for each in chosen}))
        tell(sound[-1].lines())
    document = _document(rows, sound)
    if options.json:
        _say([json.dumps(document, indent=2)])
    else:
        _say(
            [
                f"families: {_tally(families(chosen))}",
                f"caught {document['caught']} of {len(rows)} seeded ({_tally(stores(chosen))})",
            ]
        )
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
