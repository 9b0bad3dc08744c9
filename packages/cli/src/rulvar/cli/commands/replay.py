"""`rulvar replay`: can the present code go on with these runs? Nothing is performed to find out."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import click

from rulvar.cli.app import load_workflows
from rulvar.cli.config import read_settings
from rulvar.cli.durations import read_age
from rulvar.cli.exit_codes import ExitStatus, status_of_error
from rulvar.cli.options import app_option, output_options, pass_output, store_option
from rulvar.cli.output import error_document, plain
from rulvar.cli.running import end_now, run_to_end
from rulvar.cli.store_access import opened_stores
from rulvar.cli.trying import output_kept, watched_loop
from rulvar.core.checks import check_run_id
from rulvar.core.engine.trial import Trial, try_run
from rulvar.core.errors import ConfigError, RulvarError
from rulvar.core.formatting import counted
from rulvar.core.records import RUN_STATUSES, RunFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rulvar.cli.multi_run import Document
    from rulvar.cli.output import Output
    from rulvar.core import Stores, Workflow

__all__ = ["replay"]


@click.command("replay")
@click.argument("run_ids", nargs=-1, metavar="[RUN_ID]...")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(RUN_STATUSES),
    help="Every run of this status that the app's workflows take; may be given several times.",
)
@click.option(
    "--body-limit",
    "limit_ms",
    callback=read_age,
    default="60s",
    show_default=True,
    metavar="AGE",
    help="How long each body may take, and may keep its event loop blocked.",
)
@app_option
@store_option
@output_options
@pass_output
@click.pass_context
def replay(
    context: click.Context,
    output: Output,
    *,
    run_ids: tuple[str, ...],
    statuses: tuple[str, ...],
    limit_ms: int,
    apps: tuple[str, ...],
    store: str | None,
) -> None:
    """Try the journals of runs against the present code, and perform nothing.

    Give RUN_IDs, or --status. The store is only read: no lease is taken, and runs that a
    worker holds go on undisturbed. The body of each run is executed over a copy of its journal,
    as far as that goes; no function of a step, turn, worktree or child is called. What the body
    does besides its calls, it does; what it prints goes to standard error.

    A run is ok when the code replays its journal to the end, and blocked when it takes another
    way, or does not come to that end within --body-limit. A body that keeps its event loop from
    answering for as long ends the command: later runs are named as not tried. A call that the
    body gave up, by a timeout of its own, is waited for three seconds at most: what is behind
    it may be left untried, and that is said. A child is tried by its own id. The status is 0
    only when every run is ok: try the code of a deploy before you deploy it.

    \b
    Examples:
      rulvar replay order-17 --app flows
      rulvar replay --status suspended --status running --json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    for run_id in run_ids:
        check_run_id(run_id)
    if bool(run_ids) == bool(statuses):
        message = "give RUN_IDs, or --status, and not both"
        raise ConfigError(message)
    if limit_ms == 0:
        message = "--body-limit 0 leaves no time for any body: give an age, as in 60s"
        raise ConfigError(message)
    with output_kept():
        workflows = load_workflows(read_settings("app", apps))
    with opened_stores(store, read_only=True) as stores, _log(output):
        chosen, left_out = run_ids, 0
        if statuses:
            chosen, left_out = _choose(stores, statuses, workflows)
        status = run_to_end(_try_each(output, stores, workflows, chosen, limit_ms / 1000))
    if not chosen and not output.json:
        output.print("no such run of these workflows: nothing to try")
    if left_out:
        output.note(f"left out, of workflows or versions that the app does not have: {left_out}")
    context.exit(status)


@contextmanager
def _log(output: Output) -> Iterator[None]:
    """Show what the engine logs with ``--debug`` alone: what counts is in each run's verdict."""
    if output.debug:
        with output.engine_log():
            yield
        return
    logger, silent = logging.getLogger("rulvar"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)


def _choose(
    stores: Stores, statuses: tuple[str, ...], workflows: Sequence[Workflow]
) -> tuple[tuple[str, ...], int]:
    """Return the runs that these workflows take, and how many others there are."""
    by_name = {each.name: each for each in workflows}
    rows = stores.journal.list_runs(RunFilter(statuses=statuses))
    taken = [
        row.run_id
        for row in rows
        if row.workflow_name in by_name and by_name[row.workflow_name].takes(row.workflow_version)
    ]
    return tuple(taken), len(rows) - len(taken)


class _Tries:
    """What has been found of the runs so far, told as it comes or in one document."""

    def __init__(self, output: Output, run_ids: Sequence[str], seconds: float) -> None:
        self.output = output
        self.run_ids = run_ids
        self.seconds = seconds
        self.found: list[Document] = []
        self.status = ExitStatus.DONE

    def tried(self, trial: Trial) -> None:
        if trial.status != "ok":
            self.status = self.status or ExitStatus.FAILED
        self.found.append(asdict(trial))
        if not self.output.json:
            self.output.print(f"run {plain(trial.run_id)}: {plain(_told(trial))}")

    def failed(self, run_id: str, error: RulvarError) -> None:
        self.status = self.status or status_of_error(error)
        self.found.append({"run_id": run_id} | error_document(error))
        if not self.output.json:
            self.output.failure(error)

    def give_up(self, run_id: str) -> NoReturn:
        reason = f"its body has kept the event loop from answering for {self.seconds:g} s"
        self.tried(Trial(run_id=run_id, status="blocked", reason=reason))
        untried = self.run_ids[len(self.found) :]
        if untried:
            named = ", ".join(untried)
            self.output.note(f"not tried, for that body cannot be interrupted: {named}")
        self.over()
        end_now(self.status)

    def over(self) -> ExitStatus:
        if self.output.json:
            self.output.document({"runs": self.found})
        return self.status


async def _try_each(
    output: Output,
    stores: Stores,
    workflows: tuple[Workflow, ...],
    run_ids: Sequence[str],
    seconds: float,
) -> ExitStatus:
    tries = _Tries(output, run_ids, seconds)
    for run_id in run_ids:
        try:
            with watched_loop(seconds, partial(tries.give_up, run_id)), output_kept():
                trial = await try_run(stores, workflows, run_id, seconds=seconds)
        except RulvarError as error:
            tries.failed(run_id, error)
        else:
            tries.tried(trial)
    return tries.over()


def _told(trial: Trial) -> str:
    if trial.reason is not None:
        return f"blocked: {trial.reason}"
    told = f"ok, {counted(trial.replayed, 'call')} from the journal"
    if trial.then is not None:
        told += f"; then: {trial.then}"
    if trial.untried is not None:
        told += f"; from seq {trial.untried} on it could not be tried"
    if trial.changed_args:
        names = ", ".join(map(repr, trial.changed_args))
        told += f"; other arguments than the journal's, whose results stand: {names}"
    return told
