"""A caller that is interrupted by Ctrl-C in the middle of a call (family E)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.interrupts import Interrupted
from rulvar.conformance.harness.state import RunState, read_run
from rulvar.core.capabilities import busy_timeout_ms_of
from rulvar.core.errors import OutcomeUnknownError, StoreBusyError
from rulvar.core.records import RunMeta
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.core.records import Lease

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Interrupted calls")

_T = TypeVar("_T")
_MOST_POINTS = 40
_WAIT_S = 3.0
"""How long a bystander waits, beyond the busy timeout that the store declares."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A call to be interrupted, and what the run looks like when it has landed."""

    words: str
    call: Callable[[], object]
    before: RunState
    after: RunState


@CLAUSES.clause(
    "E-interrupted",
    "A call that a KeyboardInterrupt leaves has landed whole or not at all, nothing of it lands "
    "later, and the store goes on.",
)
def _interrupted(check: CheckContext) -> None:
    for name, aim in _aims(check):
        run = check.run_id(name)
        check.knows(run)
        probe = Interrupted(aim(check, run).call, at=0)
        _require_end(check, probe, name)
        stride = max(1, -(-probe.points // _MOST_POINTS))
        for at in range(1 + check.random.randrange(stride), probe.points + 1, stride):
            _interrupt(check, aim(check, run), run, at)
        check.count("interrupts", probe.points // stride)


def _interrupt(check: CheckContext, target: _Target, run: str, at: int) -> None:
    call = Interrupted(target.call, at=at)
    _require_end(check, call, target.words)
    told = f"{call.outcome}, interrupted in {call.where}" if call.hit else call.outcome
    check.timeline.add("interrupted", target.words, told)
    now = _soon(check, lambda: _read(check, run), "a reader gets an answer")
    whole = (target.after,) if call.outcome == "returned" else (target.before, target.after)
    if now not in whole:
        check.fail(
            f"{target.words} lands whole or not at all ({told})",
            "a part of it" if call.outcome != "returned" else "it returned and did not land",
            before={run: target.before},
            after={run: now},
        )
    _soon(check, lambda: _go_on(check), "another caller's append lands")
    later = _soon(check, lambda: _read(check, run), "a reader gets an answer")
    if later != now:
        check.fail(
            f"nothing of {target.words} lands later ({told})",
            "something did",
            before={run: now},
            after={run: later},
        )


def _require_end(check: CheckContext, call: Interrupted, words: str) -> None:
    if not call.run(_bound_s(check)):
        check.fail(f"{words} ends when it is interrupted", f"it hangs ({call.where})")


def _bound_s(check: CheckContext) -> float:
    return _WAIT_S + (busy_timeout_ms_of(check.stores.journal) or 0) / 1000


def _soon(check: CheckContext, call: Callable[[], _T], words: str) -> _T:
    """Make a call on another thread, and have it end in time."""
    values: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            values.append(call())
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_bound_s(check))
    if thread.is_alive():
        check.fail(f"after an interrupt {words}", f"it waits for more than {_bound_s(check):.1f} s")
    if errors:
        check.fail(f"after an interrupt {words}", repr(errors[0]))
    return values[0]


def _go_on(check: CheckContext) -> None:
    """Append to another run, as a neighbour who may have been in the same batch."""
    run, journal = check.run_id("neighbour"), check.stores.journal
    check.knows(run)
    found = journal.load(run)
    added = record(found[-1].seq + 1 if found else 0, check.mark())
    try:
        journal.append(run, added)
    except (OutcomeUnknownError, StoreBusyError):
        if added not in journal.load(run):
            journal.append(run, added)


def _read(check: CheckContext, run: str) -> RunState:
    found = read_run(check.stores, run, blobs=check.has_blobs, journal=check.has_journal)
    # Which epoch it is, and when it expires, is the store's affair.
    return found if found.lease is None else replace(found, lease=(found.lease[0], 0, 0))


# --- what is interrupted ------------------------------------------------------------------------


def _aims(check: CheckContext) -> Iterator[tuple[str, Callable[[CheckContext, str], _Target]]]:
    yield "append", _at_append
    yield "put_meta", _at_row
    yield "delete", _at_deletion
    if check.has_blobs:
        yield "put", _at_blob
        yield "blob-delete", _at_blob_deletion
    if check.claims(Level.LEASABLE):
        yield "leased-append", _at_leased_append
        yield "acquire", _at_grant
        yield "release", _at_release


def _at_append(check: CheckContext, run: str) -> _Target:
    before, journal = _read(check, run), check.stores.journal
    added = record(before.journal[-1][0] + 1 if before.journal else 0, check.mark())
    return _Target(
        "append",
        lambda: journal.append(run, added),
        before,
        replace(before, journal=(*before.journal, (added.seq, added.payload))),
    )


def _at_row(check: CheckContext, run: str) -> _Target:
    before, journal = _read(check, run), check.stores.journal
    meta = RunMeta(
        run_id=run, status="ok", updated_at="2026-01-01T00:00:00.000Z", name=check.mark()
    )
    after = replace(before, row=encode_meta(meta))
    return _Target("put_meta", lambda: journal.put_meta(meta), before, after)


def _filled(check: CheckContext, run: str) -> RunState:
    worker = check.actor("worker")
    worker.journal.delete(run)
    for seq in range(3):
        worker.append(run, seq)
    worker.put_meta(run)
    if check.claims(Level.LEASABLE):
        worker.acquire(run)
    return _read(check, run)


def _at_deletion(check: CheckContext, run: str) -> _Target:
    before, journal = _filled(check, run), check.stores.journal
    after = RunState(blobs=before.blobs)
    return _Target("delete", lambda: journal.delete(run), before, after)


def _at_blob(check: CheckContext, run: str) -> _Target:
    before, blobs = _read(check, run), check.stores.transcripts
    ref, blob = f"{run}/turn", check.mark().encode()
    after = replace(before, blobs=((ref, blob),))
    return _Target("put", lambda: blobs.put(ref, blob), before, after)


def _at_blob_deletion(check: CheckContext, run: str) -> _Target:
    ref, blobs = f"{run}/turn", check.stores.transcripts
    check.actor("worker").put(ref)
    before = _read(check, run)
    return _Target(
        "transcripts.delete", lambda: blobs.delete(ref), before, replace(before, blobs=())
    )


def _leased(check: CheckContext, run: str) -> Lease:
    worker = check.actor("worker")
    worker.journal.delete(run)  # whatever lease an interrupted call has left
    return worker.acquire(run)


def _at_leased_append(check: CheckContext, run: str) -> _Target:
    lease = _leased(check, run)
    before, journal, added = _read(check, run), check.actor("worker").journal, record(7, "x")
    after = replace(before, journal=((7, added.payload),))
    return _Target(
        "append under a lease", lambda: journal.append(run, added, lease=lease), before, after
    )


def _at_grant(check: CheckContext, run: str) -> _Target:
    earlier = _leased(check, run)
    journal = check.actor("worker").journal
    after = _read(check, run)
    journal.release(earlier)
    before = _read(check, run)
    return _Target("acquire", lambda: journal.acquire(run, "worker"), before, after)


def _at_release(check: CheckContext, run: str) -> _Target:
    lease = _leased(check, run)
    before, journal = _read(check, run), check.actor("worker").journal
    return _Target("release", lambda: journal.release(lease), before, replace(before, lease=None))
