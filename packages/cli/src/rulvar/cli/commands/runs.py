"""`rulvar runs`: the group of commands about runs; each is imported when it is asked for."""

from __future__ import annotations

import click

from rulvar.cli.external_commands import OpenGroup
from rulvar.cli.options import output_options

__all__ = ["runs"]

_COMMANDS = {
    "audit": "rulvar.cli.commands.audit:audit",
    "ls": "rulvar.cli.commands.list_runs:list_runs",
    "prune": "rulvar.cli.commands.removal:prune",
    "retain": "rulvar.cli.commands.removal:retain",
    "retry": "rulvar.cli.commands.retry:retry",
    "rm": "rulvar.cli.commands.removal:remove",
    "show": "rulvar.cli.commands.show:show",
    "source": "rulvar.cli.commands.source:source",
    "take-over": "rulvar.cli.commands.take_over:take_over",
}


@click.group("runs", cls=OpenGroup, built_in=_COMMANDS)
@output_options
def runs() -> None:
    """List, show, audit, retry and delete runs.

    \b
    Examples:
      rulvar runs ls --status running --status suspended
      rulvar runs show order-17
      rulvar runs audit --repair
      rulvar runs retain --older-than 30d --dry-run
    """  # noqa: D301 - click's mark for text that is not to be wrapped
