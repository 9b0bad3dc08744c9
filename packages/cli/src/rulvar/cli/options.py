"""Options that several commands share, each in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from rulvar.cli.config import ENVIRONMENT
from rulvar.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "app_option",
    "output_of",
    "output_options",
    "pass_output",
    "source_change_option",
    "store_option",
]

Decorated = TypeVar("Decorated", bound="Callable[..., object] | click.Command")


def output_of(context: click.Context) -> Output:
    """Return the invocation's one `Output`, made on first use."""
    return context.ensure_object(Output)


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        output_of(context).json = True


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        output_of(context).debug = True


def output_options(command: Decorated) -> Decorated:
    """Add ``--json`` and ``--debug``."""
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        help="Also show the traceback of an error.",
    )
    machine = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_json,
        help="Print JSON, and nothing else, on standard output.",
    )
    return machine(debug(command))


pass_output = click.make_pass_decorator(Output, ensure=True)

store_option = click.option(
    "--store",
    "store",
    metavar="URL",
    envvar=ENVIRONMENT["store"],
    show_envvar=True,
    help="The store, as in sqlite:///runs.db; or store under [tool.rulvar] in pyproject.toml.",
)

source_change_option = click.option(
    "--on-source-change",
    "on_source_change",
    type=click.Choice(["warn", "refuse"]),
    default="warn",
    show_default=True,
    help="What to do with a run that was started from a different version of its source.",
)

app_option = click.option(
    "--app",
    "apps",
    metavar="MODULE[:ATTR]",
    multiple=True,
    envvar=ENVIRONMENT["app"],
    show_envvar=True,
    help=(
        "Where workflows are, as in flows:count; may be given several times (several in the "
        "variable with spaces between them); or app under [tool.rulvar]."
    ),
)
