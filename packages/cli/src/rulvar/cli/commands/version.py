"""`rulvar version`: what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

import click

from rulvar.cli.options import output_options, pass_output

if TYPE_CHECKING:
    from rulvar.cli.output import Output

__all__ = ["show_versions", "version"]

_DISTRIBUTIONS = ("rulvar-cli", "rulvar-core")


def show_versions(output: Output) -> None:
    """Print the versions of the command line, the core and Python."""
    found = {name: _installed(name) for name in _DISTRIBUTIONS}
    document = {"versions": {**found, "python": platform.python_version()}}
    output.show(
        document,
        lambda: "\n".join(
            f"{name} {number or '(not installed)'}" for name, number in document["versions"].items()
        ),
    )


def _installed(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


@click.command("version")
@output_options
@pass_output
def version(output: Output) -> None:
    """Show the versions of the command, the core and Python.

    Those of the stores are in `rulvar stores`.

    \b
    Examples:
      rulvar version
      rulvar version --json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    show_versions(output)
