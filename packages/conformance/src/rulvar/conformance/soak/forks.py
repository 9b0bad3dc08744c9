"""A process that forks while its store is open, and what its child may do then.

The child makes every call with its parent's stores and its parent's lease: each must be refused
as `StoreForkedError`. Then it opens the place anew. A store may refuse that; where it does not,
the child works on a run under an owner string that nobody else has, and is held to what any
process is. It reports as a process with a number that is not its parent's, so the referee
judges both alike: what the parent does meanwhile must stay whole as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.harness.forked_child import ForkedChild
from rulvar.conformance.soak.client import Blow, Desk
from rulvar.conformance.soak.history import FORKED, Recorder, now
from rulvar.core.errors import StoreForkedError

if TYPE_CHECKING:
    from rulvar.conformance.soak.worker_config import Post
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["CHILDREN", "Forks"]

CHILDREN = 1_000
"""What is added to the number of a process for its forked children."""

_A_LIFE = 1_000
_DONE, _REFUSED = "done", "refused"


class Forks:
    """The forks of one life of a process."""

    def __init__(self, stores: Stores, post: Post) -> None:
        self._stores = stores
        self._post = post
        self._count = 0

    def fork(self, lease: Lease) -> tuple[int, int]:
        """Fork, let the child do all of it, and return from when to when.

        Raises ``RuntimeError`` for a child that ends in any other way than it should.
        """
        began = now()
        self._count += 1
        child = _Child(self._stores, self._post, self._count, lease)
        with ForkedChild(child.perform) as forked:
            for order in ("call", "open", "work", "close"):
                said = forked.ask(order)
                if said == _REFUSED:
                    break
                if said != _DONE:
                    message = f"a forked child was to {order}: {said}"
                    raise RuntimeError(message)
        return began, now()


class _Child:
    def __init__(self, stores: Stores, post: Post, count: int, lease: Lease) -> None:
        self._inherited = stores
        self._post = post
        self._count = count
        self._lease = lease
        self._recorder: Recorder | None = None
        self._opened: Stores | None = None

    def perform(self, order: str) -> str:
        """Do what the parent asks for: in the child."""
        post = self._post
        if self._recorder is None:
            life = post.life * _A_LIFE + self._count
            self._recorder = Recorder(Path(post.folder), CHILDREN + post.process, life)
        if order == "call":
            desk = Desk(self._inherited, self._recorder, blobs=post.ground.blobs)
            # Far above the tail, so that only the fork can be why it does not land.
            blow = Blow(self._lease.run_id, self._lease, FORKED, 1, 1 << 40, "turn", 10)
            for op in post.ground.surfaces:
                desk.strike(op, blow)
        elif order == "open":
            try:
                self._opened = post.opener.open()
            except StoreForkedError:
                return _REFUSED
        elif self._opened is not None and order == "work":
            self._work(Desk(self._opened, self._recorder, blobs=post.ground.blobs))
        elif self._opened is not None:
            self._opened.close()
        return _DONE

    def _work(self, desk: Desk) -> None:
        post = self._post
        run_id = f"{self._lease.run_id}-fork-{post.process}-{post.life}-{self._count}"
        lease = desk.acquire(run_id, f"forked-{post.process}").granted
        for count in range(3 if lease is not None else 0):
            assert lease is not None
            blow = Blow(run_id, lease, "", count, count, "turn", 10)
            for op in ("append", "put_meta", "put_blob"):
                if op in post.ground.surfaces:
                    desk.strike(op, blow)
