"""`rulvar run` and `rulvar resume`: one segment, in this process, waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from rulvar.cli.app import load_workflows
from rulvar.cli.config import read_settings
from rulvar.cli.options import (
    app_option,
    output_options,
    pass_output,
    source_change_option,
    store_option,
)
from rulvar.cli.running import run_to_end
from rulvar.cli.signals import clean_end
from rulvar.cli.store_access import opened_stores
from rulvar.cli.values import read_value
from rulvar.cli.view.outcomes import report_outcome
from rulvar.core import Engine
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from rulvar.cli.output import Output, Progress
    from rulvar.core import Event, RunHandle, RunOutcome, Stores, Workflow
    from rulvar.core.engine.segment.runtime import OnSourceChange

__all__ = ["resume", "run"]


@click.command("run")
@click.argument("workflow")
@click.option(
    "--args",
    "arguments",
    metavar="JSON",
    help="The body's second parameter, one JSON value as it is: text, @FILE, or - for stdin.",
)
@click.option("--run-id", metavar="RUN_ID", help="The run's id; a fresh one when left out.")
@click.option("--name", help="A name to find the run by.")
@click.option("--tag", "tags", multiple=True, help="A tag to find the run by; several are fine.")
@source_change_option
@app_option
@store_option
@output_options
@pass_output
@click.pass_context
def run(
    context: click.Context,
    output: Output,
    *,
    workflow: str,
    arguments: str | None,
    run_id: str | None,
    name: str | None,
    tags: tuple[str, ...],
    on_source_change: OnSourceChange,
    apps: tuple[str, ...],
    store: str | None,
) -> None:
    """Start a run of WORKFLOW and wait for its outcome.

    The JSON value of --args is what the body gets as its second parameter, whole: for
    "async def count(ctx, folder)" a string, for one that reads args["folder"] an object.

    The result goes to standard output as JSON, the account to standard error. With --run-id,
    an existing run of the same workflow and the same arguments goes on instead. At the first
    Ctrl-C, SIGTERM or SIGHUP (a terminal that is closed) the run is let go, and somebody else
    can take it at once; the second does not wait.

    \b
    Examples:
      rulvar run count --args '"src"'
      rulvar run report --args '{"folder": "src", "limit": 5}'
      rulvar run count --args @args.json --run-id count-1 --tag nightly
      rulvar run count --args - --json < args.json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    given = () if arguments is None else (read_value(arguments, what="--args"),)
    workflows = load_workflows(read_settings("app", apps))
    chosen = _choose(workflow, workflows)
    _finish(
        context,
        output,
        store,
        workflows,
        lambda engine: engine.start(chosen, *given, run_id=run_id, name=name, tags=tags),
        on_source_change=on_source_change,
    )


@click.command("resume")
@click.argument("run_id")
@click.option(
    "--retry",
    is_flag=True,
    help="Reopen a run that ended as error or exhausted, as `rulvar runs retry` does.",
)
@source_change_option
@app_option
@store_option
@output_options
@pass_output
@click.pass_context
def resume(
    context: click.Context,
    output: Output,
    *,
    run_id: str,
    retry: bool,
    on_source_change: OnSourceChange,
    apps: tuple[str, ...],
    store: str | None,
) -> None:
    """Go on with RUN_ID from its journal, and wait for its outcome.

    What was completed is not run again. A run that has ended returns its outcome and
    executes nothing, unless --retry reopens it.

    \b
    Examples:
      rulvar resume count-1
      rulvar resume count-1 --retry --json
    """  # noqa: D301
    workflows = load_workflows(read_settings("app", apps))
    _finish(
        context,
        output,
        store,
        workflows,
        lambda engine: engine.start_retry(run_id) if retry else engine.start_resume(run_id),
        on_source_change=on_source_change,
        existing=True,
    )


def _choose(name: str, workflows: tuple[Workflow, ...]) -> Workflow:
    for each in workflows:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in workflows)
    message = f"the app has no workflow {name!r}: it has {known}"
    raise ConfigError(message)


def _finish(
    context: click.Context,
    output: Output,
    store: str | None,
    workflows: tuple[Workflow, ...],
    start: Callable[[Engine], RunHandle],
    *,
    on_source_change: OnSourceChange,
    existing: bool = False,
) -> None:
    stopped_by: list[signal.Signals] = []
    with opened_stores(store, existing=existing) as stores, output.engine_log():
        outcome, raised_at = run_to_end(
            _perform(
                output,
                stores,
                workflows,
                start,
                stopped_by,
                on_source_change=on_source_change,
                tells_id=not existing,
            )
        )
    status = report_outcome(outcome, output, raised_at=raised_at)
    if stopped_by and outcome.status == "running":
        context.exit(128 + stopped_by[0])
    context.exit(status)


async def _perform(
    output: Output,
    stores: Stores,
    workflows: tuple[Workflow, ...],
    start: Callable[[Engine], RunHandle],
    stopped_by: list[signal.Signals],
    *,
    on_source_change: OnSourceChange,
    tells_id: bool,
) -> tuple[RunOutcome, str]:
    """Return the outcome, and where the body raised, if it did so here."""
    with output.progress() as progress:
        watch = _Watch(progress)
        async with Engine(
            stores, workflows, observer=watch, on_source_change=on_source_change
        ) as engine:
            handle = start(engine)

            def stop(number: signal.Signals) -> None:
                stopped_by.append(number)
                handle.detach()
                output.note(f"{number.name}: letting run {handle.run_id} go")

            with clean_end(asyncio.get_running_loop(), stop):
                # Before the body's first line: a process that is killed has left the id.
                if tells_id and await handle.began():
                    output.note(f"run {handle.run_id}: begun")
                outcome = await handle.result()
        return outcome, watch.raised_at  # the engine is closed: the watch was told everything


class _Watch:
    """Turns the segment's events into the progress line, and keeps where the body raised."""

    def __init__(self, progress: Progress) -> None:
        self.raised_at = ""
        self._progress = progress
        self._done = 0
        self._replayed = 0
        self._present = ""

    def __call__(self, event: Event) -> None:
        if event.kind == "step.started":
            self._present = event.name
        elif event.kind == "step.finished":
            self._done += 1
        elif event.kind == "step.replayed":
            self._replayed += 1
        elif event.kind == "run.settled":
            self.raised_at = event.detail
        steps = f"steps done: {self._done}"
        replayed = f", from the journal: {self._replayed}" if self._replayed else ""
        present = f", now: {self._present}" if self._present else ""
        self._progress.update(f"{steps}{replayed}{present}")
