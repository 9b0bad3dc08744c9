"""``rulvar soak``: what the entry point of the group ``rulvar.commands`` names."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rulvar.conformance.harness.outfiles import check_out_file
from rulvar.conformance.harness.store_under_test import StoreAtUrl
from rulvar.conformance.harness.terminal import ChangingLine, debug_option
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm
from rulvar.conformance.soak.plan import CI, LONG
from rulvar.conformance.soak.run import soak
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from rulvar.conformance.soak.plan import Plan

__all__ = ["soak_command"]

_WIDTH = 118


def _fast(url: str) -> tuple[str, tuple[str, ...]]:
    """Ask for durability at a crash of the process alone, where the URL takes that option."""
    before, mark, query = url.partition("?")
    if "durability=" in query:
        return url, (f"durability as the URL says: {url}",)
    fast = f"{before}?{query}{'&' if mark and query else ''}durability=normal"
    place = StoreAtUrl(fast).fresh(lease_ttl_ms=60_000, manual_clock=False)
    try:
        place.open()
    except ConfigError:
        return url, ()
    finally:
        place.discard()
    note = (
        "durability=normal was asked for: a process that is killed proves nothing about a power "
        "loss, and waiting for the disk would only slow the workers down"
    )
    return fast, (note,)


@click.command(
    "soak", short_help="Try the store at URL with processes that are stopped and killed."
)
@click.argument("url")
@click.option("--long", "is_long", is_flag=True, help="Some minutes, as before a release.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Make the random choices again."
)
@click.option("--processes", type=int, metavar="N", help="How many worker processes.")
@click.option("--accepted", type=int, metavar="N", help="At least this many accepted mutations.")
@click.option("--refused", type=int, metavar="N", help="At least this many refused mutations.")
@click.option("--takeovers", type=int, metavar="N", help="At least this many takeovers.")
@click.option(
    "--overtaken",
    type=int,
    metavar="N",
    help="At least this many overtaken calls of each mutation.",
)
@click.option("--ttl", type=int, metavar="MS", help="How long a lease lives, in milliseconds.")
@click.option(
    "--deadline",
    type=float,
    metavar="SECONDS",
    help="When it ends as not proven if a coverage goal is not reached.",
)
@click.option("--keep", is_flag=True, help="Keep the reports of the processes after a pass too.")
@click.option("--report", metavar="FILE", help="Write the report (JSON) there too.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@debug_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def soak_command(  # noqa: PLR0917 - click passes them by name
    context: click.Context,
    url: str,
    is_long: bool,
    seed: int | None,
    processes: int | None,
    accepted: int | None,
    refused: int | None,
    takeovers: int | None,
    overtaken: int | None,
    ttl: int | None,
    deadline: float | None,
    keep: bool,
    report: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Try the store at URL with worker processes that are stopped, killed and superseded.

    Ends at the first violation, or when enough has happened: on every surface, under every
    kind of death. Leaves with 0 only when nothing was broken and enough was tried. A relative
    path, and @tmp@, are put into a new folder; at any other place the runs that the soak
    made are deleted again when it has passed, and their tombstones stay.

    Without options it is 4 processes and about a minute; it goes on to its deadline of 180
    seconds where too little has happened by then. With --long, 6 processes and 1,800 seconds.

    \b
    Examples:
      rulvar soak sqlite:///soak.db
      rulvar soak sqlite:///soak.db --long
      rulvar soak acme:///soak.db --seed 7 --processes 6 --takeovers 300 --report soak.json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    plan = _plan(is_long, seed, processes, ttl, deadline).with_goals(
        accepted=accepted, refused=refused, takeovers=takeovers, overtaken=overtaken
    )
    check_out_file("--report", report)
    line = ChangingLine(_WIDTH)
    try:
        with cleans_up_at_sigterm():
            fast, notes = _fast(url)
            found = soak(StoreAtUrl(fast), plan, progress=None if quiet else line.write, keep=keep)
    finally:
        line.end()
    found.notes += notes
    found.again = _again(url, plan, is_long=is_long, given=context.params)
    if report is not None:
        Path(report).write_text(found.json_text() + "\n", encoding="utf-8")
    click.echo(found.json_text() if as_json else found.text())
    if not found.passed:
        context.exit(1)


def _plan(
    is_long: bool,
    seed: int | None,
    processes: int | None,
    ttl: int | None,
    deadline: float | None,
) -> Plan:
    form = LONG if is_long else CI
    return replace(
        form,
        seed=random.SystemRandom().getrandbits(31) if seed is None else seed,
        processes=form.processes if processes is None else processes,
        lease_ttl_ms=form.lease_ttl_ms if ttl is None else ttl,
        deadline_s=form.deadline_s if deadline is None else deadline,
    )


def _again(url: str, plan: Plan, *, is_long: bool, given: dict[str, object]) -> str:
    """Return the command that makes the same choices again."""
    names = ("processes", "accepted", "refused", "takeovers", "overtaken", "ttl", "deadline")
    options = [f"--{name} {given[name]}" for name in names if given[name] is not None]
    parts = [f"rulvar soak '{url}'", *(["--long"] if is_long else []), f"--seed {plan.seed}"]
    return " ".join([*parts, *options])
