"""`rulvar worker`: sweep, take, resume, release, until told to stop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rulvar.cli.app import load_workflows
from rulvar.cli.config import read_settings
from rulvar.cli.durations import read_age, read_policy
from rulvar.cli.options import (
    app_option,
    output_options,
    pass_output,
    source_change_option,
    store_option,
)
from rulvar.cli.output import OutputLostError, error_document, plain
from rulvar.cli.running import run_to_end
from rulvar.cli.signals import clean_end
from rulvar.cli.store_access import opened_stores
from rulvar.cli.view.outcomes import outcome_document
from rulvar.core import Engine, Worker
from rulvar.core.clock import SystemClock
from rulvar.core.errors import ConfigError, RulvarError
from rulvar.core.fencing import assert_fenced_writes
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    import signal

    from rulvar.cli.output import Output
    from rulvar.core import Event, RetentionPolicy, WorkerReport, WorkerResult, Workflow
    from rulvar.core.engine.segment.runtime import OnSourceChange

__all__ = ["worker"]


@click.command("worker")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How many runs at once.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when nothing can be done now: what others hold, sleeps or waits is left.",
)
@click.option(
    "--poll-interval-ms",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="How long to wait between two looks at the store.",
)
@click.option(
    "--grace-ms",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="How long a stop waits for running steps before it lets their runs go.",
)
@click.option(
    "--retain-older-than",
    "older_than_ms",
    callback=read_age,
    metavar="AGE",
    help="Also delete runs that ended so long ago, as in 30d; see `rulvar runs retain`.",
)
@click.option(
    "--retain-status",
    "statuses",
    metavar="STATUS,...",
    default="ok,cancelled",
    show_default=True,
    help="With --retain-older-than: only runs that ended so.",
)
@click.option(
    "--retain-keep-last",
    "keep_last",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --retain-older-than: spare so many of the newest of each workflow.",
)
@source_change_option
@app_option
@store_option
@output_options
@pass_output
def worker(
    output: Output,
    *,
    concurrency: int,
    until_idle: bool,
    poll_interval_ms: int,
    grace_ms: int,
    older_than_ms: int | None,
    statuses: str,
    keep_last: int,
    on_source_change: OnSourceChange,
    apps: tuple[str, ...],
    store: str | None,
) -> None:
    """Work on every run of the app that waits for somebody.

    Takes runs that nobody holds, goes on with them from their journals, and lets them go.
    The run of a worker that was killed is taken at once on the same machine, and elsewhere
    when its lease has run out. A run that may be
    what kills its workers is executed last and alone, and ends as exhausted when it has killed
    too many in a row. One that the app's present code cannot replay is left to another code.
    The first SIGTERM, Ctrl-C or SIGHUP stops it cleanly: no new run is taken, runs under way get
    --grace-ms, then they are let go and any other worker can take them at once. The second
    signal does not wait. A clean stop is status 0. Under --json each event is one line.

    \b
    Examples:
      rulvar worker --app flows --store sqlite:///runs.db
      rulvar worker --concurrency 16 --json
      rulvar worker --until-idle
      rulvar worker --retain-older-than 30d --retain-keep-last 100
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    retention = None
    if older_than_ms is not None:
        retention = read_policy(older_than_ms, statuses, keep_last)
    workflows = load_workflows(read_settings("app", apps))
    teller = _Teller(output)
    with output.engine_log():
        report = run_to_end(
            _work(
                teller,
                store,
                workflows,
                concurrency=concurrency,
                until_idle=until_idle,
                poll_interval_ms=poll_interval_ms,
                grace_ms=grace_ms,
                retention=retention,
                on_source_change=on_source_change,
            )
        )
    teller.ended(report)


async def _work(
    teller: _Teller,
    store: str | None,
    workflows: tuple[Workflow, ...],
    *,
    concurrency: int,
    until_idle: bool,
    poll_interval_ms: int,
    grace_ms: int,
    retention: RetentionPolicy | None,
    on_source_change: OnSourceChange,
) -> WorkerReport:
    with opened_stores(store) as stores:
        try:
            assert_fenced_writes(stores)
        except ConfigError as error:
            teller.warn(f"not fenced: {error}")
        async with Engine(
            stores, workflows, observer=teller, on_source_change=on_source_change
        ) as engine:
            sweeper = Worker(
                engine,
                concurrency=concurrency,
                poll_interval=poll_interval_ms / 1000,
                retention=retention,
                on_result=teller.result,
            )

            def stop(number: signal.Signals) -> None:
                sweeper.stop(grace=grace_ms / 1000)
                teller.stopping(number)

            with clean_end(asyncio.get_running_loop(), stop):
                teller.ready(workflows)
                return await sweeper.run(until_idle=until_idle)


class _Teller:
    """Tells what the worker does: a line each, from whatever thread noticed."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._untold: OutputLostError | None = None

    def __call__(self, event: Event) -> None:
        """Tell an event of the engine; steps are told to programs alone."""
        text = f"run {event.run_id}: {event.kind.partition('.')[2]}"
        facts = [event.name, event.detail, f"epoch {event.epoch}" if event.epoch else ""]
        shown = ", ".join(fact for fact in facts if fact)
        step = event.kind.startswith("step.")
        self._tell(asdict(event), None if step else f"{text} ({shown})" if shown else text)

    def ready(self, workflows: tuple[Workflow, ...]) -> None:
        """Tell that the first sweep begins: from here on a signal ends the worker cleanly."""
        names = [each.name for each in workflows]
        self._tell({"kind": "worker.ready", "workflows": names}, f"ready for {', '.join(names)}")

    def result(self, result: WorkerResult) -> None:
        """Tell how a segment ended; to people only what its events have not told."""
        error, outcome = result.error, result.outcome
        if isinstance(error, RulvarError):
            document, text = error_document(error), str(error)
        elif error is not None:
            message = f"{type(error).__name__}: {error}"
            document = {"error": {"code": "unexpected", "message": message, "retryable": False}}
            text = f"run {result.run_id}: set aside: {message}"
        else:
            document = {} if outcome is None else {"outcome": outcome_document(outcome)}
            detach = outcome is not None and outcome.status == "running"
            text = f"run {result.run_id}: let go" if detach else ""
        head = {"kind": "worker.result", "run_id": result.run_id}
        self._tell(head | document, text or None)

    def stopping(self, number: signal.Signals) -> None:
        """Tell that a signal was heard."""
        text = f"{number.name}: stopping; a second one does not wait"
        self._tell({"kind": "worker.stopping", "signal": number.name}, text)

    def ended(self, report: WorkerReport) -> None:
        """Tell the report, in the last line; raises `OutputLostError` when not all was told."""
        counts = [f"{count} {status}" for status, count in sorted(report.outcomes.items())]
        counts += [f"{report.superseded} superseded", f"{len(report.broken)} set aside"]
        counts += [f"{len(report.blocked)} blocked"] if report.blocked else []
        counts += [f"{report.retained} deleted by age"] if report.retained else []
        self._tell({"kind": "worker.ended", **asdict(report)}, f"ended: {', '.join(counts)}")
        if self._untold is not None:
            raise self._untold

    def warn(self, text: str) -> None:
        """Tell a warning, on standard error."""
        self._output.note(f"warning: {text}")

    def _tell(self, document: dict[str, object], text: str | None) -> None:
        at = format_time(self._clock.now_ms())
        with self._lock:
            if self._untold is not None:
                return
            try:
                if self._output.json:
                    self._output.line({"at": at, **document})
                elif text is not None:
                    self._output.print(f"{at} {plain(text)}")
            except OutputLostError as lost:
                # Nobody listens any more: the runs are worked on all the same.
                self._untold = lost
                self._output.note(f"warning: {lost}; the worker goes on and tells no more")
