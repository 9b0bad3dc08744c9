"""The fence's check and the write it guards are one unit, on each mutation (family F)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.conformance.harness.mutations import SURFACES
from rulvar.conformance.harness.races import step_through, storm
from rulvar.core.errors import LeaseHeldError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending
    from rulvar.conformance.harness.mutations import Surface

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.LEASABLE, source="One unit")

_LEFT_OUT = {"append-stale", "blob-new", "blob-delete-missing"}
"""They share their code with a mutation that is tried."""


def _both(surface: Surface) -> Callable[[CheckContext], None]:
    def attempt(check: CheckContext) -> None:
        step_through(check, surface)
        storm(check, surface)

    return attempt


def _fill() -> None:
    for surface in SURFACES:
        if surface.name in _LEFT_OUT:
            continue
        CLAUSES.clause(
            f"F-{surface.name}-atomic",
            f"No owner can take the run over between the check and the write of {surface.words}.",
            level=surface.level,
            capability=surface.capability,
        )(_both(surface))


@CLAUSES.clause(
    "F-time-in-lock",
    "Time is read once no other caller can write: a lease that expires before that writes nothing.",
    source="Live leases",
    timed=True,
)
def _time_in_lock(check: CheckContext) -> None:
    meetings = iter(range(10_000))
    most = 4 if check.waits else 40
    interleave(check, lambda: _run_out(check, check.run_id(f"run-{next(meetings)}")), most=most)


def _run_out(check: CheckContext, run: str) -> Interleaving:
    """Let a lease run out while an append under it stands where others still write."""
    stalled, other = check.actor("stalled"), check.actor("other", check.another_handle())
    bystander = check.run_id("bystander")
    check.knows(bystander)
    lease = stalled.acquire(run)
    tail = other.journal.load(bystander)[-1:]
    ran_out: list[bool] = []

    def write() -> None:
        other.journal.append(bystander, record(tail[0].seq + 1 if tail else 0, check.mark()))
        if not other.journal.load(run):  # else it has landed before, and rightly
            ran_out.append(True)
            check.expire()

    def judge(first: Ending, second: Ending, where: str) -> None:
        check.require(second.returned, "a bystander's append lands", second.words())
        if not (second.inside and ran_out):
            return
        expired = isinstance(first.error, LeaseHeldError) and first.error.reason == "expired"
        check.require(expired, f"LeaseHeldError with the reason expired ({where})", first.words())
        check.equal("the journal", stalled.load(run), ())

    append = record(0, check.mark())
    return Interleaving(lambda: stalled.journal.append(run, append, lease=lease), write, judge)


_fill()
