"""While its parent is unfinished, a child is executed by its parent's segment alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.journal import last_settle, read_journal, run_start, works_after
from rulvar.core.records import TERMINAL_STATUSES

if TYPE_CHECKING:
    from rulvar.core.engine.io.reads import Reads
    from rulvar.core.journal import Start

__all__ = ["check_no_unfinished_parent", "unfinished_ancestor"]

_DEEPEST = 64


def check_no_unfinished_parent(reads: Reads, run_id: str, start: Start) -> None:
    """Refuse a child whose parent has not ended. Raises `ConfigError`, which names the eldest."""
    ancestor = unfinished_ancestor(reads, start)
    if ancestor is None:
        return
    message = (
        f"run {run_id!r} is a child and is executed in the segment of its parent: resume "
        f"{ancestor!r}, its eldest ancestor that has not ended, or cancel it, and leave the "
        "child to it"
    )
    raise ConfigError(message)


def unfinished_ancestor(reads: Reads, start: Start) -> str | None:
    """Return the eldest of the ancestors that have not ended, the parent first; None for none.

    An ancestor that was deleted, or whose id another run has by now, is not counted: its
    children are orphans. Of one whose journal is damaged, the row tells.
    """
    eldest: str | None = None
    for _ in range(_DEEPEST):
        parent_id = start.parent_run_id
        if parent_id is None:
            break
        try:
            entries = read_journal(parent_id, reads.load(parent_id))
        except StoreCorruptError:
            row = reads.meta(parent_id)
            ended = row is None or row.status in TERMINAL_STATUSES
            return eldest if ended else parent_id
        parent = run_start(entries)
        if parent is None or parent.genesis != start.parent_genesis:
            break
        last = last_settle(entries)
        over = last is not None and last.status in TERMINAL_STATUSES
        if last is not None and over and not works_after(entries, last.seq):
            break
        eldest, start = parent_id, parent
    return eldest
