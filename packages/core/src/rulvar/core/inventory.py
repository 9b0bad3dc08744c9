"""Every id of which a store has any trace, also those that no call would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.checks import check_run_id
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.protocols import RunInventory

__all__ = ["every_run_id", "is_run_id"]

_PAGE = 500


def every_run_id(journal: RunInventory) -> Iterator[str]:
    """Yield every id in order. One that no call would take cannot be where a page begins."""
    after: str | None = None
    told: set[str] = set()  # the odd ones, which the next page may begin with again
    limit = _PAGE
    while True:
        page = journal.list_run_ids(after, limit)
        yield from (run_id for run_id in page if run_id not in told)
        if len(page) < limit:
            return
        valid = [run_id for run_id in page if is_run_id(run_id)]
        told = set(page).difference(valid)
        after = valid[-1] if valid else after
        limit = _PAGE if valid else limit * 2


def is_run_id(run_id: str) -> bool:
    """Whether any call would take it: a damaged one is named by the inventory alone."""
    try:
        check_run_id(run_id)
    except ConfigError:
        return False
    return True
