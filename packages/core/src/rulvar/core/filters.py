"""What a `RunFilter` means, said once for every store that filters in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rulvar.core.records import RunFilter, RunMeta

__all__ = ["matches"]


def matches(meta: RunMeta, run_filter: RunFilter, /) -> bool:
    """Whether a row is one that the filter wants, its ``limit`` aside (promise M2)."""
    return (
        (run_filter.statuses is None or meta.status in run_filter.statuses)
        and (run_filter.name is None or meta.name == run_filter.name)
        and set(run_filter.tags) <= set(meta.tags)
        # Code point order is UTF-8 byte order, for every string without lone surrogates.
        and (run_filter.after_run_id is None or meta.run_id > run_filter.after_run_id)
    )
