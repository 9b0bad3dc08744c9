"""Cut the power at every point of every workload of the SQLite store, and open what is left.

    hatch run power-loss
    hatch run power-loss --images 20000 --seed 7
    hatch run power-loss --durability normal --workload checkpoints --json

Ends with a table and 0 only if every image holds what was promised; 1 with each violation and
how to see it again; 2 for an option that cannot be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from power_sweep import Tally, record, samples, sweep
from power_workloads import FULL_ONLY, WORKLOADS, again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rulvar.stores.sqlite.connection import Durability

__all__ = ["Options", "folder_in_memory", "main", "run"]

SETTINGS: tuple[Durability, ...] = ("full", "normal")
UNSAFE = "not powersafe"
_ON_UNSAFE = frozenset({"birth", "checkpoints", "leases"})
AGAIN = "cut twice"
_SHOWN = 20
_IMAGES_OF_A_SECOND_CUT = 25
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run: about ``images`` distinct images, shared out evenly."""

    images: int = 6_000
    seed: int = 1
    durabilities: tuple[Durability, ...] = SETTINGS
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    progress: Callable[[Tally], None] | None = None


@dataclass(slots=True)
class _Share:
    """One row of the table: a workload at a setting, on a kind of disk, cut once or twice."""

    name: str
    durability: Durability
    kind: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.kind}" if self.kind else self.name


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Give a folder of its own, in memory where the system has such a place."""
    base = tempfile.mkdtemp(prefix="power-loss-", dir=_MEMORY if _MEMORY.is_dir() else None)
    try:
        yield Path(base)
    finally:
        shutil.rmtree(base)


def _names(options: Options, durability: Durability) -> list[str]:
    return [name for name in options.workloads if durability == "full" or name not in FULL_ONLY]


def _shares(options: Options) -> list[_Share]:
    shares: list[_Share] = []
    for durability in options.durabilities:
        names = _names(options, durability)
        shares += [_Share(name, durability) for name in names]
        shares += [_Share(name, durability, AGAIN) for name in names[:1]]
        if durability == "full":
            shares += [_Share(name, durability, UNSAFE) for name in names if name in _ON_UNSAFE]
    return shares


def run(options: Options, folder: Path) -> list[Tally]:
    """Run everything that the options say; return one tally for each row of the table."""
    shares = _shares(options)
    each = -(-options.images // len(shares))
    tallies: list[Tally] = []
    for number, share in enumerate(shares):
        place = folder / f"{number}"
        place.mkdir()
        if share.kind == AGAIN:
            tally = _cut_twice(share, options, place, each)
        else:
            tally = _cut_once(share, options, place, each)
        tallies.append(tally)
        shutil.rmtree(place)
    return tallies


def _cut_once(share: _Share, options: Options, place: Path, images: int) -> Tally:
    unsafe = share.kind == UNSAFE
    recorded = record(
        share.title,
        WORKLOADS[share.name],
        place / "recorded",
        share.durability,
        powersafe=not unsafe,
    )
    return sweep(
        recorded,
        place,
        images=images,
        seed=options.seed,
        smashing=unsafe,
        progress=options.progress,
    )


def _cut_twice(share: _Share, options: Options, place: Path, images: int) -> Tally:
    """Let a store take up images of every workload, and cut the power again."""
    total = Tally(AGAIN, share.durability)
    names = _names(options, share.durability)
    count = max(1, images // (len(names) * _IMAGES_OF_A_SECOND_CUT))
    for name in names:
        first = record(name, WORKLOADS[name], place / name, share.durability)
        aside = place / f"{name}-samples"
        aside.mkdir()
        for number, before in enumerate(samples(first, aside, count=count, seed=options.seed)):
            recorded = record(
                f"{AGAIN}: {name} {number}",
                again,
                place / f"{name}-{number}",
                share.durability,
                before=before,
            )
            of_each = -(-images // (len(names) * count))
            _add(total, sweep(recorded, place, images=of_each, seed=options.seed))
            if options.progress is not None:
                options.progress(total)
    return total


def _add(total: Tally, more: Tally) -> None:
    for name in (
        "calls",
        "refused",
        "points",
        "built",
        "distinct",
        "opened",
        "bad_images",
        "lossy",
    ):
        setattr(total, name, getattr(total, name) + getattr(more, name))
    total.most_missing = max(total.most_missing, more.most_missing)
    total.findings += more.findings
    for kind, number in more.kinds.items():
        total.kinds[kind] = total.kinds.get(kind, 0) + number


# --- what is printed --------------------------------------------------------------------------


def table(tallies: Sequence[Tally]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'workload':<28}{'setting':<8}{'calls':>6}{'refused':>8}{'points':>8}{'images':>8}"
        f"{'distinct':>9}{'opened':>8}{'consistent':>11}{'with loss':>10}{'most lost':>10}"
    )
    for tally in tallies:
        yield _row(tally.workload, tally.durability, [tally])
    for setting in SETTINGS:
        mine = [tally for tally in tallies if tally.durability == setting]
        if mine:
            yield _row("all", setting, mine)


def _row(name: str, setting: str, tallies: Sequence[Tally]) -> str:
    def total(part: str) -> int:
        return sum(int(getattr(tally, part)) for tally in tallies)

    most = max(tally.most_missing for tally in tallies)
    lossy = f"{total('lossy'):>10}{most:>10}" if setting == "normal" else f"{'-':>10}{'-':>10}"
    return (
        f"{name:<28}{setting:<8}{total('calls'):>6}{total('refused'):>8}{total('points'):>8}"
        f"{total('built'):>8}{total('distinct'):>9}{total('opened'):>8}"
        f"{total('consistent'):>11}{lossy}"
    )


def document(tallies: Sequence[Tally], options: Options, seconds: float) -> dict[str, object]:
    """Return everything as JSON values."""
    rows = []
    for tally in tallies:
        row: dict[str, object] = asdict(tally)
        row["consistent"] = tally.consistent
        row["findings"] = [str(finding) for finding in tally.findings]
        rows.append(row)
    return {
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "distinct": sum(tally.distinct for tally in tallies),
        "consistent": sum(tally.consistent for tally in tallies),
        "ok": all(tally.ok for tally in tallies),
        "rows": rows,
    }


class _Progress:
    """A line on stderr, now and then, where somebody is looking."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, tally: Tally) -> None:
        at = f"{tally.workload} {tally.durability}"
        if at != self._shown:
            self._shown = at
            sys.stderr.write(f"power-loss: {at}\n")
            sys.stderr.flush()


# --- the command ------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hatch run power-loss",
        description="Cut the power at every point of every workload, and open what is left.",
        epilog=(
            "examples: hatch run power-loss --images 20000 --seed 7; "
            "hatch run power-loss --durability normal --workload checkpoints --json"
        ),
    )
    parser.add_argument(
        "--images",
        type=int,
        default=6_000,
        metavar="N",
        help="about so many images, shared out evenly; 6,000 by default",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="the same choices again; others each time by default"
    )
    parser.add_argument("--durability", choices=SETTINGS, help="one setting only")
    parser.add_argument(
        "--workload", action="append", choices=sorted(WORKLOADS), help="only this one; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.images < 1:
        parser.error(f"--images is 1 or more, not {chosen.images}")
    options = Options(
        images=chosen.images,
        seed=random.SystemRandom().getrandbits(32) if chosen.seed is None else chosen.seed,
        durabilities=(chosen.durability,) if chosen.durability else SETTINGS,
        workloads=tuple(chosen.workload or WORKLOADS),
        progress=_Progress(),
    )
    if not _shares(options):
        parser.error(f"{', '.join(options.workloads)}: only for --durability full")
    began = time.monotonic()
    with folder_in_memory() as folder:
        tallies = run(options, folder)
    seconds = time.monotonic() - began
    _tell(tallies, options, seconds, as_json=chosen.json)
    return 0 if all(tally.ok for tally in tallies) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _tell(tallies: Sequence[Tally], options: Options, seconds: float, *, as_json: bool) -> None:
    if as_json:
        _say(json.dumps(document(tallies, options, seconds), indent=2))
        return
    for line in table(tallies):
        _say(line)
    findings = [(tally, finding) for tally in tallies for finding in tally.findings]
    for tally, finding in findings[:_SHOWN]:
        _say(f"VIOLATION in {tally.workload} at {tally.durability}: {finding}")
    for tally in tallies:
        if not tally.distinct:
            _say(f"NOTHING LOOKED AT in {tally.workload} at {tally.durability}: that is no pass")
    distinct = sum(tally.distinct for tally in tallies)
    bad = sum(tally.bad_images for tally in tallies)
    _say(f"{distinct} images opened in {seconds:.0f} s, {bad} not as promised; seed {options.seed}")
    if findings:
        _say(f"again: the same options with --seed {options.seed} --images {options.images}")


if __name__ == "__main__":
    # The folder is in memory, which nobody gives back when it stays.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(main())
