"""`certify`: try every clause of a claim, one after the other, and say what was found."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import random
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.conformance.certification.attribution import fault_of
from rulvar.conformance.certification.certificate import Certificate, Result
from rulvar.conformance.contract.claims import declared_by
from rulvar.conformance.contract.clauses import covers
from rulvar.conformance.contract.levels import LEVELS, Level, reaches
from rulvar.conformance.contract.registry import chosen
from rulvar.conformance.harness.check_context import CheckContext, Settings
from rulvar.conformance.harness.child import IN_CHILD
from rulvar.conformance.harness.children import Children
from rulvar.conformance.harness.failure import CheckFailure, NotVerified, TooSlow
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from rulvar.conformance.certification.certificate import Outcome
    from rulvar.conformance.contract.claims import Declared
    from rulvar.conformance.contract.clauses import Clause
    from rulvar.conformance.harness.store_under_test import StoreUnderTest, TestLocation

__all__ = ["Certification", "certify"]

_LONG_TTL_MS = 60_000
_SHORT_TTLS_MS = (160, 640, 2_560)
"""Times to live that timed clauses wait for, one after the other while the machine is slow."""

DEADLINE_S = 120.0
"""How long one clause may take."""

_FRAMES = 6
"""How much is shown of where a clause stands that does not end."""

JOBS = 4
"""How many clauses are tried at once where that proves as much."""


def certify(
    subject: StoreUnderTest,
    /,
    *,
    level: Level | str | Iterable[Level | str] | None = None,
    only: Iterable[str] | None = None,
    seed: int | None = None,
    deadline_s: float = DEADLINE_S,
    stop_at_failure: bool = False,
    effort: int = 1,
    jobs: int = JOBS,
    beginning: Callable[[Clause], None] | None = None,
    progress: Callable[[Result], None] | None = None,
) -> Certificate:
    """Try a store against the contract and return the certificate; raises nothing of the store's.

    ``level`` is what is claimed (one level or several; what the store declares by default).
    ``only`` restricts the clauses, by id or by ``"A5*"``; such a certificate is never
    conformant. ``seed`` makes the random choices again. ``deadline_s`` is how long one clause
    may take. ``effort`` multiplies the races and the random histories, and the time.
    ``jobs`` is how many clauses may be tried at once where that proves as much: those that
    wait for leases to run out, and those of the fence's table; 1 tries each alone.
    ``beginning`` is called with each clause before it is tried, ``progress`` with its result;
    with several jobs both are called from several threads.

    Raises `ConfigError` for an unknown level or clause, and what opening the subject raises.
    """
    _at_least_one("jobs", jobs)
    with Certification(
        subject,
        level=level,
        seed=seed,
        deadline_s=deadline_s * effort,
        effort=effort,
    ) as run:
        began = time.monotonic()
        clauses = chosen(only)
        tell_of = progress or _say_nothing
        announce = beginning or _say_nothing
        passed = {} if stop_at_failure else run.side_by_side(clauses, jobs, announce, tell_of)
        results: list[Result] = []
        for clause in clauses:
            result = passed.get(clause.id)
            if result is None:
                announce(clause)
                result = run.result(clause)
                tell_of(result)
            results.append(result)
            if stop_at_failure and result.outcome in {"failed", "error"}:
                break
        complete = only is None and not stop_at_failure
        return run.certificate(results, complete=complete, duration_s=time.monotonic() - began)


def _at_least_one(name: str, number: int) -> None:
    if number < 1:
        message = f"{name} is 1 or more, not {number}"
        raise ConfigError(message)


def _say_nothing(_: object) -> None:
    return


class Certification:
    """One certification on its way, for those who call the clauses one by one (pytest does)."""

    def __init__(
        self,
        subject: StoreUnderTest,
        /,
        *,
        level: Level | str | Iterable[Level | str] | None = None,
        seed: int | None = None,
        deadline_s: float = DEADLINE_S,
        effort: int = 1,
    ) -> None:
        _at_least_one("effort", effort)
        if not 0 < deadline_s <= threading.TIMEOUT_MAX:
            message = f"deadline_s={deadline_s}: give the seconds that one clause may take, above 0"
            raise ConfigError(message)
        if IN_CHILD in os.environ:
            message = (
                "a script that is being certified was imported by the kit, and certified again: "
                'put the call under if __name__ == "__main__"'
            )
            raise ConfigError(message)
        self.subject = subject
        self._effort = effort
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._deadline_s = deadline_s
        self._children = Children()
        asked = _levels(level)
        self._asked = tuple(str(each) for each in asked)
        self.declared = self._look()
        self.claim = _claim(asked) if asked else self.declared.levels

    def _look(self) -> Declared:
        place = self.subject.fresh(lease_ttl_ms=_LONG_TTL_MS, manual_clock=False)
        try:
            self._isolated = place.fresh
            return declared_by(place.open())
        finally:
            place.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the processes that were started."""
        self._children.end()

    # --- one clause -------------------------------------------------------------------------

    def outside(self, clause: Clause) -> str | None:
        """Return why the clause does not belong to the claim, or None when it does."""
        if not covers(self.claim, clause):
            return f"the level {clause.level} is not claimed"
        if not reaches(self.subject.sharing, clause.sharing):
            return f"the state reaches one {self.subject.sharing}, and this needs {clause.sharing}"
        if clause.capability is not None and clause.capability not in self.declared.capabilities:
            return f"the store does not offer {clause.capability}"
        return None

    def result(self, clause: Clause) -> Result:
        """Try one clause, if it belongs to the claim."""
        reason = self.outside(clause)
        began = time.monotonic()
        if reason is not None:
            return self._result(clause, "not claimed", reason=reason)
        for ttl_ms in self._ttls(clause):
            attempt = _Attempt(self, clause, ttl_ms)
            attempt.run(self._deadline_s)
            if attempt.outcome is not None:
                break
        outcome: Outcome = "not verified" if attempt.outcome is None else attempt.outcome
        return self._result(
            clause,
            outcome,
            reason=attempt.reason,
            story=attempt.story,
            duration_ms=(time.monotonic() - began) * 1000,
            timed=clause.timed and not self.subject.has_clock,
            counts=attempt.counts,
        )

    def side_by_side(
        self,
        clauses: Iterable[Clause],
        jobs: int,
        announce: Callable[[Clause], None],
        tell_of: Callable[[Result], None],
    ) -> dict[str, Result]:
        """Try those clauses at once that prove as much in company; return what passed, by id.

        Each has a place of its own, makes its calls one after the other, and measures nothing
        that company slows. One that does not pass is not returned: it is to be tried again
        alone, so that company is never the reason of a verdict.
        """
        together = [clause for clause in clauses if self._bears_company(clause)]
        # Those that mostly sleep come first, so that the others work meanwhile.
        together.sort(key=lambda clause: not clause.timed)
        passed: dict[str, Result] = {}
        if jobs == 1 or not self._isolated or len(together) == 1:
            return passed

        def attempt(clause: Clause) -> None:
            announce(clause)
            result = self.result(clause)
            if result.outcome == "passed":
                passed[clause.id] = result
                tell_of(result)

        pool = ThreadPoolExecutor(jobs, thread_name_prefix="rulvar-clause")
        try:
            for ended in [pool.submit(attempt, clause) for clause in together]:
                ended.result()
        finally:
            pool.shutdown(cancel_futures=True)
        return passed

    def _bears_company(self, clause: Clause) -> bool:
        if self.outside(clause) is not None:
            return False
        waits = clause.timed and not self.subject.has_clock
        return waits or clause.beside_others

    def _ttls(self, clause: Clause) -> tuple[int, ...]:
        if not clause.timed:
            return (clause.lease_ttl_ms or _LONG_TTL_MS,)
        return (_LONG_TTL_MS,) if self.subject.has_clock else _SHORT_TTLS_MS

    def _result(
        self,
        clause: Clause,
        outcome: Outcome,
        *,
        reason: str = "",
        story: str = "",
        duration_ms: float = 0.0,
        timed: bool = False,
        counts: dict[str, int] | None = None,
    ) -> Result:
        again = self._again(clause)
        if story:
            head = f"{clause.id} ({clause.strength}; {clause.source})\n{clause.sentence}"
            story = f"{head}\n{story}\nagain:    {again}"
        return Result(
            clause_id=clause.id,
            strength=clause.strength,
            level=str(clause.level),
            sentence=clause.sentence,
            outcome=outcome,
            seed=self.seed,
            duration_ms=duration_ms,
            reason=reason,
            story=story,
            again=again,
            timed=timed,
            kills=clause.kills,
            counts=counts or {},
        )

    def _again(self, clause: Clause) -> str:
        if not self._asked:
            return self.subject.again(clause.id, self.seed)
        return self.subject.again(clause.id, self.seed, self._asked)

    def certificate(
        self, results: Iterable[Result], *, complete: bool, duration_s: float
    ) -> Certificate:
        """Return the certificate over these results."""
        return Certificate(
            store=self.subject.name,
            claim=tuple(str(level) for level in Level if level in self.claim),
            sharing=str(self.subject.sharing),
            capabilities=tuple(sorted(self.declared.capabilities)),
            notes=self.declared.notes,
            seed=self.seed,
            complete=complete,
            results=tuple(results),
            versions=_versions(),
            duration_s=duration_s,
            durability=self.declared.durability,
        )

    def settings(self, place: TestLocation, ttl_ms: int) -> Settings:
        """Return what a trial at this place is made with."""
        return Settings(
            claim=self.claim,
            seed=self.seed,
            children=self._children,
            lease_ttl_ms=ttl_ms if place.honours_ttl else self.declared.lease_ttl_ms,
            effort=self._effort,
            another_place=lambda: self.subject.fresh(lease_ttl_ms=ttl_ms, manual_clock=False),
        )


@dataclass(slots=True)
class _Attempt:
    """One try of one clause, on a thread of its own: a store that hangs must not stop the kit."""

    certification: Certification
    clause: Clause
    ttl_ms: int
    outcome: Outcome | None = None
    reason: str = ""
    story: str = ""
    counts: dict[str, int] | None = None
    check: CheckContext | None = None

    def run(self, deadline_s: float) -> None:
        """Try it, for so long at most."""
        thread = threading.Thread(target=self._run, name=self.clause.id, daemon=True)
        thread.start()
        thread.join(deadline_s)
        if thread.is_alive():
            self.outcome = "error"
            self.reason = (
                f"the check did not end within {deadline_s:g} s: a call hangs, or the store "
                "needs longer here (--deadline)"
            )
            self.story = "\n".join([*self._told(), f"got:      {self.reason}", *_stack(thread)])

    def _told(self) -> list[str]:
        return ["timeline:", *(self.check.timeline.lines() if self.check is not None else ())]

    def _run(self) -> None:
        place: TestLocation | None = None
        check: CheckContext | None = None
        try:
            place = self.certification.subject.fresh(
                lease_ttl_ms=self.ttl_ms,
                manual_clock=self.clause.timed or self.clause.moves_clock,
            )
            settings = self.certification.settings(place, self.ttl_ms)
            check = self.check = CheckContext(self.clause, place, settings)
            self.clause.check(check)
            check.finish()
        except CheckFailure as failure:
            self.outcome, self.reason, self.story = "failed", str(failure), failure.text()
        except NotVerified as reason:
            self.outcome, self.reason = "not verified", str(reason)
        except TooSlow as reason:
            self.outcome, self.reason = None, f"the machine was too slow: {reason}"
        except Exception as error:  # noqa: BLE001 - told as the store's, or whole as the kit's
            self._judge(error, check)
        else:
            self.outcome = "passed"
        finally:
            if check is not None:
                self.counts = dict(check.counts)
                check.close()
            elif place is not None:
                place.discard()

    def _judge(self, error: Exception, check: CheckContext | None) -> None:
        """Find whose fault an error is that the check did not expect."""
        fault = None if check is None else fault_of(error)
        if check is None or fault is None:
            self.outcome = "error"
            self.reason = f"{type(error).__name__}: {error}"
            self.story = "\n".join([*self._told(), *traceback.format_exception(error)])
        elif self.clause.timed and check.late():
            self.outcome = None
            self.reason = f"the machine was too slow: {type(error).__name__}: {error}"
        else:
            failure = CheckFailure(*fault, timeline=tuple(check.timeline.lines()))
            self.outcome, self.reason, self.story = "failed", str(failure), failure.text()


def _stack(thread: threading.Thread) -> list[str]:
    """Return where a thread stands, as it is told in a traceback."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - made for this
    if frame is None:
        return []
    lines = "".join(traceback.format_stack(frame)[-_FRAMES:]).splitlines()
    return ["it stands at:", *lines]


def _levels(level: Level | str | Iterable[Level | str] | None) -> tuple[Level, ...]:
    if level is None:
        return ()
    found = []
    for each in [level] if isinstance(level, str) else level:
        try:
            found.append(Level(each))
        except ValueError as error:
            known = ", ".join(Level)
            message = f"{each!r} is not a level: use one of {known}"
            raise ConfigError(message) from error
    if not found:
        message = "no level is claimed: name one, or leave level out for what the store declares"
        raise ConfigError(message)
    return tuple(found)


def _claim(levels: Iterable[Level]) -> frozenset[Level]:
    return frozenset[Level]().union(*(LEVELS[level] for level in levels))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("rulvar-conformance", "rulvar-core"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
