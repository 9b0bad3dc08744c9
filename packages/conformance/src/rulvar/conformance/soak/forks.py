"""A process that forks while its store is open, and what its child may do then.

The child makes every call with its parent's stores and its parent's lease: each must be refused
as `StoreForkedError`. Then it opens the place anew. A store may refuse that; where it does not,
the child works on a run under an owner string that nobody else has, and is held to what any
process is. It reports as a process with a number that is not its parent's, so the checker
judges both alike: what the parent does meanwhile must stay whole as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.harness.forked_child import ForkedChild
from rulvar.conformance.soak.client import MutationCall, RecordingClient
from rulvar.conformance.soak.history import FORKED, Recorder, now
from rulvar.core.errors import StoreForkedError

if TYPE_CHECKING:
    from rulvar.conformance.soak.orders import WorkerConfig
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["CHILDREN", "Forks"]

CHILDREN = 1_000
"""What is added to the number of a process for its forked children."""

_A_LIFE = 1_000
_DONE, _REFUSED = "done", "refused"


class Forks:
    """The forks of one life of a process."""

    def __init__(self, stores: Stores, config: WorkerConfig) -> None:
        self._stores = stores
        self._config = config
        self._count = 0

    def fork(self, lease: Lease) -> tuple[int, int]:
        """Fork, let the child do all of it, and return from when to when.

        Raises ``RuntimeError`` for a child that ends in any other way than it should.
        """
        began = now()
        self._count += 1
        child = _Child(self._stores, self._config, self._count, lease)
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
    def __init__(self, stores: Stores, config: WorkerConfig, count: int, lease: Lease) -> None:
        self._inherited = stores
        self._config = config
        self._count = count
        self._lease = lease
        self._recorder: Recorder | None = None
        self._opened: Stores | None = None

    def perform(self, order: str) -> str:
        """Do what the parent asks for: in the child."""
        config = self._config
        if self._recorder is None:
            life = config.life * _A_LIFE + self._count
            self._recorder = Recorder(Path(config.folder), CHILDREN + config.process, life)
        if order == "call":
            client = RecordingClient(self._inherited, self._recorder, blobs=config.matrix.blobs)
            # Far above the tail, so that only the fork can be why it does not land.
            mutation = MutationCall(self._lease.run_id, self._lease, FORKED, 1, 1 << 40, "turn", 10)
            for op in config.matrix.surfaces:
                client.attempt(op, mutation)
        elif order == "open":
            try:
                self._opened = config.opener.open()
            except StoreForkedError:
                return _REFUSED
        elif self._opened is not None and order == "work":
            self._work(RecordingClient(self._opened, self._recorder, blobs=config.matrix.blobs))
        elif self._opened is not None:
            self._opened.close()
        return _DONE

    def _work(self, client: RecordingClient) -> None:
        config = self._config
        run_id = f"{self._lease.run_id}-fork-{config.process}-{config.life}-{self._count}"
        lease = client.acquire(run_id, f"forked-{config.process}").granted
        for count in range(3 if lease is not None else 0):
            assert lease is not None
            mutation = MutationCall(run_id, lease, "", count, count, "turn", 10)
            for op in ("append", "put_meta", "put_blob"):
                if op in config.matrix.surfaces:
                    client.attempt(op, mutation)
