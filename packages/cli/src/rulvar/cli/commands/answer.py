"""`rulvar resolve` and `rulvar cancel`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import plain
from rulvar.cli.store_access import opened_stores
from rulvar.cli.values import read_value
from rulvar.core import Engine

if TYPE_CHECKING:
    from rulvar.cli.output import Output
    from rulvar.core import RunOutcome

__all__ = ["cancel", "resolve"]


@click.command("resolve")
@click.argument("run_id")
@click.argument("key")
@click.argument("value", metavar="JSON")
@click.option(
    "--seq",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Answer only this wait, by its number in `rulvar runs show`, and no later one of KEY.",
)
@store_option
@output_options
@pass_output
def resolve(
    output: Output, *, run_id: str, key: str, value: str, seq: int | None, store: str | None
) -> None:
    """Answer the wait of RUN_ID for KEY.

    JSON is one JSON text, @FILE to read it from a file, or - for standard input. A worker or
    `rulvar resume` then continues the run. A run that a worker holds is refused with status 3.

    Without --seq it answers the earliest wait of KEY that is open. With it the same command,
    given twice, never answers a second wait of the same key.

    \b
    Examples:
      rulvar resolve order-17 approval '{"approved": true}'
      rulvar resolve order-17 approval true --seq 7
      rulvar resolve order-17 approval @answer.json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    answer = read_value(value, what="JSON")

    async def perform() -> None:
        with opened_stores(store, existing=True) as stores:
            async with Engine(stores) as engine:
                await engine.resolve(run_id, key, answer, seq=seq)

    asyncio.run(perform())
    output.show(
        {"run_id": run_id, "key": key, "resolved": True},
        lambda: (
            f"resolved {plain(key)} of run {plain(run_id)}: "
            "a worker or `rulvar resume` continues it"
        ),
    )


@click.command("cancel")
@click.argument("run_id")
@store_option
@output_options
@pass_output
def cancel(output: Output, run_id: str, store: str | None) -> None:
    """Cancel RUN_ID.

    It ends as cancelled and executes no further step; a run that has ended keeps its outcome.
    A run that a worker holds is refused with status 3.

    \b
    Examples:
      rulvar cancel order-17
    """  # noqa: D301

    async def perform() -> RunOutcome | None:
        with opened_stores(store, existing=True) as stores:
            async with Engine(stores) as engine:
                return await engine.cancel(run_id)

    outcome = asyncio.run(perform())
    # None is the answer to a run that asks about itself, which no command line is.
    status = "cancelled" if outcome is None else outcome.status
    over = f"run {plain(run_id)} had ended as {status} before: nothing to cancel"
    output.show(
        {"run_id": run_id, "status": status, "cancelled": status == "cancelled"},
        lambda: f"cancelled run {plain(run_id)}" if status == "cancelled" else over,
    )
