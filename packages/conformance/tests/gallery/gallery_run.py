"""Certify every broken store of the gallery: each must fail the clause that it breaks.

    python gallery_run.py [--only NAME] [--times N] [--full]

Prints one line for each defect and leaves with 0 only when all of them were caught, each
``--times`` times, and the stores without a defect pass every clause that is named. ``--full``
runs the whole kit on each and lists everything that failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from gallery_defects import DEFECTS, SOUND, register, subject

from rulvar.conformance import certify

if TYPE_CHECKING:
    from gallery_defects import Defect

register()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def caught(found: Defect, seed: int) -> str:
    """Return what became of the clause that the defect breaks."""
    return certify(subject(found), only=[found.breaks], seed=seed).results[0].outcome


def _whole(found: Defect) -> str:
    certificate = certify(subject(found))
    failed = [result.clause_id for result in certificate.results if result.outcome == "failed"]
    shown = ", ".join(failed[:8]) + (", ..." if len(failed) > 8 else "")
    return f"{len(failed)} failed: {shown}"


def _row(found: Defect, times: int, *, full: bool) -> bool:
    began = time.monotonic()
    outcomes = [caught(found, seed) for seed in range(times)]
    number = outcomes.count("failed")
    took = (time.monotonic() - began) / times
    mark = "caught" if number == times else f"MISSED ({', '.join(sorted(set(outcomes)))})"
    _say(f"{found.name:<38} {found.breaks:<28} {number}/{times}  {took:5.2f} s  {mark}")
    _say(f"    {found.words}")
    if full:
        _say(f"    {_whole(found)}")
    return number == times


def main() -> int:
    """Run the gallery."""
    parser = argparse.ArgumentParser(description="Certify every broken store of the gallery.")
    parser.add_argument("--only", action="append", help="a defect's name; may be repeated")
    parser.add_argument("--times", type=int, default=1, help="how often each must be caught")
    parser.add_argument("--full", action="store_true", help="run the whole kit on each as well")
    options = parser.parse_args()
    chosen = [DEFECTS[name] for name in options.only] if options.only else list(DEFECTS.values())
    missed = [each for each in chosen if not _row(each, options.times, full=options.full)]
    named = sorted({each.breaks for each in chosen})
    for sound in SOUND.values():
        certificate = certify(subject(sound), only=named)
        ok = certificate.ok
        verdict = "sound" if ok else "FAILED"
        _say(f"{sound.name:<38} {certificate.ran} named clauses  {verdict}")
        if not ok:
            missed.append(sound)
            _say("\n".join(result.story for result in certificate.problems))
    _say(f"caught {len(chosen) - sum(each in missed for each in chosen)} of {len(chosen)} seeded")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
