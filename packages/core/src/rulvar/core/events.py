"""What an engine reports about its runs as it happens: the value that observers get.

========================= =================================================================
kind                      what happened; ``name`` and ``detail`` besides
========================= =================================================================
``run.started``           a run's first segment began
``run.resumed``           a later one began; detail ``takeover``: the last one had ended neither
                          settled nor stopped in order
``run.settled``           the outcome was journalled; name: its status; detail: of an
                          ``error``, the line that raised, as ``FILE:LINE``, where it is known
``run.ended``             the segment is over; name: the status, or the class of the error
``step.started``          a step begins; name: the step's
``step.retried``          a try failed and another one follows; ``count``: the number of the
                          failed one; ``duration``: the wait; detail: what it raised
``step.finished``         it was journalled; detail: ``ok`` or ``error``; ``count``: tries
``step.replayed``         the journal answered it
``turn.started``          one turn of a loop; name: the loop's; ``count``: the turn's number
``turn.finished``         detail: ``continue``, ``done`` or ``error``
``checkpoint.refused``    a checkpoint cannot be trusted; name: its ref; detail: why
``worktree.started``      and ``.finished``, ``.replayed``: as with a step
``child.started``         and ``.finished``: a child run; detail: its id, or how it ended
``lease.granted``         a segment owns its run
``lease.renewed``         ``duration``: how long the store took
``lease.reacquired``      taken again after an expiry, under a new ``epoch``
``lease.released``        given back
``lease.lost``            detail: the refusal's reason
``write.refused``         the fence refused a write; name: the mutation; detail: the reason
``store.busy``            a write waits for the store and is tried again; name: the mutation
``loop.blocked``          the event loop that a run is on does not answer; ``duration``: for how
                          long; detail ``given-up``: its lease is not renewed any more
``loop.answered``         it answers again
``lagged``                this listener was too slow; ``count``: how many it has lost
========================= =================================================================

Mutations: ``append``, ``put_meta``, ``put_blob``, ``delete_blob``, ``delete_whole_run``, ``renew``.
A reader passes over a kind that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a run; the table above lists the kinds.

    ``segment`` is 0 outside of one. ``epoch`` is the fencing token, where the event is about
    one. ``seq`` is the call's opening entry: it tells calls of one name apart. ``at_ms`` is
    the engine's wall time in Unix milliseconds.
    """

    kind: str
    run_id: str
    segment: int = 0
    epoch: int | None = None
    name: str = ""
    detail: str = ""
    seq: int | None = None
    count: int | None = None
    duration: float | None = None
    at_ms: int = 0
