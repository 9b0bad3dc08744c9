"""A pair of stores that tells a test about every call, and lets it come between.

A test names the call it means ("the third append", "every renewal") and says what happens
there: an error instead of it, an error after it has landed, a successor just before it. So a
fault can be injected at call 1, then 2, then 3, until the work completes untouched.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from rulvar.core.records import JournalRecord, Lease, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rulvar.core.protocols import JournalStore, TranscriptStore
    from rulvar.core.stores import StorePair

__all__ = ["StoreCall", "WatchedStores"]

_CHANGES = frozenset(
    {"append", "put_meta", "delete", "delete_whole_run", "put"}
    | {"acquire", "renew", "renew_all", "release", "revive", "seize", "raise_epoch"}
)
_READS = frozenset(
    {"load", "load_after", "list_runs", "get_meta", "list_run_ids", "get", "list_refs"}
    | {"blob_info", "get_lease", "list_leases"}
)
_ATTRIBUTES = frozenset({"fenced_writes", "lease_ttl_ms", "busy_timeout_ms", "fencing_domain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCall:
    """One call of a store: its place in the order of calls, from 1, and what it was given.

    ``lease`` is the one that rides a mutation, or the one that is renewed, released or
    revived; ``keywords`` are the names of the keyword arguments that were passed.
    """

    number: int
    part: Literal["journal", "transcripts"]
    method: str
    arguments: tuple[object, ...]
    lease: Lease | None
    keywords: frozenset[str]

    @property
    def changes(self) -> bool:
        """Whether the call may change anything that is stored."""
        return self.method in _CHANGES

    @property
    def run_id(self) -> str | None:
        """The run that the call is about, where it names one."""
        first = self.arguments[0] if self.arguments else None
        if isinstance(first, RunMeta | Lease):
            return first.run_id
        if not isinstance(first, str) or self.method.startswith("list_runs"):
            return None
        return first.split("/", 1)[0]

    @property
    def payload(self) -> bytes:
        """The bytes of the record or the blob that the call carries, or none."""
        for argument in self.arguments:
            if isinstance(argument, JournalRecord):
                return argument.payload
            if isinstance(argument, bytes):
                return argument
        return b""

    def __str__(self) -> str:
        return f"{self.number}: {self.part}.{self.method}"


def _untouched(_call: StoreCall, perform: Callable[[], object]) -> object:
    return perform()


class WatchedStores:
    """A pair over another pair; ``calls`` lists what was asked of it, in order.

    ``around`` is given each call and a function that performs it; what it returns or raises
    is the answer. It may be exchanged at any time, and runs in the caller's thread.
    ``without`` names capabilities and attributes to hide: what is left is what the inner
    stores have, by name (contract.md#wrappers).
    """

    def __init__(
        self,
        stores: StorePair,
        *,
        around: Callable[[StoreCall, Callable[[], object]], object] = _untouched,
        without: Collection[str] = (),
    ) -> None:
        self.around = around
        self.calls: list[StoreCall] = []
        self._lock = threading.Lock()
        self._without = frozenset(without)
        self._journal = self._watch("journal", stores.journal)
        self._transcripts = self._watch("transcripts", stores.transcripts)

    @property
    def journal(self) -> JournalStore:
        """The journal store, watched."""
        return cast("JournalStore", self._journal)

    @property
    def transcripts(self) -> TranscriptStore:
        """The transcript store, watched."""
        return cast("TranscriptStore", self._transcripts)

    def changes(self) -> list[StoreCall]:
        """Return the calls so far that may have changed something."""
        with self._lock:
            return [call for call in self.calls if call.changes]

    def _watch(self, part: Literal["journal", "transcripts"], inner: object) -> object:
        watched = _Watched()
        for name in (_CHANGES | _READS) - self._without:
            method = getattr(inner, name, None)
            if callable(method):
                setattr(watched, name, partial(self._called, part, name, method))
        for name in _ATTRIBUTES - self._without:
            if hasattr(inner, name):
                setattr(watched, name, getattr(inner, name))
        return watched

    def _called(
        self,
        part: Literal["journal", "transcripts"],
        method: str,
        perform: Callable[..., object],
        /,
        *arguments: object,
        **keywords: object,
    ) -> object:
        lease = keywords.get("lease")
        if lease is None and arguments and isinstance(arguments[0], Lease):
            lease = arguments[0]
        with self._lock:
            call = StoreCall(
                number=len(self.calls) + 1,
                part=part,
                method=method,
                arguments=arguments,
                lease=lease if isinstance(lease, Lease) else None,
                keywords=frozenset(keywords),
            )
            self.calls.append(call)
        return self.around(call, partial(perform, *arguments, **keywords))


class _Watched:
    """One store of the pair: it has what its inner store has, and nothing else."""
