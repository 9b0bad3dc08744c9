"""`rulvar replay`: can the present code replay these runs? No step is executed."""

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
    help="Every run of this status that the app can take; may be given several times.",
)
@click.option(
    "--body-limit",
    "limit_ms",
    callback=read_age,
    default="60s",
    show_default=True,
    metavar="AGE",
    help="How long each workflow may take, and may block the event loop.",
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
    """Check whether the present code can replay the journals of runs.

    Give RUN_IDs, or --status. The store is only read: no lease is taken, and runs that a
    worker holds are not disturbed. The workflow of each run is executed over a copy of its
    journal; no function of a step, turn, worktree or child is called. Code of the workflow
    between its calls does run, and what it prints goes to standard error.

    A run is ok when the code replays its journal to the end, and blocked when it makes
    different calls, or does not reach the end within --body-limit. A workflow that blocks the
    event loop for that long ends the command: later runs are reported as not tried. A call
    that the workflow itself gave up is waited for at most three seconds; what follows it may
    stay untried, which is reported. A child is checked by its own id. The status is 0 only
    when every run is ok: check the code of a deploy before you deploy it.

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
        message = "--body-limit 0 leaves no time for the workflow: give a duration, as in 60s"
        raise ConfigError(message)
    with output_kept():
        workflows = load_workflows(read_settings("app", apps))
    with opened_stores(store, read_only=True) as stores, _log(output):
        chosen, left_out = run_ids, 0
        if statuses:
            chosen, left_out = _choose(stores, statuses, workflows)
        status = run_to_end(_try_each(output, stores, workflows, chosen, limit_ms / 1000))
    if not chosen and not output.json:
        output.print("no runs match: nothing to replay")
    if left_out:
        output.note(f"skipped, of workflows or versions that the app does not have: {left_out}")
    context.exit(status)


@contextmanager
def _log(output: Output) -> Iterator[None]:
    """Show the engine's log only with ``--debug``: each run's verdict says what matters."""
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
    """The verdicts so far, printed as they come or in one JSON document."""

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
            self.output.print(f"run {plain(trial.run_id)}: {plain(_describe(trial))}")

    def failed(self, run_id: str, error: RulvarError) -> None:
        self.status = self.status or status_of_error(error)
        self.found.append({"run_id": run_id} | error_document(error))
        if not self.output.json:
            self.output.failure(error)

    def give_up(self, run_id: str) -> NoReturn:
        reason = f"the workflow has blocked the event loop for {self.seconds:g} s"
        self.tried(Trial(run_id=run_id, status="blocked", reason=reason))
        untried = self.run_ids[len(self.found) :]
        if untried:
            named = ", ".join(untried)
            self.output.note(f"not tried, because that workflow cannot be interrupted: {named}")
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


def _describe(trial: Trial) -> str:
    if trial.reason is not None:
        return f"blocked: {trial.reason}"
    text = f"ok, {counted(trial.replayed, 'call')} from the journal"
    if trial.then is not None:
        text += f"; then: {trial.then}"
    if trial.untried is not None:
        text += f"; not tried from seq {trial.untried} on"
    if trial.changed_args:
        names = ", ".join(map(repr, trial.changed_args))
        text += f"; arguments differ from the journal, whose results are kept: {names}"
    return text
