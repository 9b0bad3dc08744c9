"""What a process notes outside of the store while it works, and the call at which it dies.

Every line is one ``write`` to a file that was opened for appending, so what was noted before a
SIGKILL is there after it. A store call that may change something is noted twice: before it is
made and when it has been answered. A call that was made and never answered is *in doubt*, and
may have landed. What a step, a turn or the body of a worktree did is noted as it begins.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from rulvar.core.errors import StoreError
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.testing import WatchedStores
from rulvar.core.wire import encode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall

__all__ = ["CallLog", "KillPoint", "Side", "digest"]

Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Where a process dies: at its ``at``-th store call, counted from 1."""

    at: int
    side: Side


def digest(data: bytes) -> str:
    """Return what a value is known by in the notes."""
    return hashlib.sha256(data).hexdigest()


class CallLog:
    """One process's notes; over its stores, the one who kills it."""

    def __init__(self, path: Path, kill: KillPoint | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill = kill
        self._counted = threading.Condition()
        self._done: dict[str, int] = {}

    def watch(self, stores: StorePair, *, hide: Collection[str] = ()) -> WatchedStores:
        """Return the pair with every call noted; ``hide`` names capabilities to leave out."""
        return WatchedStores(stores, around=self._around, without=hide)

    def ran(self, mark: str) -> None:
        """Note that something is executed that costs, before it has any effect."""
        self._note({"what": "ran", "mark": mark})

    def wait_for(self, seconds: float, **times: int) -> bool:
        """Wait until calls of one of these methods have been answered that often."""

        def answered() -> bool:
            return any(self._done.get(method, 0) >= number for method, number in times.items())

        with self._counted:
            return self._counted.wait_for(answered, seconds)

    def _note(self, facts: dict[str, object]) -> None:
        os.write(self._file, json.dumps(facts).encode("ascii") + b"\n")

    def _around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        name = f"{call.part}.{call.method}"
        number: dict[str, object] = {"n": call.number, "call": name}
        kill = self._kill if self._kill is not None and self._kill.at == call.number else None
        if kill is not None and kill.side == "before":
            self._die(number | {"changes": call.changes})
        if not call.changes:
            self._note({"what": "read"} | number)
        else:
            self._note({"what": "begun"} | number | _facts(call))
        try:
            value = perform()
        except StoreError as error:
            if call.changes:
                self._note({"what": "raised", "error": type(error).__name__} | number)
            raise
        if call.changes:
            epoch = {"epoch": value.epoch} if isinstance(value, Lease) else {}
            self._note({"what": "done"} | number | epoch)
        if kill is not None:
            self._die(number | {"changes": call.changes})
        with self._counted:
            self._done[call.method] = self._done.get(call.method, 0) + 1
            self._counted.notify_all()
        return value

    def _die(self, facts: dict[str, object]) -> None:
        self._note({"what": "dies"} | facts)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)  # the signal is on its way


def _facts(call: StoreCall) -> dict[str, object]:
    """Return what a call would change, as far as a judge needs it: less than a page."""
    facts: dict[str, object] = {"run": call.run_id or ""}  # a renewal of many names no one run
    [first, *rest] = call.arguments
    if isinstance(first, RunMeta):
        facts |= {"value": digest(encode_meta(first).encode()), "status": first.status}
    elif call.part == "transcripts":
        facts["ref"] = first
        if rest:
            blob = cast("bytes", rest[0])
            facts |= {"value": digest(blob), "turns": _turns(blob)}
    elif rest and isinstance(rest[0], JournalRecord):
        record = rest[0]
        facts |= {"seq": record.seq, "value": digest(record.payload)} | _entry(record.payload)
    return facts


def _entry(payload: bytes) -> dict[str, object]:
    entry = json.loads(payload)
    facts = {name: entry.get(name) for name in ("kind", "key", "status", "ref")}
    decision = entry.get("value") if entry.get("kind") == "decision" else None
    if isinstance(decision, dict):
        facts["decision"] = decision.get("decisionType")
    return facts


def _turns(blob: bytes) -> object:
    """Return how many turns a checkpoint or a summary stands for; None for another blob."""
    try:
        facts = json.loads(blob)
    except ValueError:
        return None
    return facts.get("turns") if isinstance(facts, dict) else None
