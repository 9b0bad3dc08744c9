"""`rulvar runs source`: the workflow's source when the run started, and what has changed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

from rulvar.cli.config import read_settings
from rulvar.cli.options import app_option, output_options, pass_output, store_option
from rulvar.cli.store_access import opened_stores
from rulvar.cli.view.inspection import inspect_run
from rulvar.core.errors import ConfigError
from rulvar.core.formatting import plain_lines

if TYPE_CHECKING:
    from rulvar.cli.output import Output
    from rulvar.core import Workflow
    from rulvar.core.records import RunMeta
    from rulvar.core.stores import Stores

__all__ = ["source"]


@click.command("source")
@click.argument("run_id")
@click.option("--diff", is_flag=True, help="Compare it with the workflow's present source.")
@app_option
@store_option
@output_options
@pass_output
def source(
    output: Output, run_id: str, *, diff: bool, apps: tuple[str, ...], store: str | None
) -> None:
    """Show the workflow's source when RUN_ID started, or how the present one differs.

    The source of a workflow is stored when a run starts. With --diff it is compared with the
    same workflow in the app, as a unified diff; nothing is printed when they are equal.

    \b
    Examples:
      rulvar runs source order-17
      rulvar runs source order-17 --diff --app flows
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    with opened_stores(store, read_only=True) as stores:
        row, ref, kept = _kept(stores, run_id)
    document: dict[str, object] = {
        "run_id": run_id,
        "workflow": row.workflow_name,
        "workflow_hash": row.workflow_hash,
        "ref": ref,
        "source": kept,
    }
    if not diff:
        output.show(document, lambda: _shown(kept).removesuffix("\n"))
        return
    present = _present(row, apps)
    lines = _diff(row, kept, present)
    document |= {"present": present.source, "present_hash": present.hash, "diff": "".join(lines)}
    if lines or output.json:
        output.show(document, lambda: _shown("".join(lines)).removesuffix("\n"))
    else:
        output.note(f"workflow {present.name!r} has not changed since run {run_id!r} started")


def _kept(stores: Stores, run_id: str) -> tuple[RunMeta, str, str]:
    row = inspect_run(stores, run_id).meta
    if row is None:
        message = f"run {run_id!r} has no row, which names its source: audit the run"
        raise ConfigError(message)
    ref = row.workflow_source_ref
    blob = None if ref is None else stores.transcripts.get(ref)
    if ref is None or blob is None:
        what = "has no stored source" if ref is None else f"has lost its source, the blob {ref!r}"
        message = f"run {run_id!r} {what}: nothing to show"
        raise ConfigError(message)
    return row, ref, blob.decode("utf-8", "replace")


def _present(row: RunMeta, apps: tuple[str, ...]) -> Workflow:
    from rulvar.cli.app import load_workflows  # noqa: PLC0415 - the engine, only for --diff

    settings = read_settings("app", apps)
    workflows = load_workflows(settings)
    for workflow in workflows:
        if workflow.name == row.workflow_name:
            return workflow
    names = ", ".join(workflow.name for workflow in workflows)
    named = " and ".join(repr(each.value) for each in settings)
    message = (
        f"run {row.run_id!r} is of workflow {row.workflow_name!r}, and app {named} has "
        f"{names}: name the app that contains it"
    )
    raise ConfigError(message)


def _diff(row: RunMeta, kept: str, present: Workflow) -> list[str]:
    lines = difflib.unified_diff(
        kept.splitlines(),
        present.source.splitlines(),
        fromfile=f"{present.name} when run {row.run_id} started",
        tofile=f"{present.name} now",
        lineterm="",
    )
    return [f"{line}\n" for line in lines]


def _shown(text: str) -> str:
    """Return text of a store for a terminal: lines and tabs stay, what is not seen does not."""
    return plain_lines(text)
