"""``rulvar kill-points``: what the entry point of the group ``rulvar.commands`` names."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import click

from rulvar.conformance.harness.store_under_test import StoreAtUrl
from rulvar.conformance.harness.terminal import ChangingLine, debug_option
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm
from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from rulvar.conformance.crash.call_log import Side
    from rulvar.conformance.crash.crash_case import Death

__all__ = ["kill_points_command"]

_WIDTH = 78


class _Watcher:
    """Counts the deaths and says how far it is."""

    def __init__(self) -> None:
        self.line = ChangingLine(_WIDTH)
        self._lock = threading.Lock()
        self._deaths = 0
        self._failed = 0

    def __call__(self, death: Death) -> None:
        with self._lock:
            self._deaths += death.died
            self._failed += bool(death.findings)
            so_far = f"{counted(self._deaths, 'death')}, {self._failed} amiss"
        where = "unharmed" if death.kill is None else f"{death.kill.side} {death.kill.at}"
        self.line.write(f"{so_far}; {death.workload}: {where} {death.call}")


@click.command(
    "kill-points", short_help="Kill a process at every store call; another one finishes."
)
@click.argument("url", required=False)
@click.option("--list", "listing", is_flag=True, help="Show the workloads and leave.")
@click.option("--workload", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--exclude", multiple=True, metavar="NAME", help="Leave this one out; repeatable.")
@click.option("--at", type=int, metavar="N", help="Only the N-th store call.")
@click.option("--side", type=click.Choice(["before", "after"]), help="With --at: only this side.")
@click.option("--sample", type=int, metavar="N", help="Only N deaths of each workload.")
@click.option(
    "--jobs", type=int, metavar="N", default=1, show_default=True, help="Workloads at a time."
)
@click.option("--stop", is_flag=True, help="End a workload at its first failure.")
@debug_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def kill_points_command(  # noqa: PLR0917 - click passes them by name
    context: click.Context,
    url: str | None,
    listing: bool,
    workload: tuple[str, ...],
    exclude: tuple[str, ...],
    at: int | None,
    side: str | None,
    sample: int | None,
    jobs: int,
    stop: bool,
    as_json: bool,
) -> None:
    """Kill a process at every store call over URL; another one must finish its work.

    Leaves with 0 only when every workload was killed at every point that was asked for,
    recovered each time, and finished unharmed once. A relative path, and @tmp@, are put into
    a new folder for every death. Nothing is left to chance: there is no seed.

    \b
    Examples:
      rulvar kill-points sqlite:///runs.db --jobs 2
      rulvar kill-points sqlite:///runs.db --sample 5
      rulvar kill-points acme:///runs.db --workload turns --at 17 --side after
      rulvar kill-points --list
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    # Here, so that the command line can list this command without the engine.
    from rulvar.conformance.crash.runner import kill_points  # noqa: PLC0415
    from rulvar.conformance.crash.workloads import WORKLOADS  # noqa: PLC0415

    if listing:
        width = max(len(each.name) for each in WORKLOADS)
        for each in WORKLOADS:
            click.echo(f"{each.name:<{width}}  {each.about}")
        return
    if url is None:
        message = "a store's URL is missing, as in sqlite:///runs.db"
        raise click.UsageError(message, context)
    if side is not None and at is None:
        message = "--side needs --at: which call is meant?"
        raise click.UsageError(message, context)
    watcher = _Watcher()
    try:
        with cleans_up_at_sigterm():
            report = kill_points(
                StoreAtUrl(url),
                workloads=workload or None,
                exclude=exclude,
                at=at,
                side=cast("Side | None", side),
                sample=sample,
                jobs=jobs,
                stop_at_failure=stop,
                progress=watcher,
            )
    finally:
        watcher.line.end()
    click.echo(report.to_json() if as_json else report.text())
    if not report.ok:
        context.exit(1)
