"""What a store holds, as the referee compares it: the attempt that bytes bear, and their digest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rulvar.conformance.harness.state import read_run
from rulvar.conformance.soak.history import content_of
from rulvar.core.records import JournalRecord, JsonMembers, RunMeta
from rulvar.core.wire import encode_meta, format_time, json_text

if TYPE_CHECKING:
    from rulvar.conformance.soak.history import AttemptId, Stored
    from rulvar.core.stores import StorePair

__all__ = ["Look", "blob_of", "encoded", "look_at", "record_of", "row_of", "stored"]

_BORNE = re.compile(rb'"id":"([0-9.]+)"')
_WITHIN = 1_000
_STARTED_AT = 1_700_000_000_000


def stored(data: bytes) -> Stored:
    """Return which attempt the bytes bear ("" for none), and their digest."""
    found = _BORNE.search(data, 0, _WITHIN)
    return (found[1].decode() if found else "", content_of(data))


def record_of(attempt: AttemptId, seq: int, epoch: int, count: int) -> JournalRecord:
    """Return a record that bears its attempt, its epoch and the count within its tenure."""
    text = f'{{"seq":{seq},"id":"{attempt}","epoch":{epoch},"count":{count}}}'
    return JournalRecord(seq=seq, payload=text.encode())


def row_of(run_id: str, attempt: AttemptId, epoch: int, count: int) -> RunMeta:
    """Return a row that bears its attempt in a field and in a member that nobody knows."""
    return RunMeta(
        run_id=run_id,
        status="running",
        updated_at=format_time(_STARTED_AT + count),
        name=f"{attempt}",
        tags=("soak", f"epoch-{epoch}"),
        segments=epoch,
        extra=JsonMembers({"id": json_text(str(attempt)), "count": str(count)}),
    )


def blob_of(attempt: AttemptId, epoch: int, count: int, size: int) -> bytes:
    """Return a blob of at least ``size`` bytes that bears its attempt."""
    head = f'{{"id":"{attempt}","epoch":{epoch},"count":{count}}}\n'.encode()
    return head + bytes(max(0, size - len(head)))


class Look:
    """What one run holds: what `Recorder.seen` takes, and the journal's tail (-1: empty)."""

    def __init__(
        self, journal: tuple[Stored, ...], row: Stored | None, blobs: dict[str, Stored], tail: int
    ) -> None:
        self.journal = journal
        self.row = row
        self.blobs = blobs
        self.tail = tail


def look_at(stores: StorePair, run_id: str, *, blobs: bool) -> Look:
    """Read a whole run."""
    state = read_run(stores, run_id, blobs=blobs)
    return Look(
        tuple(stored(payload) for _, payload in state.journal),
        None if state.row is None else stored(state.row.encode()),
        {
            ref.removeprefix(f"{run_id}/"): stored(data)
            for ref, data in state.blobs
            if data is not None
        },
        state.journal[-1][0] if state.journal else -1,
    )


def encoded(row: RunMeta) -> bytes:
    """Return the bytes by which a row is compared."""
    return encode_meta(row).encode()
