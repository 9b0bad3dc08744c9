"""`rulvar stores`: which URL schemes can be opened, and who provides them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rulvar.cli.options import output_options, pass_output
from rulvar.cli.view.tables import columns
from rulvar.core.plugins import how_to_get, installed_stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.cli.output import Output
    from rulvar.cli.view.tables import Renderable
    from rulvar.core.plugins import InstalledStore

__all__ = ["stores"]


@click.command("stores")
@output_options
@pass_output
def stores(output: Output) -> None:
    """List the stores that are installed.

    Shows scheme, distribution, version and problems of each. Reads the metadata of the
    installed distributions and imports none of them. A problem with one store is shown
    beside it and concerns no other.

    \b
    Examples:
      rulvar stores
      rulvar stores --json | jq -r '.stores[].scheme'
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    found = installed_stores()
    document = {"stores": [{"scheme": each.scheme, **asdict(each)} for each in found]}
    output.show(document, lambda: _table(found))


def _table(found: Sequence[InstalledStore]) -> Renderable:
    if not found:
        return f"no stores are found: {how_to_get('rulvar-store-sqlite', 'rulvar.stores.sqlite')}"
    rows = [
        (f"{each.scheme}://", each.distribution, each.version, each.value, each.problem or "")
        for each in found
    ]
    titles = ["SCHEME", "DISTRIBUTION", "VERSION", "PLUGIN", "PROBLEM"]
    if not any(each.problem for each in found):
        return columns(titles[:-1], [row[:-1] for row in rows])
    return columns(titles, rows)
