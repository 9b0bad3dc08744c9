"""A clause: one sentence of the contract, and the function that tries it.

Ids are stable: a certificate of last year names the same sentences. The letters before the
first dash are the family:

==  ==========================================================
A   journals: promises A1 to A5
M   catalogue rows: promises M1 and M2
D   deletion: promise D1
L   leases: acquire, renew, release, and what operators do with them
F   the fence: ``F-<mutation>-<kind of lease>``, and its atomicity
T   transcripts: blobs beside the journal
I   ids, at the front door
E   errors: typed, at the call, and the end of a store's life
C   capabilities: what is declared, and whether it is there
P   processes: several of them, and one that is killed
B   busy: how long a call may wait
X   everything at once, against the reference store
==  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.contract.levels import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.conformance.contract.levels import Level, Strength
    from rulvar.conformance.harness.check_context import CheckContext

__all__ = ["Clause", "Section", "covers"]


def covers(claim: frozenset[Level], clause: Clause) -> bool:
    """Whether the clause belongs to what is claimed."""
    return clause.level in claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One sentence of the contract.

    ``source`` names headings of docs/contract.md, with commas between them; ``since`` is the
    version of the kit that began to check it; ``capability`` the optional capability that it is
    about, if any;
    ``timed`` whether leases must run out for it, ``lease_ttl_ms`` how long they are to live
    when it matters otherwise; ``moves_clock`` says that it moves the clock where there is one;
    ``kills`` that it is about what a killed process leaves, and kills one with SIGKILL.
    ``beside_others`` says that it proves as much while other clauses are tried: it has a place
    to itself, makes its calls one after the other, and measures no time.
    """

    id: str
    level: Level
    strength: Strength
    sentence: str
    source: str
    check: Callable[[CheckContext], None]
    since: str = "0.1"
    sharing: Sharing = Sharing.OBJECT
    capability: str | None = None
    timed: bool = False
    lease_ttl_ms: int | None = None
    moves_clock: bool = False
    kills: bool = False
    beside_others: bool = False


class Section:
    """The clauses of one module of checks, in their order.

    ``level`` and ``source`` are what its clauses have unless they say otherwise,
    ``beside_others`` is so of all of them.
    """

    def __init__(self, *, level: Level, source: str, beside_others: bool = False) -> None:
        self._level = level
        self._source = source
        self._beside_others = beside_others
        self._clauses: list[Clause] = []

    def __iter__(self) -> Iterator[Clause]:
        return iter(self._clauses)

    def clause(
        self,
        clause_id: str,
        sentence: str,
        /,
        *,
        level: Level | None = None,
        source: str | None = None,
        strength: Strength = "MUST",
        since: str = "0.1",
        sharing: Sharing = Sharing.OBJECT,
        capability: str | None = None,
        timed: bool = False,
        lease_ttl_ms: int | None = None,
        moves_clock: bool = False,
        kills: bool = False,
    ) -> Callable[[Callable[[CheckContext], None]], Callable[[CheckContext], None]]:
        """Add the decorated function as the check of a clause."""

        def add(check: Callable[[CheckContext], None]) -> Callable[[CheckContext], None]:
            self._clauses.append(
                Clause(
                    id=clause_id,
                    level=level or self._level,
                    strength=strength,
                    sentence=sentence,
                    source=source or self._source,
                    check=check,
                    since=since,
                    sharing=sharing,
                    capability=capability,
                    timed=timed,
                    lease_ttl_ms=lease_ttl_ms,
                    moves_clock=moves_clock,
                    kills=kills,
                    beside_others=self._beside_others,
                )
            )
            return check

        return add
