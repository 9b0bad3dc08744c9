"""`rulvar store copy`: copying runs between stores, verified, and safe to repeat."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rulvar.cli.exit_codes import ExitStatus
from rulvar.cli.options import output_options, pass_output
from rulvar.cli.store_access import must_exist
from rulvar.cli.view.tables import columns
from rulvar.core.copy_runs import copy_runs
from rulvar.core.errors import ConfigError
from rulvar.core.plugins import open_stores
from rulvar.core.urls import StoreURL

if TYPE_CHECKING:
    from rulvar.cli.output import Output
    from rulvar.cli.view.tables import Renderable
    from rulvar.core.copy_runs import CopiedRun, CopyReport

__all__ = ["store"]


@click.group("store")
@output_options
def store() -> None:
    """Move runs between stores.

    \b
    Examples:
      rulvar store copy file:///runs sqlite:///runs.db
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@store.command("copy")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option(
    "--run",
    "run_ids",
    metavar="RUN_ID",
    multiple=True,
    help="Only this run; may be given several times.",
)
@output_options
@pass_output
@click.pass_context
def copy(
    context: click.Context,
    output: Output,
    *,
    source: str,
    destination: str,
    run_ids: tuple[str, ...],
) -> None:
    """Copy the runs of SRC to DST, and compare each on both sides.

    Both are store URLs. Where a side grants leases, each run is held while it is copied; a
    run that a worker holds is skipped, and the exit status is 3. DST's epochs are raised to
    those of SRC, so that no lease of SRC can ever be live in DST. A run that DST already has
    is a conflict, and the exit status is 1, unless it is equal, or an unfinished copy from
    the same SRC, which is completed. The other runs are still copied. The command can be
    repeated after any failure. Stop the workers of SRC first: the copy does not stop them.

    \b
    Examples:
      rulvar store copy file:///runs sqlite:///runs.db
      rulvar store copy sqlite:///runs.db file:////backup/runs --run order-17
    """  # noqa: D301
    urls = StoreURL.parse(source), StoreURL.parse(destination)
    if str(urls[0]) == str(urls[1]):
        message = f"{urls[0]} is both SRC and DST: name another store to copy to"
        raise ConfigError(message)
    must_exist(urls[0])
    with (
        open_stores(urls[0]) as here,
        open_stores(urls[1]) as there,
        output.progress() as line,
    ):
        line.update("comparing both stores")

        def show(run: CopiedRun, done: int, total: int) -> None:
            line.update(f"{done} of {total}: {run.run_id} {run.outcome}")

        report = copy_runs(here, there, source_name=str(urls[0]), run_ids=run_ids, progress=show)
    document = {"complete": report.complete, "runs": [asdict(run) for run in report.runs]}
    output.show(document, lambda: _table(report))
    for run in report.runs:
        if run.problem is not None and not output.json:
            output.note(f"{run.outcome}: {run.run_id}: {run.problem}")
    context.exit(_status(report))


def _status(report: CopyReport) -> ExitStatus:
    if report.complete:
        return ExitStatus.DONE
    if any(run.outcome == "failed" for run in report.runs):
        return ExitStatus.STORE
    if any(run.outcome == "conflict" for run in report.runs):
        return ExitStatus.FAILED
    return ExitStatus.HELD


def _table(report: CopyReport) -> Renderable:
    if not report.runs:
        return "no runs to copy"
    counted = Counter(run.outcome for run in report.runs)
    rows = [
        (
            outcome,
            count,
            sum(run.records for run in report.runs if run.outcome == outcome),
            sum(run.blobs for run in report.runs if run.outcome == outcome),
        )
        for outcome, count in counted.items()
    ]
    return columns(("OUTCOME", "RUNS>", "RECORDS>", "BLOBS>"), rows)
