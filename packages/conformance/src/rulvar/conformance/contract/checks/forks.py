"""What a forked child opens for itself (family P); what it inherited is judged by `E-forked`.

A store may refuse to be opened anew where the parent had the place open at the fork: libraries
that keep their locks once for a process believe in the child that they have them. A store that
opens there all the same is held to what any other process may rely on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self, cast

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.failure import NotVerified
from rulvar.conformance.harness.forked_child import ForkedChild
from rulvar.core.capabilities import has_close
from rulvar.core.errors import LeaseHeldError, StoreForkedError

if TYPE_CHECKING:
    from types import TracebackType

    from rulvar.conformance.contract.levels import Strength
    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.core.spi import LeasableStore
    from rulvar.core.stores import Stores

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Forked children")

_STRENGTH: Strength = "MUST" if hasattr(os, "fork") else "SHOULD"
_DONE = "done"
_REFUSED = StoreForkedError.__name__


class _Child:
    """What the forked child does when it is asked, and how the clause asks it."""

    def __init__(self, check: CheckContext) -> None:
        self._trial = check
        self._stores: Stores | None = None
        self._child = ForkedChild(self._perform)

    def __enter__(self) -> Self:
        self._child.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self._child.__exit__(kind, error, trace)

    def does(self, what: str, run_id: str = "", seq: int = 0) -> str:
        """Let the child do one thing; return how that ended."""
        said = self._child.ask(f"{what}\t{run_id}\t{seq}")
        self._trial.timeline.add("child", f"{what}({run_id!r}, {seq})", said)
        return said

    def must(self, what: str, run_id: str = "", seq: int = 0) -> None:
        """Let the child do one thing, which has to work."""
        self._trial.equal(f"what {what} says in the child", self.does(what, run_id, seq), _DONE)

    def _perform(self, order: str) -> str:
        what, run_id, seq = order.split("\t")
        try:
            self._do(what, run_id, int(seq))
        except StoreForkedError:
            return _REFUSED
        return _DONE

    def _do(self, what: str, run_id: str, seq: int) -> None:
        if what == "open":
            self._stores = self._trial.place.open()
            return
        assert self._stores is not None
        if what == "append":
            self._stores.journal.append(run_id, record(seq, "child"))
        elif what == "acquire":
            cast("LeasableStore", self._stores.journal).acquire(run_id, "child")
        else:
            self._stores.close()


def _need_forks() -> None:
    if not hasattr(os, "fork"):
        message = "this system has no fork"
        raise NotVerified(message)


@CLAUSES.clause(
    "P-fork-opens",
    "What a forked child opens anew is refused as StoreForkedError, or works as in any process.",
    strength=_STRENGTH,
    sharing=Sharing.SHARED,
)
def _opens(check: CheckContext) -> None:
    _need_forks()
    run, owned = check.run_id(), check.run_id("owned")
    here = check.actor("here")
    here.append(run, 0)
    leases = check.claims(Level.LEASABLE)
    with _Child(check) as child:
        said = child.does("open")
        if said == _REFUSED:
            here.append(run, 1)
            _require_seqs(check, here, run, [0, 1])
            return
        check.equal("what open says in the child", said, _DONE)
        child.must("append", run, 1)
        if leases:
            child.must("acquire", owned)
            _require_held(check, here, owned)
        here.append(run, 2)
        if has_close(check.stores.journal):
            # A library that counted the child's locks as the parent's tidies up here.
            here.call("close()", check.stores.close)
        child.must("append", run, 3)
        later = check.actor("later", check.reopen())
        _require_seqs(check, later, run, [0, 1, 2, 3])
        if leases:
            _require_held(check, later, owned)
        child.must("append", run, 4)
        child.must("close")
    _require_seqs(check, later, run, [0, 1, 2, 3, 4])


@CLAUSES.clause(
    "P-fork-closed",
    "A child that was forked after the parent had closed opens the place, and its writes stay.",
    strength=_STRENGTH,
    sharing=Sharing.SHARED,
    capability="Closable",
)
def _closed(check: CheckContext) -> None:
    _need_forks()
    run = check.run_id()
    here = check.actor("here")
    here.append(run, 0)
    here.call("close()", check.stores.close)
    with _Child(check) as child:
        child.must("open")
        child.must("append", run, 1)
        child.must("close")
        # Only now: some stores have one writer at a time.
        later = check.actor("later", check.reopen())
        later.append(run, 2)
        _require_seqs(check, later, run, [0, 1, 2])


def _require_seqs(check: CheckContext, reader: Actor, run_id: str, expected: list[int]) -> None:
    check.equal("the seqs that are there", [each.seq for each in reader.load(run_id)], expected)


def _require_held(check: CheckContext, rival: Actor, run_id: str) -> None:
    try:
        rival.journal.acquire(run_id, rival.name)
    except LeaseHeldError as error:
        check.equal("why the child's run is refused to another", error.reason, "held")
    else:
        check.fail("the child's run is refused to another as held", "it was granted")
