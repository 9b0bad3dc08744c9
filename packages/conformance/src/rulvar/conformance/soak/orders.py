"""What the coordinator tells the workers: their configuration at the start, then one small file.

The file is replaced as a whole. A worker looks at it before every attempt, which costs one call to
the operating system when nothing has changed. A file, because it can be read by a process that has
just been thawed before it makes its next call, however long it was away.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.conformance.soak.coverage import CoverageMatrix
    from rulvar.conformance.soak.plan import Plan

__all__ = ["Orders", "OrdersFile", "WorkerConfig", "publish"]

_NAME = "orders.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What is wanted at present.

    ``runs`` and ``side_runs`` are those to fight for; ``frozen`` tells each process from when
    to when it was stopped last; ``targets`` are the runs that a stopped process is busy with, to
    be taken over at once; ``thin`` has what is still missing: cells as
    ``"append stopped"``, takeovers as ``" stopped"``, acceptances as ``"append "``. ``dead_share``
    is the share of attempts that are to be a dead tenure's; ``self_stops`` says that a process may
    stop itself.
    """

    runs: tuple[str, ...] = ()
    side_runs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    frozen: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    thin: Mapping[str, int] = field(default_factory=dict)
    dead_share: float = 0.5
    self_stops: bool = False
    ending: bool = False


def publish(folder: Path, orders: Orders) -> None:
    """Replace the file, in one step."""
    fresh = folder / f"{_NAME}.new"
    fresh.write_text(
        json.dumps(
            {
                "runs": orders.runs,
                "side_runs": orders.side_runs,
                "targets": orders.targets,
                "frozen": dict(orders.frozen),
                "thin": dict(orders.thin),
                "dead_share": orders.dead_share,
                "self_stops": orders.self_stops,
                "ending": orders.ending,
            }
        ),
        encoding="utf-8",
    )
    fresh.replace(folder / _NAME)


class OrdersFile:
    """The file from a process's side."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._stamp: tuple[int, int] | None = None
        self._orders = Orders()
        self._parent = os.getppid()

    def look(self) -> Orders:
        """Return what is wanted now; the end, when whoever gives the orders is gone."""
        stat = self._path.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp = stamp
            found = cast("dict[str, object]", json.loads(self._path.read_bytes()))
            self._orders = Orders(
                runs=tuple(cast("list[str]", found["runs"])),
                side_runs=tuple(cast("list[str]", found["side_runs"])),
                targets=tuple(cast("list[str]", found["targets"])),
                frozen={
                    process: (began, ended)
                    for process, (began, ended) in cast(
                        "dict[str, tuple[int, int]]", found["frozen"]
                    ).items()
                },
                thin=cast("dict[str, int]", found["thin"]),
                dead_share=cast("float", found["dead_share"]),
                self_stops=cast("bool", found["self_stops"]),
                ending=cast("bool", found["ending"]),
            )
        if os.getppid() != self._parent:
            return Orders(ending=True)
        return self._orders


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One life of one process: where it reports, who it is, and what opens its store."""

    plan: Plan
    matrix: CoverageMatrix
    folder: str
    process: int
    opener: Opener
    life: int = 0

    def choices(self) -> random.Random:
        """Return the source of its choices."""
        return self.plan.choices(self.process, self.life)
