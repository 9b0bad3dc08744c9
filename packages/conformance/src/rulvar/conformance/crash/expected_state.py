"""What the notes of several processes say together: what was acknowledged, and what is in doubt.

Pure: notes go in, and an account comes out of what a store must hold. A value that was
acknowledged is there until another one is; one in doubt may be there or not; nothing else may.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["ExpectedState", "Note", "Phase", "Register", "read_notes"]

Phase = Literal["prepared", "victim", "successor", "judge"]

_OF_LEASES = frozenset(
    f"journal.{method}"
    for method in ("acquire", "renew", "renew_all", "release", "revive", "seize")
)
_IN_DOUBT = frozenset({"OutcomeUnknownError"})


@dataclass(frozen=True, slots=True)
class Note:
    """One line of one process."""

    phase: Phase
    facts: dict[str, object]

    @property
    def what(self) -> str:
        """What was noted: ``begun``, ``done``, ``raised``, ``read``, ``ran`` or ``dies``."""
        return cast("str", self.facts["what"])

    @property
    def call(self) -> str:
        """The call that it is about, as ``journal.append``; empty for one about none."""
        return cast("str", self.facts.get("call", ""))

    @property
    def run(self) -> str:
        """The run that the call is about."""
        return cast("str", self.facts.get("run", ""))

    def text(self, name: str) -> str | None:
        """Return a member that is text where it is there."""
        return cast("str | None", self.facts.get(name))


def read_notes(phase: Phase, path: Path) -> list[Note]:
    """Read one process's file; a line that it died over is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [Note(phase, json.loads(line)) for line in lines]


@dataclass(slots=True)
class Register:
    """A place that holds one value: the acknowledged one, or one in doubt since."""

    value: str | None = None
    doubts: set[str | None] = field(default_factory=set)

    def allows(self, found: str | None) -> bool:
        """Whether this may be what is there."""
        return found == self.value or found in self.doubts

    def set(self, value: str | None, *, sure: bool) -> None:
        """Enter a value that was acknowledged, or one in doubt."""
        if sure:
            self.value = value
            self.doubts.clear()
        else:
            self.doubts.add(value)


class ExpectedState:
    """The account of every note, in their order.

    ``journals`` maps a run to its acknowledged records by seq, ``doubtful`` to those in doubt;
    ``rows`` and ``blobs`` are registers by run and by ref; ``granted`` lists the acknowledged
    epochs of a run, ``granted_to`` says which process got one; ``had_journal`` names the runs
    of which a record was ever acknowledged.
    """

    def __init__(self, notes: Iterable[Note]) -> None:
        self.notes = list(notes)
        self.journals: dict[str, dict[int, str]] = {}
        self.doubtful: dict[str, set[tuple[int, str]]] = {}
        self.rows: dict[str, Register] = {}
        self.blobs: dict[str, Register] = {}
        self.granted: dict[str, list[int]] = {}
        self.granted_to: dict[tuple[str, int], Phase] = {}
        self.had_journal: set[str] = set()
        self.runs: set[str] = set()
        ends = {
            (note.phase, note.facts["n"]): note
            for note in self.notes
            if note.what in {"done", "raised"}
        }
        begun: dict[tuple[str, object], Note] = {}
        for note in self.notes:
            key = (note.phase, note.facts.get("n"))
            if note.what == "begun":
                begun[key] = note
                self.runs |= {note.run} - {""}
                end = ends.get(key)
                if end is None or end.text("error") in _IN_DOUBT:
                    self._enter(note, sure=False)
            elif note.what == "done":
                self._enter(begun[key], sure=True)
                if "epoch" in note.facts:
                    run, epoch = begun[key].run, cast("int", note.facts["epoch"])
                    self.granted.setdefault(run, []).append(epoch)
                    self.granted_to[run, epoch] = note.phase

    def _enter(self, note: Note, *, sure: bool) -> None:
        run, value = note.run, note.text("value")
        if note.call == "journal.append":
            seq = cast("int", note.facts["seq"])
            if sure:
                self.journals.setdefault(run, {})[seq] = cast("str", value)
                self.had_journal.add(run)
            else:
                self.doubtful.setdefault(run, set()).add((seq, cast("str", value)))
        elif note.call == "journal.put_meta":
            self.row(run).set(value, sure=sure)
        elif note.call in {"transcripts.put", "transcripts.delete"}:
            self.blob(cast("str", note.text("ref"))).set(value, sure=sure)
        elif note.call in {"journal.delete", "journal.delete_whole_run"}:
            self._delete(note, sure=sure)

    def _delete(self, note: Note, *, sure: bool) -> None:
        """Enter a deletion; in doubt, everything of the run may be gone and may be there."""
        run = note.run
        self.row(run).set(None, sure=sure)
        if note.call == "journal.delete_whole_run":
            for ref in [ref for ref in self.blobs if ref.split("/", 1)[0] == run]:
                self.blob(ref).set(None, sure=sure)
        if not sure:
            records = self.journals.get(run, {})
            self.doubtful.setdefault(run, set()).update(records.items())
        self.journals[run] = {}

    def row(self, run: str) -> Register:
        """Return the register of a row."""
        return self.rows.setdefault(run, Register())

    def blob(self, ref: str) -> Register:
        """Return the register of a blob."""
        return self.blobs.setdefault(ref, Register())

    def ran(self) -> list[Note]:
        """Return what was executed, in its order."""
        return [note for note in self.notes if note.what == "ran"]

    def calls(self, phase: Phase) -> list[Note]:
        """Return the store calls of one process, in their order."""
        return [
            note for note in self.notes if note.phase == phase and note.what in {"begun", "read"}
        ]

    def changes(self, phase: Phase) -> list[Note]:
        """Return the calls of one process that changed more than a lease."""
        return [
            note
            for note in self.notes
            if note.phase == phase and note.what == "begun" and note.call not in _OF_LEASES
        ]
