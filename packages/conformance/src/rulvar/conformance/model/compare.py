"""One operation on two stores: the answers and everything that can be read must agree.

The reference store says what is right. Epochs need not be the same numbers in both: the
contract asks only that they rise, so each grant notes which number of the store stands for
which of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.failure import CheckFailure, shown
from rulvar.conformance.harness.state import read_run
from rulvar.core.errors import JournalOrderViolation, LeaseHeldError
from rulvar.core.records import Lease
from rulvar.core.stores import Stores
from rulvar.core.testing.reference import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import FullJournal, FullTranscripts
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.state import RunState

__all__ = ["Both", "Pair", "Side"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One lease as each of the two stores knows it, under the name that the script gives it."""

    name: str
    right: Lease
    tried: Lease


@dataclass(slots=True)
class Side:
    """One of the two stores, as an operation sees it: which of a pair's leases is its own."""

    stores: Stores
    is_right: bool

    @property
    def journal(self) -> FullJournal:
        """The journal half."""
        return cast("FullJournal", self.stores.journal)

    @property
    def transcripts(self) -> FullTranscripts:
        """The transcript half."""
        return cast("FullTranscripts", self.stores.transcripts)

    def lease(self, pair: Pair) -> Lease:
        """Return this store's lease of the pair."""
        return pair.right if self.is_right else pair.tried

    def under(self, pair: Pair | None) -> dict[str, Lease]:
        """Return the keyword of a call, which a store without leases is never given."""
        return {} if pair is None else {"lease": self.lease(pair)}


@dataclass(slots=True)
class _Answer:
    value: object = None
    error: Exception | None = None

    def words(self) -> str:
        if self.error is None:
            return shown(self.value) if self.value is not None else "it returns"
        reason = f" ({self.error.reason})" if isinstance(self.error, LeaseHeldError) else ""
        return f"{type(self.error).__name__}{reason}"


def _ask(call: Callable[[Side], object], side: Side) -> _Answer:
    try:
        return _Answer(call(side))
    except Exception as error:  # noqa: BLE001 - compared with the other store's
        return _Answer(error=error)


@dataclass(slots=True)
class Both:
    """The two stores, the script so far, and how their epochs correspond."""

    check: CheckContext
    right: Side
    handles: list[Side]
    runs: tuple[str, ...]
    script: list[str] = field(default_factory=list)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    marks: dict[str, Pair] = field(default_factory=dict)
    grants: int = 0

    @classmethod
    def begin(cls, check: CheckContext, runs: tuple[str, ...], more: list[Stores]) -> Both:
        """Put a new reference store beside the store under trial."""
        ttl_ms = check.lease_ttl_ms if check.claims(Level.LEASABLE) else 60_000
        store = ReferenceStore(clock=check.place.clock, lease_ttl_ms=ttl_ms)
        right = Side(Stores(store, store.transcripts()), True)
        handles = [Side(each, False) for each in (check.stores, *more)]
        for run in runs:
            check.knows(run)
        return cls(check, right, handles, runs)

    def do(self, text: str, call: Callable[[Side], object], *, handle: int = 0) -> object:
        """Make one operation on both; return the reference's value. Raises `CheckFailure`."""
        self.script.append(text)
        expected = _ask(call, self.right)
        got = _ask(call, self.handles[handle % len(self.handles)])
        if isinstance(expected.value, Lease) and isinstance(got.value, Lease):
            return self._granted(expected.value, got.value)
        self._compare(text, expected, got)
        self.compare_states()
        return expected.value

    def _granted(self, right: Lease, tried: Lease) -> Pair:
        self.grants += 1
        pair = Pair(f"lease_{self.grants}", right, tried)
        self.script[-1] = f"{pair.name} = {self.script[-1]}"
        before = self.marks.get(right.run_id)
        if (right.run_id, right.owner) != (tried.run_id, tried.owner):
            self._fail(f"a lease of {right.run_id!r} for {right.owner!r}", shown(tried))
        if before is not None and tried.epoch <= before.tried.epoch:
            self._fail(f"an epoch above {before.tried.epoch}", str(tried.epoch))
        self.epochs[right.run_id, right.epoch] = tried.epoch
        self.marks[right.run_id] = pair
        self.compare_states()
        return pair

    def raised(self, run_id: str, right: int, tried: int) -> None:
        """Note a floor below which no epoch is granted any more."""
        self.marks[run_id] = Pair(
            f"the floor of {run_id}",
            Lease(run_id=run_id, owner="nobody", epoch=right),
            Lease(run_id=run_id, owner="nobody", epoch=tried),
        )

    def _compare(self, text: str, expected: _Answer, got: _Answer) -> None:
        same = type(expected.error) is type(got.error)
        if same and expected.error is None:
            same = _plain(expected.value) == _plain(got.value)
        if same and isinstance(expected.error, LeaseHeldError):
            same = _same_refusal(expected.error, cast("LeaseHeldError", got.error))
        if same and isinstance(expected.error, JournalOrderViolation):
            theirs = cast("JournalOrderViolation", got.error)
            same = theirs.tail_seq in {None, expected.error.tail_seq}
        if not same:
            detail = f": {got.error}" if got.error is not None else ""
            self._fail(f"{text}: {expected.words()}", f"{got.words()}{detail}")

    def compare_states(self) -> None:
        """Hold everything that can be read of the store against the reference."""
        for run in self.runs:
            expected = self._translated(run, self._read(self.right, run))
            for side in self.handles:
                got = self._read(side, run)
                if self.check.waits:
                    expected, got = _without_time(expected), _without_time(got)
                if got != expected:
                    self._fail(
                        f"the state of {run!r}: {'; '.join(expected.lines())}",
                        "; ".join(got.lines()),
                    )

    def _read(self, side: Side, run: str) -> RunState:
        check = self.check
        return read_run(side.stores, run, blobs=check.has_blobs, journal=check.has_journal)

    def _translated(self, run: str, state: RunState) -> RunState:
        shows = callable(getattr(self.handles[0].stores.journal, "get_lease", None))
        if not shows or state.lease is None:
            return replace(state, lease=None)
        owner, epoch, expires_at = state.lease
        return replace(state, lease=(owner, self.epochs.get((run, epoch), epoch), expires_at))

    def _fail(self, expected: str, got: str) -> None:
        raise CheckFailure(
            expected,
            got,
            timeline=tuple(f"    {line}" for line in self.script),
            note="the calls above are all that it takes; the reference store says what is right",
        )


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _same_refusal(expected: LeaseHeldError, got: LeaseHeldError) -> bool:
    return (
        expected.reason == got.reason
        and expected.run_id == got.run_id
        and got.holder in {None, expected.holder}
    )


def _without_time(state: RunState) -> RunState:
    if state.lease is None:
        return state
    owner, epoch, _ = state.lease
    return replace(state, lease=(owner, epoch, 0))
