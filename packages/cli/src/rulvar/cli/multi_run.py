"""Commands that do one thing to each of several runs."""

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
    """Ask on a terminal; the answer no ends the command.

    Raises `ConfigError` where nobody can be asked, beginning with ``why``.
    """
    if not _is_terminal():
        message = f"{why}, and nobody can be asked here: give --yes"
        raise ConfigError(message)
    click.confirm(question, abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def is_there(stores: Stores, run_id: str) -> bool:
    """Whether the store has anything of the run: also what an interrupted deletion left."""
    try:
        if stores.journal.load(run_id) or stores.transcripts.list_refs(run_id):
            return True
    except StoreCorruptError:
        return True
    if has_meta_lookup(stores.journal):
        return stores.journal.get_meta(run_id) is not None
    return any(meta.run_id == run_id for meta in stores.journal.list_runs())


def no_such_run(run_id: str) -> ConfigError:
    """Return the error for a run that the store has nothing of."""
    return ConfigError(f"there is no run {run_id!r} in this store: rulvar runs ls lists them")


def each_run(
    output: Output,
    run_ids: tuple[str, ...],
    store: str | None,
    act: Callable[[Engine, Stores, str], Awaitable[Document]],
    tell: Callable[[Document], list[str]],
) -> ExitStatus:
    """Do it to each run; one that is refused stops no other, and its status is the answer."""
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
                            output.print("\n".join(f"run {plain(run_id)}: {t}" for t in tell(done)))

    asyncio.run(perform())
    if output.json:
        output.document({"runs": found})
    return worst
