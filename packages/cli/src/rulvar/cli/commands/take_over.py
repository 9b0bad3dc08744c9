"""`rulvar runs take-over`: a run is taken from a holder that does not come back."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from rulvar.cli.multi_run import confirm, each_run, is_there, no_such_run
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import plain
from rulvar.cli.store_access import opened_stores
from rulvar.core.capabilities import (
    has_fenced_journal,
    has_lease_admin,
    has_leases,
    has_meta_lookup,
)
from rulvar.core.checks import check_run_id
from rulvar.core.clock import SystemClock
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rulvar.cli.multi_run import Document
    from rulvar.cli.output import Output
    from rulvar.core import Engine, Lease
    from rulvar.core.stores import Stores

__all__ = ["take_over"]

_OPERATOR = "rulvar runs take-over"


@click.command("take-over")
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@output_options
@pass_output
@click.pass_context
def take_over(
    context: click.Context,
    output: Output,
    *,
    run_ids: tuple[str, ...],
    yes: bool,
    store: str | None,
) -> None:
    """Revoke the lease of each RUN_ID, so that another worker can take it.

    For a holder that hangs or is cut off, when waiting for its lease to expire takes too long.
    A higher epoch is granted and released at once: every later write of the old holder is
    refused. A worker, or `rulvar resume`, continues from the journal and repeats the step that
    the holder was executing. A run that is not held is left unchanged.

    \b
    Examples:
      rulvar runs take-over order-17
      rulvar runs take-over order-17 --yes && rulvar resume order-17
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    for run_id in run_ids:
        check_run_id(run_id)
    agreed = None if yes else _ask(run_ids, store)
    context.exit(each_run(output, run_ids, store, partial(_take, agreed=agreed), _describe))


def _ask(run_ids: tuple[str, ...], store: str | None) -> dict[str, int]:
    """Ask about the runs that are held; return the epochs that may be revoked."""
    with opened_stores(store, read_only=True) as stores:
        journal: object = stores.journal
        if not (has_lease_admin(journal) and has_leases(journal)):
            raise _no_leases()
        found = [journal.get_lease(run_id) for run_id in run_ids]
    holders = [each for each in found if each is not None and each.live]
    if holders:
        named = ", ".join(f"{plain(each.run_id)} from {plain(each.owner)}" for each in holders)
        confirm(f"Take {named}?", why=f"taking {named} ends the work of a live holder")
    return {each.run_id: each.epoch for each in holders}


def _no_leases() -> ConfigError:
    message = "this store does not support take-over; nothing was changed"
    return ConfigError(message)


async def _take(
    _engine: Engine, stores: Stores, run_id: str, *, agreed: Mapping[str, int] | None = None
) -> Document:
    """Take a run from its holder; with ``agreed``, only from the epoch that was asked about."""
    journal: object = stores.journal
    if not (has_lease_admin(journal) and has_leases(journal)):
        raise _no_leases()
    holder = journal.get_lease(run_id)
    if holder is None and not is_there(stores, run_id):
        raise no_such_run(run_id)
    if holder is None or not holder.live:
        return {"taken": False, "holder": None, "epoch": None}
    if agreed is not None and agreed.get(run_id) != holder.epoch:
        raise LeaseHeldError(
            run_id=run_id,
            reason="held",
            holder=holder.owner,
            epoch=holder.epoch,
            expires_at=holder.expires_at,
        )
    lease = journal.seize(run_id, f"{_OPERATOR}:{uuid.uuid4().hex}")
    # A holder that was granted the run between the look and the seizure is fenced as well.
    with contextlib.suppress(LeaseHeldError):  # lost to a second operator, who frees it as well
        _ended_in_order(journal, lease)
        journal.release(lease)
    return {"taken": True, "holder": holder.owner, "epoch": holder.epoch}


def _ended_in_order(journal: object, lease: Lease) -> None:
    """Record in the row that an operator ended the segment, so that it counts as no death."""
    if not has_fenced_journal(journal):
        return
    found = (
        journal.list_runs() if not has_meta_lookup(journal) else [journal.get_meta(lease.run_id)]
    )
    for row in found:
        if row is not None and row.run_id == lease.run_id and row.status == "running":
            now = format_time(SystemClock().now_ms())
            journal.put_meta(replace(row, stopped=row.segments, updated_at=now), lease=lease)


def _describe(done: Document) -> list[str]:
    if not done["taken"]:
        return ["not held: a worker or `rulvar resume` can continue it"]
    holder = f"{plain(str(done['holder']))} (epoch {done['epoch']})"
    return [f"taken from {holder}, whose writes are refused from now on; the run is free"]
