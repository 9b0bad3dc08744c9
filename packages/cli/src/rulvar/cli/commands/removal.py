"""`rulvar runs rm`, `prune` and `retain`: deleting runs and checkpoints."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rulvar.cli.durations import read_age, read_policy
from rulvar.cli.exit_codes import ExitStatus
from rulvar.cli.multi_run import confirm, each_run, is_there, no_such_run
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import plain
from rulvar.cli.store_access import opened_stores
from rulvar.core import Engine
from rulvar.core.checks import check_run_id
from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from rulvar.cli.multi_run import Document
    from rulvar.cli.output import Output
    from rulvar.core import RetentionReport
    from rulvar.core.stores import Stores

__all__ = ["prune", "remove", "retain"]


@click.command("rm")
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@output_options
@pass_output
@click.pass_context
def remove(
    context: click.Context,
    output: Output,
    *,
    run_ids: tuple[str, ...],
    yes: bool,
    store: str | None,
) -> None:
    """Delete each RUN_ID: its blobs, its row and its journal.

    Asks first on a terminal; elsewhere --yes is needed. A deletion that was interrupted is
    finished by the same command. A run that a worker holds, or whose child is held, is
    refused with status 3; the others are still deleted. Children are separate runs: name
    them too.

    \b
    Examples:
      rulvar runs rm order-17
      rulvar runs rm order-17 order-18 --yes
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    for run_id in run_ids:
        check_run_id(run_id)
    wanted = run_ids if yes else _ask(run_ids, store)

    async def delete(engine: Engine, stores: Stores, run_id: str) -> Document:
        if run_id not in wanted or not is_there(stores, run_id):
            raise no_such_run(run_id)
        await engine.delete_run(run_id)
        return {"deleted": True}

    context.exit(each_run(output, run_ids, store, delete, lambda _done: ["deleted"]))


def _ask(run_ids: tuple[str, ...], store: str | None) -> tuple[str, ...]:
    """Ask about the runs that exist, and return them."""
    with opened_stores(store, read_only=True) as stores:
        there = tuple(run_id for run_id in run_ids if is_there(stores, run_id))
    if there:
        named = ", ".join(plain(run_id) for run_id in there)
        confirm(f"Delete {named} permanently?", why=f"this deletes {named} permanently")
    return there


@click.command("prune")
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
@store_option
@output_options
@pass_output
@click.pass_context
def prune(
    context: click.Context, output: Output, *, run_ids: tuple[str, ...], store: str | None
) -> None:
    """Delete the checkpoints and summaries that each RUN_ID no longer needs.

    Only those of completed turn loops are deleted; the run itself is not changed. A run that a
    worker holds is refused with status 3.

    \b
    Examples:
      rulvar runs prune order-17
    """  # noqa: D301

    async def perform(engine: Engine, _stores: Stores, run_id: str) -> Document:
        return {"deleted": list((await engine.prune_run(run_id)).deleted)}

    def describe(done: Document) -> list[str]:
        refs = done["deleted"]
        return (
            [f"deleted {plain(ref)}" for ref in refs]
            if isinstance(refs, list) and refs
            else ["nothing to delete"]
        )

    context.exit(each_run(output, run_ids, store, perform, describe))


@click.command("retain")
@click.option(
    "--older-than",
    "older_than_ms",
    callback=read_age,
    required=True,
    metavar="AGE",
    help="Only runs that ended at least this long ago: a number and s, m, h, d or w, as in 30d.",
)
@click.option(
    "--status",
    "statuses",
    metavar="STATUS,...",
    default="ok,cancelled",
    show_default=True,
    help="Only runs with this status; several are separated by commas.",
)
@click.option(
    "--keep-last",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Keep this many of the newest matching runs of each workflow.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@store_option
@output_options
@pass_output
@click.pass_context
def retain(
    context: click.Context,
    output: Output,
    *,
    older_than_ms: int,
    statuses: str,
    keep_last: int,
    dry_run: bool,
    store: str | None,
) -> None:
    """Delete runs that ended long ago.

    Each run is checked again under a short lease before it is deleted: one that is held,
    damaged, reopened, or the child of a parent that may need it is kept, with the reason.
    A deletion that the store refuses is reported, and the status is 5; the others are still
    deleted.

    \b
    Examples:
      rulvar runs retain --older-than 30d --dry-run
      rulvar runs retain --older-than 12h --status ok,error --keep-last 10
    """  # noqa: D301
    policy = read_policy(older_than_ms, statuses, keep_last)

    async def perform() -> RetentionReport:
        with opened_stores(store, existing=True) as stores:
            async with Engine(stores) as engine:
                return await engine.apply_retention(policy, dry_run=dry_run)

    report = asyncio.run(perform())
    output.show(asdict(report), lambda: _retained(report))
    if not output.json:
        for run_id, reason in report.kept.items():
            output.note(f"kept {run_id}: {reason}")
        for run_id, reason in report.failed.items():
            output.note(f"error: {run_id} is not deleted: {reason}")
    context.exit(ExitStatus.STORE if report.failed else ExitStatus.DONE)


def _retained(report: RetentionReport) -> str:
    verb = "would delete" if report.dry_run else "deleted"
    lines = [f"{verb} {plain(run_id)}" for run_id in report.deleted]
    total = f"{verb} {len(report.deleted)} of {counted(report.matched, 'matching run')}"
    return "\n".join([*lines, total])
