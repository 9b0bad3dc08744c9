"""Storm every broken store of the gallery that is about processes: each must be caught.

    python gallery_soak.py [--only NAME] [--times N] [--seed FIRST]

Each storm has another seed and ends at its first violation; one that reaches its coverage goals
without a violation has missed the defect. The store without a defect must pass. Leaves with 0
only when every defect was caught every time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gallery_defects import DEFECTS, SOUND, register, subject

from rulvar.conformance.soak import CI, soak

if TYPE_CHECKING:
    from gallery_defects import Defect

    from rulvar.conformance.soak import Plan, SoakReport

register()


def stormy() -> list[Defect]:
    """Return the defects that a storm must catch."""
    return [found for found in DEFECTS.values() if found.storm]


def storm_once(found: Defect, plan: Plan) -> SoakReport:
    """Storm one store of the gallery, to its first violation."""
    report = soak(subject(found), plan)
    if report.folder is not None:
        shutil.rmtree(report.folder)
    return report


def caught(report: SoakReport) -> bool:
    """Whether the referee found something: thin coverage alone catches nothing."""
    return not report.verdict.sound


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(found: Defect, times: int, first: int) -> bool:
    number, took_s, kinds = 0, 0.0, Counter[str]()
    for seed in range(first, first + times):
        report = storm_once(found, replace(CI, seed=seed))
        number += caught(report)
        took_s += report.seconds
        kinds.update({str(each.kind) for each in report.verdict.violations})
    mark = "caught" if number == times else "MISSED"
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3))
    _say(f"{found.name:<36} {number:>2}/{times}  {took_s / times:5.1f} s  {mark}  {told}")
    return number == times


def main() -> int:
    """Storm the gallery."""
    parser = argparse.ArgumentParser(
        description="Storm the broken stores of the gallery.",
        epilog="example: python packages/conformance/tests/gallery/gallery_soak.py --only "
        "sqlite-append-checks-first --times 3 --seed 7",
    )
    parser.add_argument("--only", action="append", help="a defect's name; may be repeated")
    parser.add_argument("--times", type=int, default=1, help="how often each must be caught")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    chosen = [DEFECTS[name] for name in options.only] if options.only else stormy()
    missed = [each.name for each in chosen if not _row(each, options.times, options.seed)]
    sound = storm_once(SOUND["sqlite"], CI)
    _say(f"{'sqlite, without a defect':<36} {sound.seconds:5.1f} s  {sound.words()}")
    _say(f"caught {len(chosen) - len(missed)} of {len(chosen)}, each {options.times} times")
    return 0 if sound.passed and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
