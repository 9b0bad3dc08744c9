"""`rulvar worker`: claims runs, executes them and releases them, until it is stopped."""

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
from rulvar.core.formatting import counted
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
    help="How many runs to execute at once.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="Exit when no run can be executed now; runs that are held, asleep or waiting are left.",
)
@click.option(
    "--poll-interval-ms",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="How long to wait between two scans of the store.",
)
@click.option(
    "--grace-ms",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="How long to wait for running steps at a stop before their runs are released.",
)
@click.option(
    "--retain-older-than",
    "older_than_ms",
    callback=read_age,
    metavar="AGE",
    help="Also delete runs that ended this long ago, as in 30d; see `rulvar runs retain`.",
)
@click.option(
    "--retain-status",
    "statuses",
    metavar="STATUS,...",
    default="ok,cancelled",
    show_default=True,
    help="With --retain-older-than: only runs with this status.",
)
@click.option(
    "--retain-keep-last",
    "keep_last",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --retain-older-than: keep this many of the newest of each workflow.",
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
    """Execute the runs of the app that wait for a worker.

    Takes runs that are not held, resumes them from their journals, and releases them. The run
    of a worker that was killed is taken at once on the same machine, and elsewhere when its
    lease has expired. A run that may be killing its workers is executed last and alone, and
    ends as exhausted after too many deaths in a row. A run that the present code cannot replay
    is blocked and left to workers with other code.

    The first SIGTERM, Ctrl-C or SIGHUP stops the worker cleanly: it takes no new run, waits
    --grace-ms for running steps, then releases their runs for other workers. The second signal
    exits immediately. A clean stop is status 0. With --json each event is one line.

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
    worker_log = _WorkerLog(output)
    with output.engine_log():
        report = run_to_end(
            _work(
                worker_log,
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
    worker_log.ended(report)


async def _work(
    worker_log: _WorkerLog,
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
            worker_log.warn(f"not fenced: {error}")
        async with Engine(
            stores, workflows, observer=worker_log, on_source_change=on_source_change
        ) as engine:
            sweeper = Worker(
                engine,
                concurrency=concurrency,
                poll_interval=poll_interval_ms / 1000,
                retention=retention,
                on_result=worker_log.result,
            )

            def stop(number: signal.Signals) -> None:
                sweeper.stop(grace=grace_ms / 1000)
                worker_log.stopping(number)

            with clean_end(asyncio.get_running_loop(), stop):
                worker_log.ready(workflows)
                return await sweeper.run(until_idle=until_idle)


class _WorkerLog:
    """The worker's log: one line for each event, written from any thread."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._lost: OutputLostError | None = None

    def __call__(self, event: Event) -> None:
        """Log an event of the engine; steps are logged only under ``--json``."""
        text = f"run {event.run_id}: {event.kind.partition('.')[2]}"
        facts = [event.name, event.detail, f"epoch {event.epoch}" if event.epoch else ""]
        shown = ", ".join(fact for fact in facts if fact)
        step = event.kind.startswith("step.")
        self._write(asdict(event), None if step else f"{text} ({shown})" if shown else text)

    def ready(self, workflows: tuple[Workflow, ...]) -> None:
        """Log that the first sweep begins: from here on a signal stops the worker cleanly."""
        names = [each.name for each in workflows]
        self._write({"kind": "worker.ready", "workflows": names}, f"ready for {', '.join(names)}")

    def result(self, result: WorkerResult) -> None:
        """Log how a segment ended; as text only what its events did not say."""
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
            text = f"run {result.run_id}: released before its end" if detach else ""
        head = {"kind": "worker.result", "run_id": result.run_id}
        self._write(head | document, text or None)

    def stopping(self, number: signal.Signals) -> None:
        """Log that a signal arrived."""
        text = f"{number.name}: stopping; a second signal exits immediately"
        self._write({"kind": "worker.stopping", "signal": number.name}, text)

    def ended(self, report: WorkerReport) -> None:
        """Log the report, in the last line; raises `OutputLostError` when output was lost."""
        ended = {status: count for status, count in report.outcomes.items() if status != "running"}
        counts = [f"{count} {status}" for status, count in sorted(ended.items())]
        unfinished = report.outcomes.get("running", 0)
        counts += [f"{counted(unfinished, 'run')} handed back unfinished"] if unfinished else []
        counts += [f"{report.superseded} lost to another worker", f"{len(report.broken)} set aside"]
        counts += [f"{len(report.blocked)} blocked"] if report.blocked else []
        counts += [f"{report.retained} deleted by age"] if report.retained else []
        self._write({"kind": "worker.ended", **asdict(report)}, f"stopped: {', '.join(counts)}")
        if self._lost is not None:
            raise self._lost

    def warn(self, text: str) -> None:
        """Print a warning to standard error."""
        self._output.note(f"warning: {text}")

    def _write(self, document: dict[str, object], text: str | None) -> None:
        at = format_time(self._clock.now_ms())
        with self._lock:
            if self._lost is not None:
                return
            try:
                if self._output.json:
                    self._output.line({"at": at, **document})
                elif text is not None:
                    self._output.print(f"{at} {plain(text)}")
            except OutputLostError as lost:
                # The reader is gone: the runs are executed all the same.
                self._lost = lost
                self._output.note(f"warning: {lost}; the worker continues without its log")
