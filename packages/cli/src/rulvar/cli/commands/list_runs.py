"""`rulvar runs ls`: the catalogue, page by page, whatever its size.

A page is read, printed and forgotten before the next is read, so that a store of any number
of runs is listed in the same memory, and its first rows appear at once. Each page is one
read: a run that changes during the listing is shown as its page found it.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import click

from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import ago, plain
from rulvar.cli.store_access import opened_stores
from rulvar.cli.view.tables import columns
from rulvar.core.capabilities import has_lease_admin, has_run_inventory
from rulvar.core.checks import check_run_id
from rulvar.core.clock import SystemClock
from rulvar.core.errors import ConfigError
from rulvar.core.journal import SUSPECTED
from rulvar.core.process_identity import readable_part
from rulvar.core.records import RUN_STATUSES, TERMINAL_STATUSES, RunFilter, RunMeta
from rulvar.core.wire import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rulvar.cli.output import Output
    from rulvar.cli.view.tables import Columns
    from rulvar.core.records import LeaseInfo
    from rulvar.core.stores import Stores

__all__ = ["list_runs"]

_FIRST_PAGE = 500
_PAGE = 5_000
_LONGEST_NOTE = 60
_FEW = 20
_LEASES_AT_ONCE = 1_000
_IDS_AT_ONCE = 10_000
_MOST_NAMED = 5
_FIELDS = tuple(field.name for field in fields(RunMeta))
_TITLES = (
    *("RUN", "STATUS", "WORKFLOW", "NAME", "TAGS", "SEGMENTS>", "UPDATED", "HELD BY"),
    "NOTE",
)
_STYLES = {
    "ok": "green",
    "running": "cyan",
    "suspended": "yellow",
    "error": "red",
    "cancelled": "red",
    "exhausted": "red",
}


@click.command("ls")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(RUN_STATUSES),
    help="Only runs of this status; may be given several times.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="Only runs with this tag; with several, runs that have them all.",
)
@click.option("--name", help="Only runs of this name.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most this many runs.",
)
@click.option("--after", metavar="RUN_ID", help="Only runs after this id: the next page.")
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
    """List runs.

    The order is that of the run ids' UTF-8 bytes. HELD BY shows the present holder of a run,
    with the epoch of its lease. NOTE marks runs that the present code cannot replay, and runs
    that may be killing their workers: `rulvar runs show` says what to do. When there are more
    runs than --limit, the option for the next page is printed (next_after under --json).

    \b
    Examples:
      rulvar runs ls
      rulvar runs ls --status suspended --tag nightly --json
      rulvar runs ls --limit 20 --after order-17
    """  # noqa: D301
    wanted = RunFilter(statuses=statuses or None, name=name, tags=tags, after_run_id=after)
    shown = _JsonListing(output) if output.json else _TextListing(output)
    next_after: str | None = None
    with opened_stores(store, read_only=True) as stores:
        for page in _pages(stores, wanted, limit):
            shown.add(page, _holders(stores, page))
            next_after = page.next_after
        odd = _odd_ids(stores, after, limit)
    shown.end(next_after)
    if odd:
        output.note(
            "skipped, because they are not valid run ids: "
            f"{', '.join(map(repr, odd[:_MOST_NAMED]))}"
            f"{' and others' if len(odd) > _MOST_NAMED else ''}: `rulvar runs audit` lists each"
        )
    if next_after is not None and not output.json:
        output.note(f"more runs follow: --after {shlex.quote(next_after)}")


# --- reading ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows that were read together, those behind ``after``; ``next_after`` ends a listing."""

    runs: Sequence[RunMeta]
    after: str | None
    is_whole: bool
    next_after: str | None = None


def _pages(stores: Stores, wanted: RunFilter, limit: int) -> Iterator[_Page]:
    """Yield the rows that are wanted, at least one page, none of them kept behind it."""
    after, left, size = wanted.after_run_id, limit, _FIRST_PAGE
    while True:
        count = min(left, size)
        # One more than asked for says whether there is a next page.
        found = stores.journal.list_runs(replace(wanted, limit=count + 1, after_run_id=after))
        runs, has_more = found[:count], len(found) > count
        left -= len(runs)
        last = not has_more or left == 0
        yield _Page(
            runs=runs,
            after=after,
            is_whole=last and size == _FIRST_PAGE,
            next_after=runs[-1].run_id if last and has_more else None,
        )
        if last:
            return
        after, size = runs[-1].run_id, _PAGE


def _holders(stores: Stores, page: _Page) -> dict[str, LeaseInfo]:
    """Return who holds which run of a page, read from the leases beside it."""
    journal, runs = stores.journal, page.runs
    if not runs or not has_lease_admin(journal):
        return {}
    if len(runs) <= _FEW:
        infos = (journal.get_lease(meta.run_id) for meta in runs)
        return {info.run_id: info for info in infos if info is not None and info.live}
    wanted = {meta.run_id for meta in runs}
    held: dict[str, LeaseInfo] = {}
    after = page.after
    while leases := journal.list_leases(after, _LEASES_AT_ONCE):
        held |= {each.run_id: each for each in leases if each.live and each.run_id in wanted}
        after = leases[-1].run_id
        if after >= runs[-1].run_id:
            break
    return held


def _odd_ids(stores: Stores, after: str | None, limit: int) -> list[str]:
    """Return ids in reach of the listing that are not valid run ids, at most a few."""
    if not has_run_inventory(stores.journal):
        return []
    odd: list[str] = []
    left = limit
    while left > 0 and len(odd) <= _MOST_NAMED:
        found = stores.journal.list_run_ids(after, min(left, _IDS_AT_ONCE))
        odd += [run_id for run_id in found if not _is_run_id(run_id)]
        left -= len(found)
        if len(found) < _IDS_AT_ONCE or not _is_run_id(found[-1]):
            break
        after = found[-1]
    return odd


def _is_run_id(text: str) -> bool:
    try:
        check_run_id(text)
    except ConfigError:
        return False
    return True


# --- printing -----------------------------------------------------------------------------


class _JsonListing:
    def __init__(self, output: Output) -> None:
        self._document = output.list_document("runs")

    def add(self, page: _Page, holders: Mapping[str, LeaseInfo]) -> None:
        self._document.add([_row(meta, holders.get(meta.run_id)) for meta in page.runs])

    def end(self, next_after: str | None) -> None:
        self._document.end({"next_after": next_after})


def _row(meta: RunMeta, holder: LeaseInfo | None) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(meta, name) for name in _FIELDS}
    row["extra"] = dict(meta.extra)
    row["blocked"] = None if meta.blocked is None else asdict(meta.blocked)
    row["holder"] = None if holder is None else asdict(holder)
    return row


class _TextListing:
    """One table. Of a single page, columns that would stay empty are left out.

    A longer listing keeps them all, and its columns grow wider where a later page needs it.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._before: Columns | None = None
        self._now_ms = SystemClock().now_ms()

    def add(self, page: _Page, holders: Mapping[str, LeaseInfo]) -> None:
        if not page.runs:
            if self._before is None:
                self._output.print("no runs")
            return
        titles: Sequence[str] = _TITLES
        rows: Sequence[Sequence[object]] = [
            _cells(meta, holders.get(meta.run_id), self._now_ms) for meta in page.runs
        ]
        if page.is_whole:
            titles, rows = _without_empty(titles, rows)
        self._before = columns(titles, rows, styles=_STYLES, before=self._before)
        self._output.print(self._before)

    def end(self, next_after: str | None) -> None:
        del next_after  # said beside the table, on standard error


def _cells(meta: RunMeta, holder: LeaseInfo | None, now_ms: int) -> tuple[object, ...]:
    held = f"{readable_part(holder.owner)} (epoch {holder.epoch})" if holder is not None else ""
    return (
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


def _note(meta: RunMeta) -> str:
    """Say why an unfinished run is not executed as others are."""
    if meta.status in TERMINAL_STATUSES:
        return ""
    if meta.blocked is not None:
        reason = meta.blocked.reason
        short = reason if len(reason) <= _LONGEST_NOTE else f"{reason[:_LONGEST_NOTE]}..."
        return f"blocked, the code cannot replay it: {short}"
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
