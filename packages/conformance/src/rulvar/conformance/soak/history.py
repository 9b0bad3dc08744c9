"""What a storm leaves behind: every attempt, every look at the store, every fault.

Each process appends to a report of its own, one line of JSON for each event, written whole
with one call to the operating system. So what a process had reported is there after it was
killed, and only its very last line may be missing. An attempt is two events: *invoked* before
the store is called, and *returned* after it. Invoked and never returned is *unknown*: the
process died in between, so the mutation may have landed or not.

Instants are monotonic nanoseconds, which the processes of one machine share.

    {"invoked":"2.1.57","at":913..,"op":"append","run":"r7","target":"","lease":["r7","w2",4],
     "content":"5f1c..","death":"stopped"}
    {"returned":"2.1.57","at":913..,"outcome":"refused","reason":"superseded"}
    {"seen":"r7","at":913..,"lease":["r7","w2",5],"journal":[["2.1.3","0be4.."]],"row":["2.1.4","77.."],
     "blobs":{"turn":["2.1.5","3a.."]}}
    {"fault":"stopped","process":2,"from":913..,"to":914..}
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from rulvar.core.mutations import Mutation
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "FORKED",
    "GRANTS",
    "Attempt",
    "AttemptId",
    "DamagedReportError",
    "Event",
    "EventLog",
    "Fault",
    "History",
    "Operation",
    "Outcome",
    "Recorder",
    "Returned",
    "Seen",
    "Stored",
    "content_of",
    "events_of",
    "now",
    "parse_event",
    "read_history",
    "report_name",
]

Operation = Mutation | Literal["seize_over"]
"""What can be attempted. Those of `GRANTS` grant a lease; all others are mutations under one.

``seize_over`` is a seizure that names the lease that it takes the run from. A call of
``renew_all`` is one attempt for each of its leases.
"""

GRANTS: frozenset[str] = frozenset({"acquire", "seize", "seize_over", "revive"})

FORKED = "forked"
"""The death of an attempt that a forked child made with the stores of its parent, and the
reason of one that was refused for that."""

Outcome = Literal["landed", "refused", "nothing", "unknown"]
"""``landed``    the store returned: it is there
``refused``   `LeaseHeldError` with a reason: nothing may be there, now or later
``nothing``   another error which says that nothing happened: busy, out of order, full, forked
``unknown``   the process died first, or the store itself said that it does not know
"""


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """Who attempted it: a process, which of its lives, and the number of the attempt in it."""

    process: int
    life: int
    number: int

    def __str__(self) -> str:
        return f"{self.process}.{self.life}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> AttemptId:
        """Read what ``str`` wrote. Raises ``ValueError``."""
        process, life, number = text.split(".")
        return cls(int(process), int(life), int(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call of one mutation, or of one grant, by one process.

    ``target`` is the blob's name for the two about blobs, and the owner who asks for acquire and
    the seizures. ``lease`` is what rode the call (None for acquire and seize), ``content`` the
    digest of the bytes that were offered, ``granted`` the epoch that a grant answered with.
    ``death`` says what had befallen the tenure by then, in the words of the storm: "" for one
    that believes itself alive. ``returned_at`` is None for one that never returned.
    """

    id: AttemptId
    op: Operation
    run_id: str
    invoked_at: int
    lease: Lease | None = None
    target: str = ""
    content: str = ""
    death: str = ""
    outcome: Outcome = "unknown"
    reason: str = ""
    granted: int | None = None
    returned_at: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the call was made under, 0 for one that needs none."""
        return 0 if self.lease is None else self.lease.epoch

    @property
    def grantee(self) -> str:
        """The owner string that a grant is for: a revived lease keeps its own."""
        return self.lease.owner if self.op == "revive" and self.lease is not None else self.target

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in the serial history of its run: epoch, life, number."""
        return (self.epoch, self.id.life, self.id.number)

    def answered(self, answer: Returned) -> Attempt:
        """Return the attempt with its answer."""
        return replace(
            self,
            outcome=answer.outcome,
            reason=answer.reason,
            granted=answer.granted,
            returned_at=answer.at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The answer to an attempt."""

    id: AttemptId
    at: int
    outcome: Outcome
    reason: str = ""
    granted: int | None = None


Stored: TypeAlias = tuple[str, str]
"""What was found stored: the attempt id that it bears ("" when it bears none) and the digest
of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A whole look at one run: by a holder that had just been granted it, or at the end.

    ``lease`` is the lease under which it was looked at, right after the grant and before any
    mutation under it; None for the last look, when every process had ended. ``blobs`` maps
    names to what is stored.
    """

    run_id: str
    at: int
    lease: Lease | None
    journal: tuple[Stored, ...]
    row: Stored | None
    blobs: Mapping[str, Stored]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to a process, and from when to when."""

    kind: str
    process: int
    began_at: int
    ended_at: int


Event: TypeAlias = "Attempt | Returned | Seen | Fault"
"""One line of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that the reports of one storm say."""

    attempts: Sequence[Attempt] = ()
    seen: Sequence[Seen] = ()
    faults: Sequence[Fault] = ()
    unfinished: Sequence[Path] = field(default=())
    """Reports whose last line was cut off by a death."""

    def until(self, instant: int) -> History:
        """Return what had happened by an instant, one before the reports were read.

        Whatever anybody had seen by then was invoked before it, and an invocation is reported
        before the store is called: so no cause is missing whose effect is there.
        """
        return History(
            attempts=[
                each if each.returned_at is None or each.returned_at <= instant else _open(each)
                for each in self.attempts
                if each.invoked_at <= instant
            ],
            seen=[each for each in self.seen if each.at <= instant],
            faults=[each for each in self.faults if each.ended_at <= instant],
            unfinished=self.unfinished,
        )


def _open(attempt: Attempt) -> Attempt:
    return replace(attempt, outcome="unknown", reason="", granted=None, returned_at=None)


def content_of(data: bytes) -> str:
    """Return the digest by which offered and stored bytes are compared."""
    return hashlib.sha256(data).hexdigest()[:16]


def now() -> int:
    """Return the instant by which reports of different processes are ordered."""
    return time.monotonic_ns()


class DamagedReportError(Exception):
    """A report says what no process can have done: the storm's own fault, not the store's."""


# --- writing --------------------------------------------------------------------------------


def _lease_out(lease: Lease | None) -> list[object] | None:
    return None if lease is None else [lease.run_id, lease.owner, lease.epoch]


class Recorder:
    """The report of one life of one process. One thread writes it.

    The file is new; raises ``FileExistsError`` when this life has one already.
    """

    def __init__(self, folder: Path, process: int, life: int) -> None:
        self.process = process
        self.life = life
        self._number = 0
        path = folder / report_name(process, life)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def _write(self, event: Mapping[str, object]) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, line) != len(line):
            message = "the report could not be written whole: is the disk full?"
            raise OSError(message)

    def next_id(self) -> AttemptId:
        """Return the id of the next attempt, which the bytes it offers must bear."""
        self._number += 1
        return AttemptId(self.process, self.life, self._number)

    def invoked(
        self,
        attempt_id: AttemptId,
        op: Operation,
        run_id: str,
        *,
        lease: Lease | None,
        target: str = "",
        content: str = "",
        death: str = "",
    ) -> None:
        """Report an attempt before the store is called."""
        self._write(
            {
                "invoked": str(attempt_id),
                "at": now(),
                "op": op,
                "run": run_id,
                "target": target,
                "lease": _lease_out(lease),
                "content": content,
                "death": death,
            }
        )

    def returned(
        self,
        attempt_id: AttemptId,
        outcome: Outcome,
        *,
        reason: str = "",
        granted: int | None = None,
    ) -> None:
        """Report what the store answered, at once."""
        event: dict[str, object] = {
            "returned": str(attempt_id),
            "at": now(),
            "outcome": outcome,
        }
        if reason:
            event["reason"] = reason
        if granted is not None:
            event["granted"] = granted
        self._write(event)

    def seen(
        self,
        run_id: str,
        *,
        lease: Lease | None,
        journal: Sequence[Stored],
        row: Stored | None,
        blobs: Mapping[str, Stored],
    ) -> None:
        """Report what one run holds."""
        self._write(
            {
                "seen": run_id,
                "at": now(),
                "lease": _lease_out(lease),
                "journal": [list(each) for each in journal],
                "row": None if row is None else list(row),
                "blobs": {name: list(each) for name, each in blobs.items()},
            }
        )

    def fault(self, kind: str, process: int, began_at: int, ended_at: int) -> None:
        """Report what was done to a process."""
        self._write({"fault": kind, "process": process, "from": began_at, "to": ended_at})

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def report_name(process: int, life: int) -> str:
    """Return the file name of one life of one process."""
    return f"report-{process:03}-{life:04}.jsonl"


# --- reading --------------------------------------------------------------------------------


def _lease_in(value: object) -> Lease | None:
    if value is None:
        return None
    run_id, owner, epoch = cast("tuple[str, str, int]", value)
    return Lease(run_id=run_id, owner=owner, epoch=epoch)


def _stored_in(value: object) -> Stored:
    borne, content = cast("tuple[str, str]", value)
    return (borne, content)


def parse_event(line: bytes) -> Event:
    """Read one line of a report; an attempt that was invoked has no outcome yet.

    Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is not an event.
    """
    event = cast("dict[str, Any]", json.loads(line))
    if "invoked" in event:
        return Attempt(
            id=AttemptId.parse(event["invoked"]),
            op=event["op"],
            run_id=event["run"],
            invoked_at=event["at"],
            lease=_lease_in(event["lease"]),
            target=event["target"],
            content=event["content"],
            death=event["death"],
        )
    if "returned" in event:
        return Returned(
            id=AttemptId.parse(event["returned"]),
            at=event["at"],
            outcome=event["outcome"],
            reason=event.get("reason", ""),
            granted=event.get("granted"),
        )
    if "seen" in event:
        row = event["row"]
        return Seen(
            run_id=event["seen"],
            at=event["at"],
            lease=_lease_in(event["lease"]),
            journal=tuple(map(_stored_in, event["journal"])),
            row=None if row is None else _stored_in(row),
            blobs={name: _stored_in(each) for name, each in event["blobs"].items()},
        )
    return Fault(
        kind=event["fault"],
        process=event["process"],
        began_at=event["from"],
        ended_at=event["to"],
    )


def events_of(path: Path) -> Iterator[Event]:
    """Return what one report says; a last line that was cut off is left out."""
    *lines, _ = path.read_bytes().split(b"\n")
    return map(parse_event, lines)


class EventLog:
    """The reports of a folder while they are written, each read on from where it was read last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> Iterator[Event]:
        """Return what has been written since, report by report."""
        for path in self._folder.glob("report-*.jsonl"):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = offset + whole
            yield from map(parse_event, data[:whole].splitlines())


def read_history(folder: Path) -> History:
    """Read every report in a folder. Raises `DamagedReportError`.

    A last line without its end is what a death leaves, and is dropped; anything else that
    cannot be read, or an attempt that returned without having been invoked, is damage.
    """
    reading = _Reading()
    for path in sorted(folder.glob("report-*.jsonl")):
        reading.read(path)
    return History(
        attempts=sorted(reading.attempts.values(), key=lambda each: each.invoked_at),
        seen=sorted(reading.looks, key=lambda each: each.at),
        faults=sorted(reading.faults, key=lambda each: each.began_at),
        unfinished=tuple(reading.unfinished),
    )


class _Reading:
    def __init__(self) -> None:
        self.attempts: dict[AttemptId, Attempt] = {}
        self.looks: list[Seen] = []
        self.faults: list[Fault] = []
        self.unfinished: list[Path] = []

    def read(self, path: Path) -> None:
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            self.unfinished.append(path)
        for number, line in enumerate(lines, 1):
            try:
                self._take(parse_event(line))
            except (ValueError, KeyError, TypeError) as error:
                message = f"{path.name}, line {number}: {error!r} in {line[:200]!r}"
                raise DamagedReportError(message) from error

    def _take(self, event: Event) -> None:
        if isinstance(event, Attempt):
            if event.id in self.attempts:
                message = f"attempt {event.id} was invoked twice"
                raise ValueError(message)
            self.attempts[event.id] = event
        elif isinstance(event, Returned):
            invoked = self.attempts[event.id]
            if invoked.returned_at is not None:
                message = f"attempt {event.id} returned twice"
                raise ValueError(message)
            self.attempts[event.id] = invoked.answered(event)
        elif isinstance(event, Seen):
            self.looks.append(event)
        else:
            self.faults.append(event)
