"""What `probe_fencing` reports: each mutation under each lease, and what the store did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rulvar.core.mutations import Mutation

__all__ = ["FencingReport", "ProbeFinding", "ProbeLease", "ProbeOutcome"]

ProbeLease = Literal[
    "live", "superseded", "released", "foreign-run", "forged owner", "forged epoch"
]
"""The lease that was offered; only ``live`` may let a mutation land."""

ProbeOutcome = Literal["refused", "landed", "failed", "undeclared"]
"""``refused``     `LeaseHeldError`, and nothing changed
``landed``      the store returned, or something changed
``failed``      something else was raised
``undeclared``  the store does not declare that this mutation takes a lease
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding:
    """What one mutation under one lease did, and what the fence owes."""

    mutation: Mutation
    lease: ProbeLease
    outcome: ProbeOutcome
    expected: ProbeOutcome
    detail: str

    @property
    def ok(self) -> bool:
        """Whether the store did what the fence owes."""
        return self.outcome == self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class FencingReport:
    """What `probe_fencing` saw: a finding for each mutation under each lease."""

    run_id: str
    findings: tuple[ProbeFinding, ...]

    @property
    def fenced(self) -> bool:
        """Whether every mutation of both stores kept the fence."""
        return bool(self.findings) and not self.problems

    @property
    def problems(self) -> tuple[ProbeFinding, ...]:
        """The findings that break the fence."""
        return tuple(finding for finding in self.findings if not finding.ok)

    @property
    def mutations(self) -> Mapping[Mutation, ProbeOutcome]:
        """Each mutation with its worst outcome under a dead lease."""
        worst: dict[Mutation, ProbeOutcome] = {}
        for finding in self.findings:
            if finding.lease != "live" and worst.get(finding.mutation, "refused") == "refused":
                worst[finding.mutation] = finding.outcome
        return worst
