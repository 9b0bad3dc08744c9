"""What the checker says: the classes of violation, one violation, and the whole verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Tally", "Verdict", "Violation", "ViolationKind"]


class ViolationKind(StrEnum):
    """Every way in which a history can break the promise; each is one sentence about it."""

    STALE_ACCEPTANCE = "stale-acceptance"
    """A mutation under a lease landed after a later grant, or after that lease had ended."""
    FORGED_ACCEPTANCE = "forged-acceptance"
    """A mutation landed under a lease that nobody was ever granted."""
    FORKED_ACCEPTANCE = "forked-acceptance"
    """A forked child's call on the stores of its parent was not refused as `StoreForkedError`."""
    LEAK = "leak-across-runs"
    """What was written to one run is in another, or a lease of another run was accepted."""
    DUPLICATE_GRANT = "duplicate-grant"
    """The same epoch of a run was granted twice."""
    EPOCH_INVERSION = "epoch-inversion"
    """Epochs fall: along a journal, or from one grant to a later one."""
    LOST_WRITE = "lost-write"
    """A mutation that the store had acknowledged is not there."""
    REFUSED_LANDED = "refused-landed"
    """A mutation that the store had refused is there all the same."""
    LANDED_TWICE = "landed-twice"
    """One attempt is in the journal more than once."""
    OUT_OF_PLACE = "out-of-place"
    """Within a tenure, entries do not stand in the order in which they were attempted."""
    DIVERGENT_BYTES = "divergent-bytes"
    """Stored bytes differ from those that were offered."""
    INVENTED = "invented"
    """Something is stored that no process ever attempted."""
    DELETED_CAME_BACK = "deleted-came-back"
    """What a deletion had removed is there again."""
    HALF_DELETED = "half-deleted"
    """A deletion whose outcome is unknown removed a part and left another."""
    WRONG_REASON = "wrong-reason"
    """A refusal gives a reason that nothing in the history bears out."""
    UNTYPED_ERROR = "untyped-error"
    """A store raised something that is no error of the contract; the storm reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise: what, on which run, in words, and what led up to it."""

    kind: ViolationKind
    run_id: str
    words: str
    timeline: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.kind} on run {self.run_id!r}: {self.words}"
        return "\n".join([head, *(f"    {line}" for line in self.timeline)])


@dataclass(slots=True)
class Tally:
    """How often what happened, so that nobody mistakes a calm for a storm.

    ``accepted`` and ``refused`` count by (operation, death of the tenure), ``reasons`` the
    refusals by their reason, ``takeovers`` the grants over a tenure that had not ended by
    itself, ``unknown_landed`` and ``unknown_absent`` what became of attempts that never
    returned (``unknown_open`` where the last look cannot tell, such as renewals).
    """

    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    nothing: int = 0
    grants: int = 0
    takeovers: int = 0
    unknown_landed: int = 0
    unknown_absent: int = 0
    unknown_open: int = 0
    looks: int = 0
    contested_looks: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checker found. ``violations`` is empty exactly when the history is sound."""

    violations: tuple[Violation, ...]
    tally: Tally

    @property
    def sound(self) -> bool:
        """Whether nothing was broken. It says nothing about how much was tried."""
        return not self.violations
