"""How a segment ends when the present code cannot replay its journal.

Nothing is settled: the run keeps its status, and its row says why it is blocked, since when,
and for which codes. A worker with one of these codes passes it over; one with another code,
or a rollback, continues it. It holds no lease, and it is no death.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.records import Blocked

if TYPE_CHECKING:
    from rulvar.core.errors import RulvarError
    from rulvar.core.records import RunMeta

__all__ = ["blocked_by"]

_MOST_CODES = 16
_LONGEST_REASON = 2_000


def blocked_by(meta: RunMeta | None, error: RulvarError, code: str, now: str) -> Blocked:
    """Return what the row says: the present reason, and every code that has failed."""
    before = None if meta is None else meta.blocked
    known = () if before is None else tuple(each for each in before.codes if each != code)
    reason = str(error)
    if len(reason) > _LONGEST_REASON:
        reason = reason[: _LONGEST_REASON - 3] + "..."
    return Blocked(
        reason=reason.encode("utf-8", "backslashreplace").decode(),
        since=now if before is None else before.since,
        codes=(*known, code)[-_MOST_CODES:],
    )
