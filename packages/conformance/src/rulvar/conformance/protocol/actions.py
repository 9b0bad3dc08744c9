"""Who may do what next: every action that is worth a try in a state.

An owner tries every call with every lease that it was ever granted, and with two forged ones:
its own name under the run's highest epoch, and under the one above; in `renew_all` all of
them at once. A seizure is tried over every lease that anybody was granted. Which process makes the
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
    RENEWED,
    STALE,
    WRITES,
    Action,
    LeaseValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.conformance.protocol.rules import Off
    from rulvar.conformance.protocol.state import Bounds, Call, State

__all__ = ["actions"]

_OF_HOLDERS: tuple[Call, ...] = ("renew", "release", "revive")


def actions(state: State, bounds: Bounds, off: Off = SOUND) -> Iterator[Action]:
    """Return every action of every actor; some lead out of the bounds."""
    may_begin = sum(flown is not None for flown in state.flying) < bounds.flights
    for owner in range(_let_in(state)):
        if state.flying[owner] is not None:
            yield from _ends_of_flight(state, owner)
            continue
        for action in _calls(state, owner, bounds):
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


def _calls(state: State, owner: int, bounds: Bounds) -> Iterator[Action]:
    """Return every call that an owner may make, as one unit."""
    offered = tuple(_offers(state, owner, forged=bounds.forged))
    for action in (*_grants(state, owner, offered), *_mutations(state, owner, offered)):
        if action.call in bounds.calls:
            yield action


def _grants(state: State, owner: int, offered: tuple[LeaseValue, ...]) -> Iterator[Action]:
    for run in range(len(state.runs)):
        yield Action("acquire", owner, run)
    yield Action("seize", owner, 0)
    # Whoever finds a dead owner names that one's lease.
    known = {lease for leases in state.known for lease in leases}
    for over in sorted(known.union(offered)):
        yield Action("seize", owner, 0, over)


def _mutations(state: State, owner: int, offered: tuple[LeaseValue, ...]) -> Iterator[Action]:
    for lease in offered:
        for call in WRITES:
            yield Action(call, owner, 0, lease)
        if state.runs[0].journal:
            yield Action("append", owner, 0, lease, STALE)
        for call in _OF_HOLDERS:
            if lease.run == 0 or call == "release":
                yield Action(call, owner, lease.run, lease)
    batch = tuple(lease for lease in offered if lease.run == 0)
    if batch:
        yield Action("renew_all", owner, 0, leases=batch)


def _passes(state: State, action: Action, off: Off) -> bool:
    """Whether a call that begins now passes its check now."""
    if action.more == STALE or action.run or (action.call == "seize" and action.lease is None):
        return False
    if action.call == "renew_all":
        return RENEWED in step(state, action, off)[1].reason
    if action.call in {"acquire", "revive", "seize"}:
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
