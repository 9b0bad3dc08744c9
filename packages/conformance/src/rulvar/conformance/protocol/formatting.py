"""Interleavings in words: who did what under which epoch, what came, and what was due."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rulvar.conformance.protocol.adapter import format_answer
from rulvar.conformance.protocol.replay import sound_steps
from rulvar.conformance.protocol.rules import SOUND
from rulvar.conformance.protocol.state import (
    ABSENT,
    CLOCK,
    EXPIRED,
    OPERATOR,
    OWNERS,
    RUNS,
    STALE,
)

if TYPE_CHECKING:
    from rulvar.conformance.protocol.explore import Counterexample
    from rulvar.conformance.protocol.replay import Difference
    from rulvar.conformance.protocol.rules import Off
    from rulvar.conformance.protocol.state import Action, Answer, LeaseValue, Run, State

__all__ = ["difference_lines", "format_action", "step_lines", "story", "wrapped"]

_AS_ONE = {"call": "", "begin": " is called", "commit": " goes on", "crash": " dies"}
_IN_TWO = {**_AS_ONE, "begin": ": the check", "commit": ": the write"}
_SAID = {"begun": "(no answer yet)", "passed": "", "died": "(never answered)"}
_WIDTH = 100
_AGES = ("live", "live, half of its time gone", "expired")


def who(actor: int) -> str:
    """Return an actor's name."""
    return {OPERATOR: "operator", CLOCK: "clock"}.get(actor) or OWNERS[actor]


def format_action(action: Action, off: Off = SOUND) -> str:
    """Return what is done, without who does it; ``off`` are the guards that are missing."""
    if action.call == "time":
        way = "passes" if action.more > 0 else "is set back"
        of = f" for {RUNS[action.run]}" if action.run else ""
        return f"half a time to live {way}{of}"
    words: str = action.call
    if action.call == "raise_epoch":
        words += f" to {action.more}"
    if action.call == "append" and action.more == STALE:
        words += " at the tail's seq"
    if action.run:
        words += f" of {RUNS[action.run]}"
    if action.leases:
        words += " of " + ", ".join(_lease(lease) for lease in action.leases)
    elif action.lease is not None:
        lease = action.lease
        of = f" of {RUNS[lease.run]}" if lease.run != action.run else ""
        words += f" {'over' if action.call == 'seize' else 'under'} {_lease(lease)}{of}"
    elif action.actor == OPERATOR and action.call != "raise_epoch":
        words += " without a lease"
    in_two = ("unit", action.call) in off
    return words + (_IN_TWO if in_two else _AS_ONE)[action.phase]


def _lease(lease: LeaseValue) -> str:
    return f"({OWNERS[lease.owner]}, epoch {lease.epoch})"


def step_lines(
    actions: tuple[Action, ...], answers: tuple[Answer, ...], off: Off = SOUND
) -> list[str]:
    """Return one numbered line for each step."""
    lines = []
    for number, (action, answer) in enumerate(zip(actions, answers, strict=True), 1):
        passes = action.phase == "begin" and ("unit", action.call) in off
        said = "it passes" if passes else _said(answer)
        words = format_action(action, off)
        lines.append(f"{number:>4}  {who(action.actor):<9} {words:<48} {said}".rstrip())
    return lines


def _said(answer: Answer) -> str:
    return _SAID.get(answer.word, format_answer(answer))


def story(found: Counterexample) -> list[str]:
    """Return a counterexample as lines: the interleaving, what was due, what happened."""
    last = found.moments[-1]
    _, answer, state = sound_steps(found)[-1]
    return [
        *step_lines(
            tuple(moment.action for moment in found.moments),
            tuple(moment.answer for moment in found.moments),
            found.off,
        ),
        f"      expected: {_said(answer)}; then {_runs_in_words(state)}",
        f"      happened: {_said(last.answer)}; then {_runs_in_words(last.after)}",
        f"      broken:   {found.invariant.name}:",
        *wrapped("", found.invariant.sentence, 16),
    ]


def wrapped(head: str, text: str, indent: int) -> list[str]:
    """Return a text as lines of at most 100 columns; ``head`` stands before the first."""
    lines = textwrap.wrap(text, _WIDTH - indent)
    return [f"{head if number == 0 else '':<{indent}}{line}" for number, line in enumerate(lines)]


def _runs_in_words(state: State) -> str:
    if len(state.runs) == 1:
        return format_run(state.runs[0])
    return "; ".join(
        f"{name}: {format_run(run)}" for name, run in zip(RUNS, state.runs, strict=False)
    )


def format_run(run: Run) -> str:
    """Return what can be read of a run: under which epochs it was written, and its lease."""
    parts = []
    if run.journal:
        parts.append("records under " + ", ".join(_under(epoch) for epoch in run.journal))
    if run.meta != ABSENT:
        parts.append(f"a row under {_under(run.meta)}")
    if run.blob != ABSENT:
        parts.append(f"a blob under {_under(run.blob)}")
    if run.row is not None:
        age = _AGES[min(run.row.age, EXPIRED)]
        parts.append(f"a lease of {OWNERS[run.row.owner]}, epoch {run.row.epoch}, {age}")
    return ", ".join(parts) or "nothing is there"


def _under(epoch: int) -> str:
    return f"epoch {epoch}" if epoch else "no lease"


def difference_lines(difference: Difference) -> list[str]:
    """Return where a store left the protocol."""
    return [
        *step_lines(difference.actions, difference.answers),
        f"      expected: {difference.expected}",
        f"      got:      {difference.got}",
    ]
