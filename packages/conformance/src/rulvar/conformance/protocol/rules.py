"""What every call does: the fence of contract.md#the-fence, as a pure function.

`step` takes a state and an action and gives the next state and the answer. Each check that it
makes is a guard with a name (`rulvar.conformance.protocol.guards`), and ``off`` says which of
them are taken away: with none, this is the protocol; with one, it is what is left of it.

A call is made as one unit (phase ``call``) or in two steps. In the protocol ``begin`` is a
caller that has decided and is stalled before the store hears of it, and ``commit`` is the
whole call: checks and write. Without the guard ``unit``, ``begin`` is the check and ``commit``
is the write alone, with whatever the others did between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.protocol.state import (
    ABSENT,
    EXPIRED,
    NOBODY,
    RENEWED,
    STALE,
    Answer,
    LeaseRow,
    LeaseValue,
    Run,
)

if TYPE_CHECKING:
    from rulvar.conformance.protocol.state import Action, Call, State

__all__ = ["SOUND", "Off", "step", "verdict"]

Off = frozenset[tuple[str, str]]
"""The guards that are taken away, each with the call that it is taken away from."""

SOUND: Off = frozenset()

_LANDED = Answer("landed")
_BEGUN = Answer("begun")
_DIED = Answer("died")
_PASSED = Answer("passed")
_OUT_OF_ORDER = Answer("out of order")
_HELD = Answer("refused", reason="held")
_DELETIONS = ("delete", "delete_whole_run")


def verdict(  # noqa: PLR0911 - one return for each line of the table
    state: State, run: int, lease: LeaseValue, call: Call, off: Off = SOUND
) -> str:
    """Return why the lease does not let the call through on that run, or an empty string."""
    if lease.run != run and ("run", call) not in off:
        return "foreign-run"
    there = state.runs[lease.run]
    row = there.row
    if there.high == 0 and ("known", call) not in off:
        return "unknown"
    if lease.epoch > there.high and ("above", call) not in off:
        return "unknown"
    if lease.epoch < there.high and ("epoch", call) not in off:
        return "superseded"
    if row is None or (row.epoch != there.high and ("row", call) not in off):
        return "released" if ("ended", call) not in off else ""
    if row.owner != lease.owner and ("owner", call) not in off:
        return "unknown"
    if row.age >= EXPIRED and ("expiry", call) not in off:
        return "expired"
    return ""


def step(state: State, action: Action, off: Off = SOUND) -> tuple[State, Answer]:
    """Return the state after the action, and what it answers."""
    if action.phase == "call":
        return _perform(state, action, off, asks=True)
    if action.phase == "begin":
        return _begin(state, action, off)
    flown = state.flying[action.actor]
    state = _with_flight(state, action.actor, None)
    if action.phase == "crash" or flown is None:
        return state, _DIED
    return _perform(state, flown, off, asks=("unit", flown.call) not in off)


def _with_flight(state: State, actor: int, flown: Action | None) -> State:
    flying = list(state.flying)
    flying[actor] = flown
    return state._replace(flying=tuple(flying))


def _with_run(state: State, run: int, changed: Run) -> State:
    runs = list(state.runs)
    runs[run] = changed
    return state._replace(runs=tuple(runs))


def _begin(state: State, action: Action, off: Off) -> tuple[State, Answer]:
    there = state.runs[action.run]
    if ("unit", action.call) in off:
        if action.call in {"acquire", "revive", "seize"}:
            action = action._replace(more=there.high + 1)
        elif action.call == "renew_all":
            passed = (each for each in action.leases if not _why(state, action, each, off))
            action = action._replace(leases=tuple(passed))
        elif action.call == "raise_epoch":
            action = action._replace(more=max(there.high, action.more))
    state = _with_flight(state, action.actor, action._replace(phase="call"))
    if ("parts", action.call) in off:
        state = _with_run(state, action.run, there._replace(journal=()))
    return state, _BEGUN


def _perform(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    """Make the call; without ``asks`` its check was made before, and only the write is left."""
    if action.call == "time":
        return _let_time_pass(state, action), _PASSED
    perform = _OTHERS.get(action.call, _mutate)
    return perform(state, action, off, asks=asks)


def _let_time_pass(state: State, action: Action) -> State:
    there = state.runs[action.run]
    row = there.row
    if row is None:
        return state
    age = min(EXPIRED, max(0, row.age + action.more))
    return _with_run(state, action.run, there._replace(row=row._replace(age=age)))


# --- grants ---------------------------------------------------------------------------------


def _acquire(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    if not asks:
        return _grant(state, action, off, noted=action.more)
    there = state.runs[action.run]
    row = there.row
    if row is not None and row.epoch == there.high:
        live = row.age < EXPIRED or ("expired", "acquire") in off
        own = row.owner == action.actor and ("own", "acquire") in off
        if live and not own and ("live", "acquire") not in off:
            return state, _HELD
    return _grant(state, action, off)


def _revive(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    if not asks:
        return _grant(state, action, off, noted=action.more)
    lease = action.lease
    if lease is None or ("asks", "revive") in off:
        return _grant(state, action, off)
    reason = verdict(state, action.run, lease, "revive", off)
    if not reason and ("live", "revive") not in off:
        return state, _HELD
    if reason in {"", "expired"}:
        return _grant(state, action, off)
    return state, Answer("refused", reason=reason)


def _seize(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    if not asks:
        return _grant(state, action, off, noted=action.more)
    over = action.lease
    if over is None or ("asks", "seize") in off:
        return _grant(state, action, off)
    reason = verdict(state, action.run, over, "seize", off)
    if not reason or (reason == "expired" and ("expired", "seize") not in off):
        return _grant(state, action, off)
    return state, Answer("refused", reason=reason if reason == "foreign-run" else "superseded")


def _grant(state: State, action: Action, off: Off, *, noted: int = 0) -> tuple[State, Answer]:
    there = state.runs[action.run]
    epoch = noted or there.high + 1
    if ("tombstone", "grant") in off:
        epoch = (there.row.epoch if there.row is not None else 0) + 1
    elif ("next", "grant") in off:
        epoch = max(there.high, 1)
    owner = action.grantee
    state = _with_run(state, action.run, there._replace(high=epoch, row=LeaseRow(owner, epoch, 0)))
    lease = LeaseValue(action.run, owner, epoch)
    known = list(state.known)
    known[owner] = tuple(sorted({*known[owner], lease}))
    return state._replace(known=tuple(known)), Answer("granted", epoch=epoch)


def _raise_epoch(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    there = state.runs[action.run]
    high = action.more
    if asks and ("floor", "raise_epoch") not in off:
        high = max(there.high, action.more)
    row = there.row if ("ends", "raise_epoch") in off else None
    return _with_run(state, action.run, there._replace(high=high, row=row)), _LANDED


# --- mutations ------------------------------------------------------------------------------


def _mutate(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    call, lease = action.call, action.lease
    disordered = action.more == STALE and ("order", "append") not in off
    if disordered and ("last", "append") in off:
        return state, _OUT_OF_ORDER
    if lease is not None and asks and ("asks", call) not in off:
        reason = verdict(state, action.run, lease, call, off)
        if reason:
            if ("tells", call) in off:
                return state, _LANDED
            if ("first", call) in off:
                state = _write(state, action, off)
            return state, Answer("refused", reason=reason)
    if disordered:
        return state, _OUT_OF_ORDER
    return _write(state, action, off), _LANDED


def _why(state: State, action: Action, lease: LeaseValue, off: Off) -> str:
    return (
        "" if ("asks", action.call) in off else verdict(state, lease.run, lease, action.call, off)
    )


def _renew_all(state: State, action: Action, off: Off, *, asks: bool) -> tuple[State, Answer]:
    """Renew each live lease; a dead one is refused, and hinders no other."""
    said = []
    for lease in action.leases:
        reason = _why(state, action, lease, off) if asks else ""
        if not reason or ("first", "renew_all") in off:
            there = state.runs[lease.run]
            row = _renewed(there, lease, off, call="renew_all")
            state = _with_run(state, lease.run, there._replace(row=row))
        said.append("" if ("tells", "renew_all") in off else reason)
        if reason and ("rest", "renew_all") in off:
            break
    return state, Answer("landed", reason=", ".join(why or RENEWED for why in said))


def _write(state: State, action: Action, off: Off) -> State:
    """Return the state with what the call is for, whoever may or may not do it."""
    call, lease = action.call, action.lease
    there = state.runs[action.run]
    epoch = NOBODY if lease is None else lease.epoch
    if call == "append":
        there = there._replace(journal=(*there.journal, epoch))
    elif call == "put_meta":
        there = there._replace(meta=epoch)
    elif call == "put_blob":
        there = there._replace(blob=epoch)
    elif call == "delete_blob":
        there = there._replace(blob=ABSENT)
    elif call in _DELETIONS:
        there = _deleted(there, call, off)
    elif call == "release":
        there = there._replace(row=there.row if ("ends", call) in off else None)
    elif lease is not None:
        there = there._replace(row=_renewed(there, lease, off))
    state = _with_run(state, action.run, there)
    if ("only", call) in off:
        state = state._replace(runs=tuple(run._replace(row=None) for run in state.runs))
    return state


def _deleted(there: Run, call: Call, off: Off) -> Run:
    whole = call == "delete_whole_run"
    blobs_go = whole != (("blobs", call) in off)
    return Run(
        high=there.high if ("tombstone", call) not in off else 0,
        row=there.row if ("ends", call) in off else None,
        journal=there.journal if ("journal", call) in off else (),
        meta=there.meta if ("meta", call) in off else ABSENT,
        blob=ABSENT if blobs_go else there.blob,
    )


def _renewed(there: Run, lease: LeaseValue, off: Off, *, call: Call = "renew") -> LeaseRow:
    if ("extends", call) in off and there.row is not None:
        return there.row
    return LeaseRow(lease.owner, lease.epoch, 0)


_OTHERS = {
    "acquire": _acquire,
    "seize": _seize,
    "revive": _revive,
    "raise_epoch": _raise_epoch,
    "renew_all": _renew_all,
}
