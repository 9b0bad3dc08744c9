"""`rulvar runs retry`: reopening failed runs, for workers to continue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from rulvar.cli.durations import read_age
from rulvar.cli.multi_run import each_run, is_there, no_such_run
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.store_access import opened_stores
from rulvar.core.checks import check_run_id
from rulvar.core.clock import SystemClock
from rulvar.core.engine.admin.run_admin import reopen_run, would_reopen
from rulvar.core.errors import ConfigError
from rulvar.core.records import RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias

    from rulvar.cli.multi_run import Document
    from rulvar.cli.output import Output
    from rulvar.core import Engine
    from rulvar.core.records import RunMeta
    from rulvar.core.stores import Stores

    _Act: TypeAlias = Callable[[Engine, Stores, str], Awaitable[Document]]

__all__ = ["retry"]

_STATUSES = ("error", "exhausted")


@click.command("retry")
@click.argument("run_ids", nargs=-1, metavar="[RUN_ID]...")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES),
    help="Every run with this status; may be given several times.",
)
@click.option(
    "--since",
    "since_ms",
    callback=read_age,
    metavar="AGE",
    help="With --status: only runs that ended at most this long ago, as in 1h.",
)
@click.option("--workflow", help="With --status: only runs of this workflow.")
@click.option("--tag", "tags", multiple=True, help="With --status: only runs with this tag.")
@click.option(
    "--dry-run", is_flag=True, help="Show which runs would be reopened, and change nothing."
)
@store_option
@output_options
@pass_output
@click.pass_context
def retry(
    context: click.Context,
    output: Output,
    *,
    run_ids: tuple[str, ...],
    statuses: tuple[str, ...],
    since_ms: int | None,
    workflow: str | None,
    tags: tuple[str, ...],
    dry_run: bool,
    store: str | None,
) -> None:
    """Reopen runs that ended as error or exhausted, for workers to continue.

    Give RUN_IDs, or --status and what narrows it. The call whose error ended a run is executed
    again, and so is what the workflow did because of that error (a compensation, for example);
    no other completed call is repeated. The workflow's code is not needed here. A run that did
    not fail is left unchanged. A child whose parent has not ended, or is retried with it, is
    left out and named: its parent resumes it. With --status an orphan is reopened as any run.

    \b
    Examples:
      rulvar runs retry order-17
      rulvar runs retry --status error --since 1h --dry-run
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    for run_id in run_ids:
        check_run_id(run_id)
    if bool(run_ids) == bool(statuses):
        message = "give RUN_IDs, or --status (with --since, --workflow, --tag), and not both"
        raise ConfigError(message)
    if run_ids and (since_ms is not None or workflow is not None or tags):
        message = "--since, --workflow and --tag narrow --status: leave them out with RUN_IDs"
        raise ConfigError(message)
    chosen = run_ids
    reopen: _Act = partial(_reopen, dry_run=dry_run)
    if statuses:
        with opened_stores(store, read_only=True) as stores:
            rows = stores.journal.list_runs(RunFilter(statuses=statuses, tags=tags))
        wanted = [row for row in rows if _is_wanted(row, since_ms, workflow)]
        chosen = tuple(row.run_id for row in wanted)
        reopen = _Selected(wanted, dry_run=dry_run).reopen
    if not chosen and not output.json:
        output.print("no runs match: nothing to retry")
    context.exit(each_run(output, chosen, store, reopen, _describe))


def _is_wanted(row: RunMeta, since_ms: int | None, workflow: str | None) -> bool:
    if workflow is not None and row.workflow_name != workflow:
        return False
    if since_ms is None:
        return True
    try:
        ended_ms = parse_time(row.updated_at)
    except ValueError:
        return False
    return SystemClock().now_ms() - ended_ms <= since_ms


class _Selected:
    """Runs that a filter chose, in the order of their ids: a parent comes before its children.

    A child whose parent has not ended, or is retried with it, is left out, with the reason.
    """

    def __init__(self, rows: Sequence[RunMeta], *, dry_run: bool) -> None:
        self._parents = {row.run_id: row.parent_run_id for row in rows}
        self._dry_run = dry_run
        self._retried: set[str] = set()

    async def reopen(self, engine: Engine, stores: Stores, run_id: str) -> Document:
        parent = self._parents[run_id]
        if parent in self._retried:
            self._retried.add(run_id)
            reason = f"its parent {parent!r} is retried, and the child in its segment"
            return _left_out(reason)
        try:
            done = await _reopen(engine, stores, run_id, dry_run=self._dry_run)
        except ConfigError as error:
            if parent is None:
                raise
            return _left_out(str(error))
        if done["reopened"] or done.get("would_reopen"):
            self._retried.add(run_id)
        return done


def _left_out(reason: str) -> Document:
    return {"reopened": False, "status": None, "left_out": reason}


async def _reopen(engine: Engine, stores: Stores, run_id: str, *, dry_run: bool) -> Document:
    if not is_there(stores, run_id):
        raise no_such_run(run_id)
    if dry_run:
        would, status_now = await would_reopen(engine.runtime, run_id)
        return {"reopened": False, "would_reopen": would, "status": status_now}
    status = await reopen_run(engine.runtime, run_id)
    return {"reopened": status is None, "status": status}


def _describe(done: Document) -> list[str]:
    if "left_out" in done:
        return [f"left out: {done['left_out']}"]
    if done.get("would_reopen"):
        return ["would be reopened"]
    if done["reopened"]:
        return ["reopened: a worker or `rulvar resume` continues it"]
    return [f"did not fail ({done['status'] or 'it has not ended'}): unchanged"]
