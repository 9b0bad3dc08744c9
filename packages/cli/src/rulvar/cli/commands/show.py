"""`rulvar runs show`."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.store_access import opened_stores
from rulvar.cli.view.inspection import inspect_run
from rulvar.cli.view.run_view import show_document, show_text
from rulvar.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.cli.output import Output
    from rulvar.cli.view.inspection import Inspection

__all__ = ["show"]


@click.command("show")
@click.argument("run_id")
@store_option
@output_options
@pass_output
@click.pass_context
def show(context: click.Context, output: Output, run_id: str, store: str | None) -> None:
    """Show RUN_ID: its row, its lease, its tenures, each call, and its blobs.

    A tenure is the part of the journal that was written under one epoch. For a takeover the
    output says how long the silence before it was, which calls were left unfinished, and who
    repeated them.

    \b
    Examples:
      rulvar runs show order-17
      rulvar runs show order-17 --json | jq .tenures
    """  # noqa: D301
    with opened_stores(store, read_only=True) as stores, _collector_off():
        inspection: Inspection = inspect_run(stores, run_id)
        now_ms = SystemClock().now_ms()
        if output.json:
            output.document(show_document(inspection))
        else:
            output.print(show_text(inspection, now_ms=now_ms))
    for problem in inspection.problems:
        output.note(f"error: {problem}")
    context.exit(inspection.exit_status)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn the garbage collector off: it takes a third of the time of a long journal."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
