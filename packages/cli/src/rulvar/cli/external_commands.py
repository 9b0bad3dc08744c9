"""Commands of other distributions: entry points of the group ``rulvar.commands``.

An entry point is named after its command: ``certify`` is ``rulvar certify``. A dot puts it
into a group of ours: ``runs.repair-file`` is ``rulvar runs repair-file``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from rulvar.core.errors import PluginError
from rulvar.core.foreign import ForeignError, calling_foreign_code
from rulvar.core.formatting import command_line, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "KNOWN",
    "OpenGroup",
    "load_other",
    "other_commands",
    "refuse_uninstalled",
    "summary_of_other",
]

KNOWN = {
    "certify": "rulvar-conformance",
    "kill-points": "rulvar-conformance",
    "runs.repair-file": "rulvar-store-file",
    "soak": "rulvar-conformance",
}
"""The distribution to install for a command of this repository's own."""

_PACKAGES = {"rulvar-conformance": "rulvar.conformance", "rulvar-store-file": "rulvar.stores.file"}

# A listing wraps it; cut off in its middle it would say nothing.
_WHOLE_SENTENCE = 400


def other_commands(group: str = "") -> list[str]:
    """Return the names that other distributions offer in a group, or at the top; no import."""
    from rulvar.core.plugins import installed_commands  # noqa: PLC0415 - reads the metadata

    names = {each.name for each in installed_commands()}
    if not group:
        return sorted(name for name in names if "." not in name)
    return sorted(name.removeprefix(f"{group}.") for name in names if name.startswith(f"{group}."))


def load_other(name: str, group: str = "") -> click.Command:
    """Import another distribution's command. Raises `PluginError` when it does not load."""
    from rulvar.core.plugins import load_command  # noqa: PLC0415

    command = load_command(f"{group}.{name}" if group else name)
    if not isinstance(command, click.Command):
        message = (
            f"the command {name!r} is of type {type(command).__name__}, not click.Command: correct "
            "or uninstall its distribution"
        )
        raise PluginError(message, name=name)
    return command


def summary_of_other(name: str, group: str = "") -> str:
    """Return one sentence about a command; a broken one is described as broken."""
    try:
        with calling_foreign_code(PluginError):
            return plain(load_other(name, group).get_short_help_str(_WHOLE_SENTENCE))
    except (PluginError, ForeignError) as error:  # its own help may be what fails
        return plain(f"(broken: {error})")


def refuse_uninstalled(context: click.Context, name: str, group: str = "") -> None:
    """Name the distribution to install for a known command that is not installed.

    Raises ``click.UsageError``; for a command of another group the message says which.
    """
    for known, distribution in KNOWN.items():
        where, _, last = known.rpartition(".")
        if context.resilient_parsing or last != name:
            continue
        if where == group and name in other_commands(group):
            continue
        here = "" if where == group else f" here: it is `{command_line(f'{where} {last}'.strip())}`"
        install = "" if last in other_commands(where) else f": {_how_to_get(distribution)}"
        message = f"No such command {name!r}{here}; it is part of {distribution}{install}"
        raise click.UsageError(message, context)


def _how_to_get(distribution: str) -> str:
    from rulvar.core.plugins import how_to_get  # noqa: PLC0415 - as in other_commands

    return how_to_get(distribution, _PACKAGES[distribution])


class OpenGroup(click.Group):
    """A group that other distributions can extend; built-in names cannot be overridden.

    ``built_in`` says where our commands are, as ``module:attribute``: each is imported when it
    is asked for, so that a command does not pay for the others' imports.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own signature
        built_in: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - the same
    ) -> None:
        super().__init__(*args, **options)
        self._built_in = dict(built_in or {})

    def own_commands(self) -> list[str]:
        """Return the names of our commands, in order."""
        return sorted({*self.commands, *self._built_in})

    def _others(self) -> list[str]:
        return [name for name in other_commands(self.name or "") if name not in self.own_commands()]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return our names, then the others'."""
        return [*self.own_commands(), *self._others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of ours, or import another's.

        Raises `PluginError` for one that does not load.
        """
        if cmd_name in self._built_in and cmd_name not in self.commands:
            module, _, attribute = self._built_in[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(module), attribute), cmd_name)
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name in self._others():
            return load_other(cmd_name, self.name or "")
        return own

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one of ours that is not installed is named with its distribution."""
        refuse_uninstalled(ctx, args[0], self.name or "")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List our commands, and below them the others', the broken ones as broken."""
        own = [(name, self.get_command(ctx, name)) for name in self.own_commands()]
        rows = [
            (name, command.get_short_help_str(_WHOLE_SENTENCE))
            for name, command in own
            if command is not None
        ]
        rows += [(name, summary_of_other(name, self.name or "")) for name in self._others()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
