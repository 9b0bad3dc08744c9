"""Several callers of one store object in one transaction."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import apsw

from rulvar.core.errors import RulvarError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.stores.sqlite.store import SqliteStore


def together(store: SqliteStore, calls: Sequence[Callable[[], object]]) -> list[object]:
    """Make the calls in one transaction; return their results, or the errors they raised.

    Another connection holds the lock until every call is queued, so that the first leader
    finds them all.
    """
    blocker = apsw.Connection(store.path)
    blocker.execute("BEGIN IMMEDIATE")
    answers: list[object] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            answers[place] = calls[place]()
        except RulvarError as error:
            answers[place] = error

    crowd = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    waiting = store._database._committer._queue
    for number, thread in enumerate(crowd, start=1):
        thread.start()
        while len(waiting) < number and thread.is_alive():
            pass
    blocker.execute("ROLLBACK")
    blocker.close()
    for thread in crowd:
        thread.join()
    return answers
