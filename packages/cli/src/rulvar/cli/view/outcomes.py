"""The outcome of a run, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rulvar.cli.exit_codes import status_of_run
from rulvar.core.errors import StepFailedError
from rulvar.core.formatting import command_line

if TYPE_CHECKING:
    from rulvar.cli.exit_codes import ExitStatus
    from rulvar.cli.output import Output
    from rulvar.core import RunOutcome

__all__ = ["again", "outcome_document", "report_outcome"]


def outcome_document(outcome: RunOutcome) -> dict[str, object]:
    """Return the outcome with the names of `RunOutcome`'s fields; the traceback is left out."""
    document = asdict(outcome)
    if outcome.error is not None:
        del document["error"]["traceback"]
    return document


def report_outcome(outcome: RunOutcome, output: Output, *, raised_at: str) -> ExitStatus:
    """Print the outcome and return the exit status for it.

    For people the run's result goes to standard output, as JSON, and what happened to
    standard error, so that the result can be piped. ``raised_at`` is where the body raised,
    empty where that is not known.
    """
    if output.json:
        output.document(outcome_document(outcome))
    else:
        for line in _account(outcome, raised_at):
            output.note(line)
        if outcome.status == "ok":
            output.document(outcome.value)
    return status_of_run(outcome.status)


def _account(outcome: RunOutcome, raised_at: str) -> list[str]:
    run_id = outcome.run_id
    steps = f"steps executed: {outcome.executed}, calls from the journal: {outcome.replayed}"
    epoch = "" if outcome.epoch is None else f", epoch {outcome.epoch}"
    facts = f"({steps}{epoch})"
    if outcome.status == "ok":
        return [f"run {run_id}: ok {facts}"]
    if outcome.status == "running":
        return [
            f"run {run_id}: released before its end {facts}",
            f"  to continue: {command_line('resume', run_id)}",
        ]
    if outcome.status == "suspended":
        return [f"run {run_id}: suspended {facts}", *_waits(outcome)]
    why = f": {outcome.error.message}" if outcome.error is not None else ""
    lines = [f"run {run_id}: {outcome.status}{why} {facts}"]
    if raised_at:
        lines.append(f"  raised at {raised_at}")
    if outcome.error is not None:
        lines.append(f"  {again(run_id, outcome.error.code)}")
    return lines


def again(run_id: str, code: object) -> str:
    """Return how to retry a run that ended as ``error``, and what is executed again."""
    if code == "run-exhausted":
        command = command_line("resume", run_id, options="--retry")
        return f"after fixing what ended its processes, retry: {command}"
    what = "the failed steps" if code == StepFailedError.code else "the workflow"
    command = command_line("resume", run_id, options="--retry --debug")
    return f"to retry {what} and see the traceback: {command}"


def _waits(outcome: RunOutcome) -> list[str]:
    lines = []
    for each in outcome.waiting_for:
        until = "" if each.deadline_at is None else f" until {each.deadline_at}"
        if each.kind == "external":
            options = f"--seq {each.seq}"
            answer = command_line("resolve", outcome.run_id, each.key, "JSON", options=options)
            lines.append(f"  waits for {each.key}{until}; answer: {answer}")
        else:
            lines.append(f"  sleeps{until}: a worker wakes it")
    return lines
