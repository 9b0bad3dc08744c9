"""A step that forks its process while the store is open, and what the child may do then.

The child's calls on its parent's stores are refused as `StoreForkedError`. It may be refused the
place as well; where it is not, it works on a run that it deletes again, so that what is left is
the parent's alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rulvar.conformance.harness.actors import record
from rulvar.conformance.harness.forked_child import ForkedChild
from rulvar.core.errors import StoreForkedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.actors import FullJournal
    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.core.stores import Stores

__all__ = ["WHOLE", "fork_and_try"]

WHOLE = "refused, or right"
"""What `fork_and_try` returns where the store is sound."""

_DONE, _REFUSED = "done", "refused"


def fork_and_try(stores: Stores, opener: Opener, run_id: str) -> str:
    """Fork, and let the child try; return `WHOLE`, or what went wrong.

    ``run_id`` names a run that nobody else has.
    """
    with ForkedChild(_Child(stores, opener, run_id).perform) as child:
        for order in ("call", "open", "work", "close"):
            said = child.ask(order)
            if said == _REFUSED:
                break
            if said != _DONE:
                return f"a forked child was to {order}: {said}"
    return WHOLE


class _Child:
    def __init__(self, stores: Stores, opener: Opener, run_id: str) -> None:
        self._inherited = stores
        self._opener = opener
        self._run_id = run_id
        self._opened: Stores | None = None

    def perform(self, order: str) -> str:
        if order == "call":
            return self._call()
        if order == "open":
            try:
                self._opened = self._opener.open()
            except StoreForkedError:
                return _REFUSED
            return _DONE
        assert self._opened is not None
        if order == "close":
            self._opened.close()
            return _DONE
        return self._work(cast("FullJournal", self._opened.journal))

    def _call(self) -> str:
        journal, transcripts = self._inherited.journal, self._inherited.transcripts
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: journal.append(self._run_id, record(0, "forked")),
            "put": lambda: transcripts.put(f"{self._run_id}/blob", b"forked"),
            "load": lambda: journal.load(self._run_id),
        }
        for name, call in calls.items():
            try:
                call()
            except StoreForkedError:
                continue
            return f"{name} was not refused"
        return _DONE

    def _work(self, journal: FullJournal) -> str:
        for seq in range(3):
            journal.append(self._run_id, record(seq, "forked"))
        there = [each.seq for each in journal.load(self._run_id)]
        journal.delete(self._run_id)
        return _DONE if there == [0, 1, 2] else f"of three records there are {there}"
