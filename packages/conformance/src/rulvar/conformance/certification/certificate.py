"""What a certification found: a value, its JSON form, and when it may be called conformant."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rulvar.conformance.contract.levels import Strength

__all__ = ["Certificate", "Outcome", "Result"]

Outcome = Literal["passed", "failed", "error", "not verified", "not claimed"]
"""``passed``        the clause was tried and held
``failed``        the store broke it
``error``         the check itself ended otherwise
``not verified``  it belongs to the claim and could not be tried, for the given reason
``not claimed``   it is about a level, a capability or a reach that the store does not claim
"""

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one clause.

    ``timed`` says that it waited for the machine's own clock, ``kills`` that it is about what
    a killed process leaves; ``counts`` is what it did how often; ``story`` is the whole
    failure, for people.
    """

    clause_id: str
    strength: Strength
    level: str
    sentence: str
    outcome: Outcome
    seed: int
    duration_ms: float = 0.0
    reason: str = ""
    story: str = ""
    again: str = ""
    timed: bool = False
    kills: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether the clause was tried at all."""
        return self.outcome in {"passed", "failed", "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The outcome of a certification.

    ``complete`` is False when only some of the clauses were asked for. ``durability`` is the
    setting that the store says it has: the kit kills processes, it cuts no power, so this one
    is never tested here.
    """

    store: str
    claim: tuple[str, ...]
    sharing: str
    capabilities: tuple[str, ...]
    notes: tuple[str, ...]
    seed: int
    complete: bool
    results: tuple[Result, ...]
    versions: dict[str, str]
    duration_s: float
    durability: str | None = None

    def count(self, outcome: Outcome) -> int:
        """Return how many clauses ended like this."""
        return sum(result.outcome == outcome for result in self.results)

    @property
    def ran(self) -> int:
        """How many clauses were tried."""
        return sum(result.ran for result in self.results)

    @property
    def deaths(self) -> tuple[Result, ...]:
        """The clauses that killed a process and looked at what it left."""
        return tuple(result for result in self.results if result.kills and result.ran)

    @property
    def problems(self) -> tuple[Result, ...]:
        """What keeps the store from being conformant."""
        return tuple(
            result
            for result in self.results
            if result.strength == "MUST" and result.outcome not in {"passed", "not claimed"}
        )

    @property
    def ok(self) -> bool:
        """Whether something was asked for and all that was asked for passed."""
        return self.count("passed") > 0 and not self.problems

    @property
    def conformant(self) -> bool:
        """Whether every MUST of the claim was tried and passed.

        Never after trying nothing, nor when only some clauses were asked for.
        """
        return self.complete and bool(self.claim) and self.ok

    def document(self) -> dict[str, object]:
        """Return the certificate as JSON values."""
        return {
            "format": FORMAT,
            "conformant": self.conformant,
            "complete": self.complete,
            "store": self.store,
            "claim": list(self.claim),
            "reach": self.sharing,
            "capabilities": list(self.capabilities),
            "notes": list(self.notes),
            "durability": _durability(self),
            "seed": self.seed,
            "versions": dict(self.versions),
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
            "duration_s": round(self.duration_s, 3),
            "counts": {
                "clauses": len(self.results),
                "ran": self.ran,
                "passed": self.count("passed"),
                "failed": self.count("failed"),
                "error": self.count("error"),
                "not_verified": self.count("not verified"),
                "not_claimed": self.count("not claimed"),
            },
            "clauses": [_row(result) for result in self.results],
        }

    def to_json(self) -> str:
        """Return the certificate as indented JSON text."""
        return json.dumps(self.document(), indent=2, ensure_ascii=False)

    def badge(self) -> str:
        """Return a badge file: JSON as the endpoint of shields.io has it."""
        claim = " + ".join(self.claim)
        message = claim if self.conformant else f"not conformant ({len(self.problems)})"
        value = {
            "schemaVersion": 1,
            "label": "rulvar store",
            "message": message,
            "color": "brightgreen" if self.conformant else "red",
        }
        return json.dumps(value, indent=2)


def _durability(certificate: Certificate) -> dict[str, object]:
    deaths = certificate.deaths
    return {
        "process_death": {
            "tested": bool(deaths),
            "clauses": {result.clause_id: result.outcome for result in deaths},
        },
        "power_loss": {
            "tested": False,
            "by": "not stated" if certificate.durability is None else "configuration",
            "setting": certificate.durability,
        },
    }


def _row(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "id": result.clause_id,
        "strength": result.strength,
        "level": result.level,
        "outcome": result.outcome,
        "seed": result.seed,
        "duration_ms": round(result.duration_ms, 1),
    }
    if result.timed:
        row["timed"] = True
    if result.counts:
        row["counts"] = dict(result.counts)
    if result.outcome != "passed":
        row["sentence"] = result.sentence
        row["reason"] = result.reason
    if result.story:
        row["story"] = result.story
        row["again"] = result.again
    return row
