"""Commands that act on each of several runs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, TypeAlias

import click

from rulvar.cli.exit_codes import ExitStatus, status_of_error
from rulvar.cli.output import error_document, plain
from rulvar.cli.store_access import opened_stores
from rulvar.core import Engine
from rulvar.core.capabilities import has_meta_lookup
from rulvar.core.errors import ConfigError, RulvarError, StoreCorruptError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.cli.output import Output
    from rulvar.core.stores import Stores

__all__ = ["Document", "confirm", "each_run", "is_there", "no_such_run"]

Document: TypeAlias = dict[str, object]


def confirm(question: str, *, why: str) -> None:
    """Ask for confirmation on a terminal; the answer no ends the command.

    Raises `ConfigError` without a terminal; its message begins with ``why``.
    """
    if not _is_terminal():
        message = f"{why}, and standard input is not a terminal: confirm with --yes"
        raise ConfigError(message)
    click.confirm(question, abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def is_there(stores: Stores, run_id: str) -> bool:
    """Whether the store has any part of the run, also one that a deletion left."""
    try:
        if stores.journal.load(run_id) or stores.transcripts.list_refs(run_id):
            return True
    except StoreCorruptError:
        return True
    if has_meta_lookup(stores.journal):
        return stores.journal.get_meta(run_id) is not None
    return any(meta.run_id == run_id for meta in stores.journal.list_runs())


def no_such_run(run_id: str) -> ConfigError:
    """Return the error for a run that is not in the store."""
    return ConfigError(f"there is no run {run_id!r} in this store: `rulvar runs ls` lists its runs")


def each_run(
    output: Output,
    run_ids: tuple[str, ...],
    store: str | None,
    act: Callable[[Engine, Stores, str], Awaitable[Document]],
    describe: Callable[[Document], list[str]],
) -> ExitStatus:
    """Act on each run; a refusal does not stop the others, and decides the exit status."""
    found: list[Document] = []
    worst = ExitStatus.DONE

    async def perform() -> None:
        nonlocal worst
        with opened_stores(store, existing=True) as stores:
            async with Engine(stores) as engine:
                for run_id in run_ids:
                    try:
                        done = await act(engine, stores, run_id)
                    except RulvarError as error:
                        worst = worst or status_of_error(error)
                        found.append({"run_id": run_id} | error_document(error))
                        if not output.json:
                            output.failure(error)
                    else:
                        found.append({"run_id": run_id} | done)
                        if not output.json:
                            output.print(
                                "\n".join(f"run {plain(run_id)}: {t}" for t in describe(done))
                            )

    asyncio.run(perform())
    if output.json:
        output.document({"runs": found})
    return worst
