"""Who may do what next: every action that is worth a try in a state.

An owner tries every call with every lease that it was ever granted, and with two forged ones:
its own name under the run's highest epoch, and under the one above. Which process makes the
call is of no account to a store, which sees the lease alone; so no owner tries another's.

Three things are left out because they add nothing. Owners are alike: the second is let in when
the first has begun something, so what is explored is complete up to their names. A caller
whose lease would be refused at ``begin`` is the same as one that comes with it later, as a
whole. An owner that crashed and forgot its leases does less than one that kept them, and the
lease that it forgot is among the forged ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.protocol.rules import SOUND, step, verdict
from rulvar.conformance.protocol.state import (
    CLOCK,
    EXPIRED,
    OPERATOR,
    STALE,
    WRITES,
    Action,
    LeaseValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.conformance.protocol.rules import Off
    from rulvar.conformance.protocol.state import Bounds, Call, State

__all__ = ["moves"]

_ABOUT_A_LEASE: tuple[Call, ...] = ("renew", "release", "revive")


def moves(state: State, bounds: Bounds, off: Off = SOUND) -> Iterator[Action]:
    """Return every action of every actor; some lead out of the bounds."""
    may_begin = sum(flown is not None for flown in state.flying) < bounds.flights
    for owner in range(_let_in(state)):
        if state.flying[owner] is not None:
            yield from _ends_of_flight(state, owner)
            continue
        for call, run, lease, more in _calls(state, owner, bounds):
            action = Action(call, owner, run, lease, more)
            yield action
            if may_begin and _passes(state, action, off):
                yield action._replace(phase="begin")
    if state.flying[OPERATOR] is not None:
        yield from _ends_of_flight(state, OPERATOR)
    else:
        yield from _operations(state, bounds, may_begin=may_begin)
    if "time" in bounds.calls:
        yield from _times(state)


def _let_in(state: State) -> int:
    """Return how many owners may act: those that did, and one more."""
    owners = len(state.known)
    begun = sum(
        bool(leases) or flown is not None
        for leases, flown in zip(state.known, state.flying, strict=False)
    )
    return min(owners, begun + 1)


def _ends_of_flight(state: State, actor: int) -> Iterator[Action]:
    flown = state.flying[actor]
    if flown is not None:
        yield flown._replace(phase="commit")
        yield flown._replace(phase="crash")


def _offers(state: State, owner: int, *, forged: bool) -> Iterator[LeaseValue]:
    known = state.known[owner]
    yield from known
    if not forged:
        return
    high = state.runs[0].high
    own = LeaseValue(0, owner, high)
    if high and own not in known:
        yield own
    yield LeaseValue(0, owner, high + 1)


def _calls(
    state: State, owner: int, bounds: Bounds
) -> Iterator[tuple[Call, int, LeaseValue | None, int]]:
    made = bounds.calls
    for run in range(len(state.runs)):
        if "acquire" in made:
            yield "acquire", run, None, 0
    if "seize" in made:
        yield "seize", 0, None, 0
    for lease in _offers(state, owner, forged=bounds.forged):
        for call in WRITES:
            if call in made:
                yield call, 0, lease, 0
        if state.runs[0].journal and "append" in made:
            yield "append", 0, lease, STALE
        for call in _ABOUT_A_LEASE:
            if call in made and (lease.run == 0 or call == "release"):
                yield call, lease.run, lease, 0


def _passes(state: State, action: Action, off: Off) -> bool:
    """Whether a call that begins now passes its check now."""
    if action.more == STALE or action.call == "seize" or action.run:
        return False
    if action.call in {"acquire", "revive"}:
        return step(state, action, off)[1].word == "granted"
    if action.lease is None:
        return False
    return not verdict(state, action.run, action.lease, action.call, off)


def _operations(state: State, bounds: Bounds, *, may_begin: bool) -> Iterator[Action]:
    """Return what is done without a lease: writes of a single writer, and restores."""
    for call in WRITES:
        if call in bounds.calls:
            yield Action(call, OPERATOR, 0)
    if "append" in bounds.calls and state.runs[0].journal:
        yield Action("append", OPERATOR, 0, None, STALE)
    if "raise_epoch" in bounds.calls:
        high = state.runs[0].high
        for at_least in range(max(1, high - 1), high + 2):
            action = Action("raise_epoch", OPERATOR, 0, None, at_least)
            yield action
            if may_begin:
                yield action._replace(phase="begin")


def _times(state: State) -> Iterator[Action]:
    for number, run in enumerate(state.runs):
        if run.row is not None:
            if run.row.age < EXPIRED:
                yield Action("time", CLOCK, number, None, 1)
            if run.row.age > 0:
                yield Action("time", CLOCK, number, None, -1)
