"""What a store finds in the files that a power cut left: opened, read, and gone on with."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import apsw
from power_history import RunState, shown

from rulvar.core.errors import RulvarError
from rulvar.core.records import JournalRecord
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from power_images import Image
    from power_judge import Kind

    from rulvar.core.records import RunMeta

__all__ = ["DATABASE", "LATER_MS", "Observation", "meta_text", "observe"]

DATABASE = "runs.db"
_MOST = 100
LATER_MS = 4_000_000_000_000
"""A time by which every lease of a workload has run out."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one image holds, or the ``problem`` that kept the store from reading it."""

    problem: tuple[Kind, str] | None = None
    states: dict[str, RunState] = field(default_factory=dict)
    strangers: tuple[str, ...] = ()


def meta_text(meta: RunMeta) -> str:
    """Return a row as text."""
    return f"{meta.status} {meta.name}"


def observe(image: Image, folder: Path, run_ids: Sequence[str]) -> Observation:
    """Open the image in a folder of its own, and read everything of these runs.

    After reading, each run is taken (the epoch tells its mark) and the first is appended to;
    then the store is closed and opened again, and must hold the same and the new record.
    """
    folder.mkdir()
    try:
        for name, content in image.items():
            (folder / name).write_bytes(content)
        return _observe(folder / DATABASE, run_ids)
    finally:
        shutil.rmtree(folder)


def _observe(path: Path, run_ids: Sequence[str]) -> Observation:
    try:
        store = SqliteStore(path, clock=ManualClock(LATER_MS))
    except (RulvarError, apsw.Error) as error:
        return Observation(("does not open", f"{type(error).__name__}: {error}"))
    try:
        with store:
            said = _integrity(path)
            if said != "ok":
                return Observation(("damaged", f"integrity check: {said}"))
            states = {run_id: _read(store, run_id) for run_id in run_ids}
            strangers = sorted(set(store.list_run_ids(None, _MOST)) - set(run_ids))
            states = {
                run_id: state._replace(mark=store.acquire(run_id, "later").epoch - 1)
                for run_id, state in states.items()
            }
            gone_on = _go_on(store, run_ids[0])
    except (RulvarError, apsw.Error) as error:
        return Observation(("damaged", f"{type(error).__name__}: {error}"))
    problem = _again(path, run_ids, states, gone_on)
    return Observation(problem, states, tuple(strangers))


def _integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    try:
        rows = connection.execute("PRAGMA integrity_check").fetchall()
        return "; ".join(str(text) for (text,) in rows)
    finally:
        connection.close()


def _read(store: SqliteStore, run_id: str) -> RunState:
    """Read all but the mark."""
    twin = store.transcripts()
    meta = store.get_meta(run_id)
    lease = store.get_lease(run_id)
    blobs = {ref: twin.get(ref) for ref in twin.list_refs(run_id)}
    return RunState(
        journal=tuple(shown(record.payload) for record in store.load(run_id)),
        meta=None if meta is None else meta_text(meta),
        lease=None if lease is None else (lease.owner, lease.epoch, lease.expires_at),
        blobs=tuple((ref, shown(blob or b"")) for ref, blob in sorted(blobs.items())),
    )


def _go_on(store: SqliteStore, run_id: str) -> str:
    tail = max((record.seq for record in store.load(run_id)), default=-1)
    payload = f'{{"seq":{tail + 1},"by":"who came after"}}'.encode()
    store.append(run_id, JournalRecord(seq=tail + 1, payload=payload))
    return shown(payload)


def _again(
    path: Path, run_ids: Sequence[str], states: dict[str, RunState], gone_on: str
) -> tuple[Kind, str] | None:
    """Open once more: what was found the first time, and what was written then, is there."""
    try:
        with SqliteStore(path, clock=ManualClock(LATER_MS)) as store:
            for number, run_id in enumerate(run_ids):
                was = states[run_id]
                journal = (*was.journal, gone_on) if number == 0 else was.journal
                found = _read(store, run_id)
                wanted = was._replace(journal=journal, lease=found.lease, mark=0)
                if found != wanted or found.lease is None or found.lease[1] != was.mark + 1:
                    text = f"{run_id} is another after the next opening: {found} for {wanted}"
                    return ("no way on", text)
    except (RulvarError, apsw.Error) as error:
        return ("no way on", f"{type(error).__name__}: {error}")
    return None
