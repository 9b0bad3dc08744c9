"""What crosses the SPI: frozen values, no behaviour (contract.md#records).

Every field is checked at the front door (`rulvar.core.checks`) when a value reaches a
store, not when it is built: a lease may be forged, and a store must refuse it typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "RUN_STATUSES",
    "TERMINAL_STATUSES",
    "BlobStat",
    "Blocked",
    "JournalRecord",
    "JsonMembers",
    "Lease",
    "LeaseInfo",
    "RunFilter",
    "RunMeta",
    "RunStatus",
]

RunStatus = Literal["running", "suspended", "ok", "error", "cancelled", "exhausted"]
RUN_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
TERMINAL_STATUSES: frozenset[str] = frozenset({"ok", "error", "cancelled", "exhausted"})


class JsonMembers(Mapping[str, str]):
    """Members of a JSON object by name, each as its own JSON text, in their order.

    Immutable, hashable and picklable, so that a frozen record may hold it.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | tuple[tuple[str, str], ...] = ()) -> None:
        self._items: tuple[tuple[str, str], ...] = tuple(dict(items).items())

    def __getitem__(self, name: str) -> str:
        for known, text in self._items:
            if known == name:
                return text
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items))

    def __repr__(self) -> str:
        return f"JsonMembers({dict(self._items)!r})"


_NO_MEMBERS = JsonMembers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Ownership of a run: a value that may travel; a store judges it by its own rows.

    ``epoch`` is the fencing token, strictly growing per run for ever.
    """

    run_id: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """What a store knows of a run's present lease row.

    ``expires_at`` is Unix milliseconds; ``live`` is judged by the store's own clock.
    """

    run_id: str
    owner: str
    epoch: int
    expires_at: int
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord:
    """One record of a journal: opaque bytes whose JSON member ``seq`` equals `seq` (A4)."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobStat:
    """The size of a blob in bytes and when it was stored (Unix milliseconds, if known)."""

    ref: str
    size_bytes: int
    stored_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a run waits for another code: its journal cannot be replayed by the codes named.

    ``since`` is ISO 8601 UTC with milliseconds; ``codes`` are the last 16 that failed, oldest
    first. A worker whose code is among them passes the run over.
    """

    reason: str
    since: str
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta:
    """The catalogue row of a run: a projection of its journal, rebuildable from it.

    ``updated_at`` and ``wake_at`` are ISO 8601 UTC with milliseconds. ``segments`` counts
    the segments started. ``genesis`` is minted at the fresh start and tells a recreated run
    from the old one of the same id. ``wake_at`` is when a suspended run wants to be looked
    at again. ``workflow_version`` is the version of the workflow that began it;
    ``recoveries`` counts the segments in a row that ended neither settled nor stopped in
    order; ``blocked`` says that the present code cannot replay it; ``stopped`` is the number
    of the last segment that let the run go in an orderly way. ``extra`` keeps every member
    that this version does not know, name to JSON text, order and spelling kept.
    """

    run_id: str
    status: str
    updated_at: str
    name: str | None = None
    tags: tuple[str, ...] = ()
    workflow_name: str | None = None
    workflow_hash: str | None = None
    workflow_source_ref: str | None = None
    segments: int | None = None
    genesis: str | None = None
    args_provided: bool | None = None
    args_hash: str | None = None
    hash_version_low: int | None = None
    hash_version_high: int | None = None
    wake_at: str | None = None
    parent_run_id: str | None = None
    workflow_version: str | None = None
    recoveries: int | None = None
    blocked: Blocked | None = None
    stopped: int | None = None
    extra: JsonMembers = field(default=_NO_MEMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a listing wants; every condition that is given must hold.

    ``statuses=()`` matches nothing, None matches all; all ``tags`` must be there; ``limit``
    and ``after_run_id`` make keyset pages in the order of the run id's UTF-8 bytes.
    """

    statuses: tuple[str, ...] | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    limit: int | None = None
    after_run_id: str | None = None
