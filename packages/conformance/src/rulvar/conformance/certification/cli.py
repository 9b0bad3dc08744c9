"""``rulvar certify``: what the entry point of the group ``rulvar.commands`` names."""

from __future__ import annotations

import sys
from functools import partial

import click

from rulvar.conformance.certification.options import (
    DEADLINE_S,
    JOBS,
    CertifyOptions,
    list_clauses,
    run_certification,
)
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.conformance.harness.terminal import debug_option

__all__ = ["certify"]


@click.command("certify")
@click.argument("url", required=False)
@click.option("--list", "listing", is_flag=True, help="Show the clauses and leave.")
@click.option(
    "--only", multiple=True, metavar="ID", help="A clause, or a pattern: 'A5*'; repeatable."
)
@click.option(
    "--level",
    multiple=True,
    type=click.Choice([str(level) for level in Level]),
    help="What is claimed; what the store declares by default.",
)
@click.option(
    "--sharing",
    type=click.Choice([str(sharing) for sharing in Sharing]),
    help="How far the store's state reaches; taken from the URL by default.",
)
@click.option("--seed", type=int, metavar="N", help="Make the random choices again.")
@click.option(
    "--effort", type=int, metavar="N", default=1, help="More races and histories: 1, 2, ..."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    default=JOBS,
    show_default=True,
    help="Clauses at once, where that proves as much.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=DEADLINE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long one clause may take, times the effort.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@click.option("--certificate", metavar="FILE", help="Write the certificate (JSON) there too.")
@click.option("--badge", metavar="FILE", help="Write a badge file.")
@debug_option
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
@click.pass_context
def certify(  # noqa: PLR0917 - click passes them by name
    context: click.Context,
    url: str | None,
    listing: bool,
    only: tuple[str, ...],
    level: tuple[str, ...],
    sharing: str | None,
    seed: int | None,
    effort: int,
    jobs: int,
    deadline: float,
    quiet: bool,
    certificate: str | None,
    badge: str | None,
    as_json: bool,
) -> None:
    """Try the store at URL against every clause of the contract.

    Leaves with 0 only when every MUST of what the store claims was tried and passed. A
    relative path, and @tmp@, are put into a new folder for every clause.

    \b
    Examples:
      rulvar certify acme:///runs.db
      rulvar certify --list
      rulvar certify acme:///runs.db --only 'F-append*' --seed 7
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if listing:
        click.echo(list_clauses(only))
        return
    if url is None:
        message = "a store's URL is missing, as in acme:///runs.db"
        raise click.UsageError(message, context)
    order = CertifyOptions(
        url,
        level=level,
        only=only,
        seed=seed,
        sharing=sharing,
        effort=effort,
        jobs=jobs,
        deadline_s=deadline,
        quiet=quiet,
        json=as_json,
        certificate=certificate,
        badge=badge,
    )
    # Bound now: a clause that never ends may keep standard output turned elsewhere.
    if not run_certification(order, write=partial(click.echo, file=sys.stdout)):
        context.exit(1)
