"""`rulvar runs repair-file`: contributed to the command line, which alone imports this module.

It does so for every ``rulvar --help``, so the store itself is imported only to work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rulvar.core.errors import ConfigError
from rulvar.core.formatting import counted, plain, plain_json
from rulvar.core.urls import StoreURL
from rulvar.core.wire import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.stores.file.repair import Damage

__all__ = ["repair_file"]


@click.command("repair-file")
@click.option(
    "--store",
    "store",
    metavar="URL",
    envvar="RULVAR_STORE",
    show_envvar=True,
    required=True,
    help="The store, as in file:///runs.",
)
@click.option(
    "--run", "run_ids", metavar="RUN_ID", multiple=True, help="Only this run; several times too."
)
@click.option("--apply", "apply", is_flag=True, help="Repair; without it nothing is changed.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on standard output, and nothing else there."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error too.")
@click.pass_context
def repair_file(
    context: click.Context,
    *,
    store: str,
    run_ids: tuple[str, ...],
    apply: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Find damaged files of a file store, and repair them.

    Without --apply nothing is changed, and a live writer is not disturbed; the exit status is
    1 when there is damage. With it, each damaged file is first copied to backups/, what
    cannot be read is moved to quarantine/, and the rest is kept. A run whose journal
    lost records is not what it was: look at it before you resume it.

    \b
    Examples:
      rulvar runs repair-file --store file:///runs
      rulvar runs repair-file --store file:///runs --run order-17 --apply
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from rulvar.stores.file.repair import find_damage, repair_damage  # noqa: PLC0415

    # What the command line keeps of its own --json and --debug, where it is what called.
    shared: object = context.obj
    if debug and hasattr(shared, "debug"):
        shared.debug = True
    as_json = as_json or getattr(shared, "json", False) is True
    root = _root(store)
    found = repair_damage(root, run_ids) if apply else find_damage(root, run_ids)
    if as_json:
        document = {"applied": apply, "damage": [_document(each) for each in found]}
        click.echo(plain_json(json_text(document)))
    else:
        for line in _text(found, applied=apply):
            click.echo(plain(line))
    context.exit(1 if any(damage.backup is None for damage in found) else 0)


def _root(text: str) -> str:
    url = StoreURL.parse(text)
    path = url.local_path()
    if url.scheme != "file" or path is None:
        message = f"{url} is not a file store: name one, as in file:///runs"
        raise ConfigError(message)
    return str(path)


def _text(found: Sequence[Damage], *, applied: bool) -> list[str]:
    if not found:
        return ["no damage"]
    lines: list[str] = []
    for damage in found:
        lines.append(f"{damage.run_id!r}: its {damage.part} is damaged")
        lines += [
            f"  position {piece.position} (byte {piece.offset}): {piece.kind}, "
            f"{counted(len(piece.data), 'byte')}: {piece.why}"
            for piece in damage.pieces
        ]
        if damage.is_unreadable:
            lines.append("  it was not changed: check the disk, or restore a copy of the file")
        elif damage.part == "journal":
            lines.append(f"  records that can be kept: {damage.kept}")
        if damage.backup is not None:
            lines.append(f"  repaired; as it was: {damage.backup}")
            lines.append(f"  quarantined: {damage.quarantine}")
    if not applied:
        lines.append("nothing was changed: add --apply to repair")
    return lines


def _document(damage: Damage) -> dict[str, object]:
    return {
        "run_id": damage.run_id,
        "part": damage.part,
        "kept": damage.kept,
        "backup": damage.backup,
        "quarantine": damage.quarantine,
        "pieces": [
            {
                "position": piece.position,
                "offset": piece.offset,
                "kind": piece.kind,
                "why": piece.why,
                "bytes": len(piece.data),
            }
            for piece in damage.pieces
        ],
    }
