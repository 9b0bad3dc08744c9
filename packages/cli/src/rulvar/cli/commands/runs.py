"""`rulvar runs`: what is there, what happened to it, and whether it is in order."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from rulvar.cli.commands.audit import audit
from rulvar.cli.commands.removal import prune, remove, retain
from rulvar.cli.commands.retry import retry
from rulvar.cli.commands.source import source
from rulvar.cli.commands.take_over import take_over
from rulvar.cli.inspection import inspect_run
from rulvar.cli.opened import opened_stores
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.others import OpenGroup
from rulvar.cli.render import ago, plain
from rulvar.cli.tables import columns
from rulvar.cli.telling import show_document, show_text
from rulvar.core.capabilities import has_lease_admin, has_run_inventory
from rulvar.core.checks import check_run_id
from rulvar.core.clock import SystemClock
from rulvar.core.engine.io.process_identity import readable_part
from rulvar.core.errors import ConfigError
from rulvar.core.journal import SUSPECTED
from rulvar.core.records import RUN_STATUSES, TERMINAL_STATUSES, RunFilter
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.cli.inspection import Inspection
    from rulvar.cli.render import Output
    from rulvar.cli.tables import Renderable
    from rulvar.core.records import LeaseInfo, RunMeta
    from rulvar.core.stores import Stores

__all__ = ["runs"]

_LONGEST_NOTE = 60
_FEW = 20
_LEASES_AT_ONCE = 1_000
_MOST_IDS = 1_000
_MOST_NAMED = 5
_STYLES = {
    "ok": "green",
    "running": "cyan",
    "suspended": "yellow",
    "error": "red",
    "cancelled": "red",
    "exhausted": "red",
}


@click.group("runs", cls=OpenGroup)
@output_options
def runs() -> None:
    """List runs, show one, audit and repair their rows, delete them.

    \b
    Examples:
      rulvar runs ls --status running --status suspended
      rulvar runs show order-17
      rulvar runs audit --repair
      rulvar runs retain --older-than 30d --dry-run
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@runs.command("ls")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(RUN_STATUSES),
    help="Only runs of this status; may be given several times.",
)
@click.option("--tag", "tags", multiple=True, help="Only runs with this tag; all that are given.")
@click.option("--name", help="Only runs of this name.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most so many runs.",
)
@click.option("--after", metavar="RUN_ID", help="Only runs after this one: the next page.")
@store_option
@output_options
@pass_output
def list_runs(
    output: Output,
    *,
    statuses: tuple[str, ...],
    tags: tuple[str, ...],
    name: str | None,
    limit: int,
    after: str | None,
    store: str | None,
) -> None:
    """List runs, ordered by the bytes of their run ids.

    HELD BY shows who holds a run at present, with the epoch of the lease. NOTE says which runs
    wait for another code, and which may be what kills their workers: `rulvar runs show` tells
    what to do. When there are more runs than --limit, the way to the next page is named
    (next_after under --json).

    \b
    Examples:
      rulvar runs ls
      rulvar runs ls --status suspended --tag nightly --json
      rulvar runs ls --limit 20 --after order-17
    """  # noqa: D301
    # One more than asked for tells whether there is a next page.
    run_filter = RunFilter(
        statuses=statuses or None, name=name, tags=tags, limit=limit + 1, after_run_id=after
    )
    with opened_stores(store, read_only=True) as stores:
        found = stores.journal.list_runs(run_filter)
        page = found[:limit]
        holders = _holders(stores, page)
        odd = _left_out(stores, after, limit)
    more = page[-1].run_id if len(found) > limit else None
    document = {
        "runs": [_row_document(meta, holders[meta.run_id]) for meta in page],
        "next_after": more,
    }
    output.show(document, lambda: _table(page, holders))
    if odd:
        output.note(
            "left out, for no run can have such an id here: "
            f"{', '.join(map(repr, odd[:_MOST_NAMED]))}"
            f"{' and others' if len(odd) > _MOST_NAMED else ''}: `rulvar runs audit` names each"
        )
    if more is not None and not output.json:
        output.note(f"there are more: --after {shlex.quote(more)}")


def _is_run_id(text: str) -> bool:
    try:
        check_run_id(text)
    except ConfigError:
        return False
    return True


def _left_out(stores: Stores, after: str | None, limit: int) -> list[str]:
    """Return the ids in reach of a page that are no run ids here: another writer's."""
    if not has_run_inventory(stores.journal):
        return []
    found = stores.journal.list_run_ids(after, min(limit, _MOST_IDS))
    return [run_id for run_id in found if not _is_run_id(run_id)]


def _holders(stores: Stores, page: Sequence[RunMeta]) -> dict[str, LeaseInfo | None]:
    """Return who holds each run of a page, read from the leases beside it."""
    holders: dict[str, LeaseInfo | None] = dict.fromkeys(meta.run_id for meta in page)
    journal = stores.journal
    if not page or not has_lease_admin(journal):
        return holders
    if len(page) <= _FEW:
        infos = (journal.get_lease(meta.run_id) for meta in page)
        return holders | {info.run_id: info for info in infos if info is not None and info.live}
    after: str | None = None
    while leases := journal.list_leases(after, _LEASES_AT_ONCE):
        for lease in leases:
            if lease.live and lease.run_id in holders:
                holders[lease.run_id] = lease
        after = leases[-1].run_id
        if after >= page[-1].run_id:
            break
    return holders


def _row_document(meta: RunMeta, holder: LeaseInfo | None) -> dict[str, object]:
    row: dict[str, object] = {field.name: getattr(meta, field.name) for field in fields(meta)}
    row["extra"] = dict(meta.extra)
    row["blocked"] = None if meta.blocked is None else asdict(meta.blocked)
    row["holder"] = None if holder is None else asdict(holder)
    return row


def _table(page: Sequence[RunMeta], holders: dict[str, LeaseInfo | None]) -> Renderable:
    if not page:
        return "no runs"
    now_ms = SystemClock().now_ms()
    rows = []
    for meta in page:
        holder = holders[meta.run_id]
        held = f"{readable_part(holder.owner)} (epoch {holder.epoch})" if holder is not None else ""
        rows.append(
            (
                meta.run_id,
                meta.status,
                meta.workflow_name,
                meta.name,
                " ".join(meta.tags),
                meta.segments,
                _age(meta.updated_at, now_ms),
                held,
                _note(meta),
            )
        )
    titles = (
        *("RUN", "STATUS", "WORKFLOW", "NAME", "TAGS", "SEGMENTS>", "UPDATED", "HELD BY"),
        "NOTE",
    )
    return columns(*_without_empty(titles, rows), styles=_STYLES)


def _note(meta: RunMeta) -> str:
    """Tell what keeps an unfinished run from being worked on as others are."""
    if meta.status in TERMINAL_STATUSES:
        return ""
    if meta.blocked is not None:
        reason = meta.blocked.reason
        short = reason if len(reason) <= _LONGEST_NOTE else f"{reason[:_LONGEST_NOTE]}..."
        return f"blocked, waits for another code: {short}"
    count = meta.recoveries or 0
    return f"{count} deaths in a row: executed last and alone" if count >= SUSPECTED else ""


def _age(updated_at: str, now_ms: int) -> str:
    try:
        return ago(parse_time(updated_at), now_ms)
    except ValueError:
        return plain(updated_at)  # another writer's spelling


def _without_empty(
    titles: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Leave out the columns in which no row has anything: a page without tags is narrower."""
    kept = [at for at in range(len(titles)) if any(row[at] not in (None, "") for row in rows)]
    return [titles[at] for at in kept], [[row[at] for at in kept] for row in rows]


@runs.command("show")
@click.argument("run_id")
@store_option
@output_options
@pass_output
@click.pass_context
def show(context: click.Context, output: Output, run_id: str, store: str | None) -> None:
    """Show RUN_ID: its row, its lease, who worked on it, each call, and its blobs.

    A tenure is a stretch of the journal under one epoch. Where an owner was taken over, the
    account says after what silence, which calls it had left unfinished, and who ran them
    again.

    \b
    Examples:
      rulvar runs show order-17
      rulvar runs show order-17 --json | jq .tenures
    """  # noqa: D301
    with opened_stores(store, read_only=True) as stores:
        inspection: Inspection = inspect_run(stores, run_id)
    now_ms = SystemClock().now_ms()
    output.show(show_document(inspection), lambda: show_text(inspection, now_ms=now_ms))
    for problem in inspection.problems:
        output.note(f"error: {problem}")
    context.exit(inspection.exit_status)


runs.add_command(audit)
runs.add_command(source)
runs.add_command(retry)
runs.add_command(take_over)
runs.add_command(remove)
runs.add_command(prune)
runs.add_command(retain)
