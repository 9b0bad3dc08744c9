"""Journals and rows in few words, and stores prepared with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.testing import ManualClock, reference_stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.stores import Stores


T0 = "2026-01-02T03:04:05.000Z"
T1 = "2026-01-02T03:04:06.000Z"
T2 = "2026-01-02T03:04:07.000Z"


def step(seq: int, *, ref: int | None = None, **more: object) -> dict[str, object]:
    status = "running" if ref is None else "ok"
    facts: dict[str, object] = {"seq": seq, "kind": "step", "status": status, "key": f"s{seq}"}
    return facts | ({} if ref is None else {"ref": ref, "endedAt": T1}) | more


def start(seq: int = 0, genesis: str = "g") -> dict[str, object]:
    value = {"decisionType": "run_start", "workflow": "w", "genesis": genesis}
    return {"seq": seq, "kind": "decision", "status": "ok", "value": value, "startedAt": T0}


def settle(seq: int, status: str, *, segment: int = 1, **more: object) -> dict[str, object]:
    value = {"decisionType": "run_settle", "runStatus": status, "segment": segment}
    return {"seq": seq, "kind": "decision", "status": "ok", "value": value, "endedAt": T2} | more


def external(seq: int, **more: object) -> dict[str, object]:
    facts = {"seq": seq, "kind": "external", "status": "suspended", "key": f"e{seq}"}
    return facts | more


def abandon(seq: int, ref: int) -> dict[str, object]:
    return {"seq": seq, "kind": "abandon", "status": "ok", "ref": ref}


def record(entry: dict[str, object], version: int = 102) -> JournalRecord:
    payload = {"hashVersion": version, "scope": "", "ordinal": 0, **entry}
    return JournalRecord(seq=cast("int", entry["seq"]), payload=json.dumps(payload).encode())


def row(status: str, run_id: str = "r", **more: object) -> RunMeta:
    facts: dict[str, object] = {"segments": 1, "genesis": "g", "updated_at": T0} | more
    return RunMeta(run_id=run_id, status=status, **facts)  # type: ignore[arg-type] # known fields


def prepared(
    entries: Sequence[dict[str, object]], meta: RunMeta | None, *, version: int = 102
) -> Stores:
    stores = reference_stores(clock=ManualClock())
    for entry in entries:
        stores.journal.append("r", record(entry, version))
    if meta is not None:
        stores.journal.put_meta(meta)
    return stores


WORKED = [start(), step(1), step(2, ref=1)]
WAITING = [start(), external(1)]


def scattered() -> Stores:
    stores = reference_stores()
    stores.journal.append("a-journal", record(start()))
    stores.journal.put_meta(row("running", "b-row"))
    stores.journal.acquire("c-lease", "o")  # type: ignore[attr-defined]
    stores.transcripts.put("d-blob/x", b"left")
    return stores
