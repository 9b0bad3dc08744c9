"""What a segment tells an observer, as it happens."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Event", "notify"]

_log = logging.getLogger("rulvar.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a segment.

    ``kind`` is one of ``lease.granted``, ``lease.reacquired``, ``lease.lost``,
    ``run.started``, ``run.resumed``, ``step.started``, ``step.finished``, ``step.replayed``
    and ``run.settled``; ``name`` is the step's, or the status of a settle.
    """

    kind: str
    run_id: str
    segment: int = 0
    epoch: int | None = None
    name: str = ""
    detail: str = ""


def notify(observer: Callable[[Event], None] | None, event: Event) -> None:
    """Tell the observer; one that raises is logged and never hurts the run."""
    if observer is None:
        return
    try:
        observer(event)
    except Exception:  # noqa: BLE001 - logged: it never hurts a run
        _log.exception("an observer raised on %s of run %r", event.kind, event.run_id)
