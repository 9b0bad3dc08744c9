"""What a storm is to be: how many processes, what befalls them, and when it is enough.

Everything that is chosen is chosen from the seed: each life of each process has a source of
choices of its own (`Plan.choices`), so the same seed makes the same choices. How the
processes interleave is the machine's, and so is what is still thin when a choice is made.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from rulvar.core.errors import ConfigError

__all__ = ["CI", "DEATHS", "FATAL", "LONG", "CoverageGoals", "Death", "Plan"]

Death = Literal[
    "stopped",
    "killed",
    "stalled",
    "blocked",
    "clock",
    "seized",
    "released",
    "deleted",
    "foreign",
    "forged",
]
"""What can have befallen the tenure in whose name a call is made.

``stopped``   its process was frozen (SIGSTOP) until the lease had run out
``killed``    its process was killed; the next life goes on with the lease that it had
``stalled``   it slept past the time to live
``blocked``   its process was busy with something that let no other thread run, as long
``clock``     the clock of its process was wrong, an hour off or set back in the middle of it
``seized``    an operator took the live lease away
``released``  its holder had given the lease back
``deleted``   its holder had deleted the run
``foreign``   the lease is a live one, of another run
``forged``    the lease was never granted

A tenure of which nothing is known ("" in the reports) may be dead all the same: it ran out
while its process had to wait, or somebody whose clock was ahead took it.
"""

DEATHS: tuple[Death, ...] = get_args(Death)

FATAL: tuple[Death, ...] = DEATHS[:6]
"""Those after which somebody else takes the run over."""


_LONGEST_S = 7 * 24 * 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageGoals:
    """How much must have happened before a storm may end: every number is a minimum, and no 0.

    ``accepted``, ``refused`` and ``takeovers`` are about the whole storm, ``per_surface``
    about the acceptances of each surface, ``per_cell`` about the refusals of each surface
    under each kind of death that can occur, ``per_death`` about the takeovers from each kind
    of death, ``overtaken`` about the calls of each surface that were under way when somebody
    else was granted the run (half as many revivals), ``stops``, ``kills`` and ``forks`` about
    what was done to the processes.
    """

    accepted: int = 2_500
    refused: int = 2_500
    takeovers: int = 80
    per_surface: int = 12
    per_cell: int = 5
    per_death: int = 6
    overtaken: int = 20
    stops: int = 60
    kills: int = 5
    forks: int = 5

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if number < 1:
                message = f"{name}={number}: a coverage goal is at least 1"
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One storm. Raises `ConfigError` for what cannot be one.

    ``processes`` attack the store at once, ``lease_ttl_ms`` is how long a lease lives,
    ``deadline_s`` after how many seconds a soak has failed that has not reached its goals.
    A run is retired after ``records_of_a_run`` records, so that looking at it stays cheap.
    """

    seed: int = 0
    processes: int = 4
    lease_ttl_ms: int = 300
    deadline_s: float = 180.0
    records_of_a_run: int = 100
    largest_blob: int = 8 * 1024 * 1024
    goals: CoverageGoals = field(default_factory=CoverageGoals)

    def __post_init__(self) -> None:
        for name, least in (
            ("seed", 0),
            ("processes", 2),
            ("lease_ttl_ms", 100),
            ("records_of_a_run", 10),
            ("largest_blob", 1024),
        ):
            if getattr(self, name) < least:
                message = f"{name}={getattr(self, name)}: a soak needs at least {least}"
                raise ConfigError(message)
        if not 0 < self.deadline_s <= _LONGEST_S:
            message = f"deadline_s={self.deadline_s}: give seconds above 0, at most {_LONGEST_S}"
            raise ConfigError(message)
        if self.processes > 100:  # noqa: PLR2004 - a number of processes, nothing else
            message = f"processes={self.processes}: take at most 100"
            raise ConfigError(message)

    @property
    def slots(self) -> int:
        """How many runs are fought for at once."""
        return 2 * self.processes

    @property
    def side_runs(self) -> int:
        """How many runs are there to be deleted and made again."""
        return max(2, self.processes // 2)

    def choices(self, process: int, life: int = 1) -> random.Random:
        """Return the source of the choices that one life of one process makes."""
        return random.Random(f"{self.seed}/{process}/{life}")  # noqa: S311 - no secret

    def to_json(self) -> dict[str, Any]:
        """Return the plan as members of a JSON object."""
        return asdict(self)

    def with_goals(self, **numbers: int | None) -> Plan:
        """Return the plan with some coverage goals changed; None leaves one."""
        given = {name: number for name, number in numbers.items() if number is not None}
        return replace(self, goals=replace(self.goals, **given))


CI = Plan()
"""Under a minute on two cores."""

LONG = Plan(
    processes=6,
    deadline_s=1_800.0,
    goals=CoverageGoals(
        accepted=20_000,
        refused=20_000,
        takeovers=300,
        per_surface=100,
        per_cell=40,
        per_death=25,
        overtaken=60,
        stops=250,
        kills=25,
        forks=25,
    ),
)
"""Some minutes: what a release is held to."""
