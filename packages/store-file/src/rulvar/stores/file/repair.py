"""What an operator does about damage: see it, then keep what can be read and lay the rest aside.

`find_damage` reads and changes nothing; it may be run beside a live writer. `repair_damage`
becomes the writer, and for each damaged file first copies it whole to ``backups``, then
writes what cannot be kept to ``quarantine`` (one JSON line for each piece, with its place and
its bytes), and only then puts the rest in the file's place. A torn end alone is not damage:
the store puts that right by itself. A file that cannot be read at all (a link, a bad sector) is
reported and left as it is.

Of records out of order the longest rising run is kept, so that one wrong number does not cost
everything behind it.
"""

from __future__ import annotations

import base64
import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.checks import check_run_id
from rulvar.core.wire import InvalidJSONError, decode_meta, format_time, json_text
from rulvar.stores.file.filesystem import exists, read_file
from rulvar.stores.file.layout import JOURNAL, ROW
from rulvar.stores.file.lines import (
    LineError,
    decode_line,
    encode_line,
    last_line,
    salvage,
)
from rulvar.stores.file.names import encode_name
from rulvar.stores.file.store import FileJournalStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rulvar.core.records import JournalRecord
    from rulvar.stores.file.directory import StoreDirectory
    from rulvar.stores.file.filesystem import FileSystem

__all__ = ["Damage", "Piece", "find_damage", "repair_damage"]

UNREADABLE = "unreadable"
"""The kind of a piece that stands for a whole file of which nothing can be read."""

_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something that cannot be kept: where it stands, what is wrong with it, its bytes."""

    position: int
    offset: int
    kind: str
    why: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damaged file of one run.

    ``part`` is ``journal`` or ``row``; ``kept`` counts the records that stay (0 for a row).
    ``backup`` and ``quarantine`` are paths, None until it was repaired.
    """

    run_id: str
    part: str
    kept: int
    pieces: tuple[Piece, ...]
    backup: str | None = None
    quarantine: str | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether the file gives no bytes: a link, a bad sector, a missing right. It is left."""
        return any(piece.kind == UNREADABLE for piece in self.pieces)


def find_damage(
    root: str | os.PathLike[str],
    run_ids: Sequence[str] = (),
    /,
    *,
    filesystem: FileSystem | None = None,
) -> list[Damage]:
    """Return what is damaged, of the runs named or of all, by run id; writes not a byte.

    Raises `ConfigError` when there is no store, and `StoreError` for what the disk refuses.
    """
    with FileJournalStore(root, read_only=True, filesystem=filesystem) as store:
        directory = store._directory  # noqa: SLF001 - repair is a part of the store
        found: list[Damage] = []
        for run_id in _wanted(store, run_ids):
            with directory.reading(run_id):
                found += [each for each, _ in _examine(directory, run_id)]
        return found


def repair_damage(
    root: str | os.PathLike[str],
    run_ids: Sequence[str] = (),
    /,
    *,
    filesystem: FileSystem | None = None,
) -> list[Damage]:
    """Repair what is damaged, of the runs named or of all, and return what was done.

    Raises `StoreInUseError` while a process has the store open for writing, and as
    `find_damage`. What was repaired before an error stays so; run it again for the rest.
    """
    with FileJournalStore(root, filesystem=filesystem) as store:
        directory = store._directory  # noqa: SLF001
        done: list[Damage] = []
        for run_id in _wanted(store, run_ids):
            with directory.writing(run_id):
                done += [
                    each if each.is_unreadable else _quarantine(directory, each, kept)
                    for each, kept in _examine(directory, run_id)
                ]
        return done


def _wanted(store: FileJournalStore, run_ids: Sequence[str]) -> Iterable[str]:
    if run_ids:
        yield from map(check_run_id, run_ids)
        return
    page = store.list_run_ids(None, _PAGE)
    while page:
        yield from page
        page = store.list_run_ids(page[-1], _PAGE)


# --- seeing ---------------------------------------------------------------------------------


def _examine(directory: StoreDirectory, run_id: str) -> list[tuple[Damage, bytes | None]]:
    """Return each damaged file of a run with what is to stand in its place, None for nothing."""
    found: list[tuple[Damage, bytes | None]] = []
    try:
        journal = read_file(directory.files, directory.layout.journal(run_id))
    except OSError as error:
        found.append((_unreadable(run_id, "journal", error), None))
        journal = None
    if journal is not None:
        records, pieces = _sort_out(journal)
        if any(piece.kind != "torn" for piece in pieces):
            damage = Damage(run_id=run_id, part="journal", kept=len(records), pieces=pieces)
            found.append((damage, b"".join(map(encode_line, records))))
    try:
        row = read_file(directory.files, directory.layout.row(run_id))
    except OSError as error:
        found.append((_unreadable(run_id, "row", error), None))
        row = None
    if row is not None:
        try:
            decode_meta(run_id, row)
        except InvalidJSONError as error:
            piece = Piece(position=0, offset=0, kind="undecodable", why=str(error), data=row)
            found.append((Damage(run_id=run_id, part="row", kept=0, pieces=(piece,)), None))
    return found


def _unreadable(run_id: str, part: str, error: OSError) -> Damage:
    """Report a file that gives no bytes, so that it hides no other's damage."""
    why = error.strerror or str(error)
    piece = Piece(position=0, offset=0, kind=UNREADABLE, why=why, data=b"")
    return Damage(run_id=run_id, part=part, kept=0, pieces=(piece,))


def _sort_out(data: bytes) -> tuple[list[JournalRecord], tuple[Piece, ...]]:
    """Return the records of a journal that can be kept, and the pieces that cannot."""
    last = last_line(data)
    records: list[tuple[int, int, JournalRecord]] = []
    pieces: list[Piece] = []
    offset = 0
    for position, line in enumerate([*last.before, last.line]):
        if not line and not last.ended and offset == last.at:
            break
        try:
            records.append((position, offset, decode_line(line)))
        except LineError as error:
            torn = offset == last.at and not last.ended
            kind = "torn" if torn else error.kind
            kept, rest = salvage(line)
            records += [(position, offset, record) for record in kept]
            pieces.append(
                Piece(position=position, offset=offset, kind=kind, why=str(error), data=rest)
            )
        offset += len(line) + 1
    rising = _longest_rising([record.seq for _, _, record in records])
    for at, (position, offset, record) in enumerate(records):
        if at not in rising:
            why = f"its seq {record.seq} does not rise with those around it"
            pieces.append(
                Piece(
                    position=position,
                    offset=offset,
                    kind="out-of-order",
                    why=why,
                    data=record.payload,
                )
            )
    pieces.sort(key=lambda piece: piece.position)
    return [record for at, (_, _, record) in enumerate(records) if at in rising], tuple(pieces)


def _longest_rising(values: Sequence[int]) -> set[int]:
    """Return the places of a longest strictly rising selection."""
    ends: list[int] = []
    at_end: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(at_end[length - 1] if length else None)
        if length == len(ends):
            ends.append(value)
            at_end.append(at)
        else:
            ends[length] = value
            at_end[length] = at
    places: set[int] = set()
    place = at_end[-1] if at_end else None
    while place is not None:
        places.add(place)
        place = before[place]
    return places


# --- laying aside ---------------------------------------------------------------------------


def _quarantine(directory: StoreDirectory, damage: Damage, kept: bytes | None) -> Damage:
    layout, run_id = directory.layout, damage.run_id
    is_journal = damage.part == "journal"
    path = layout.journal(run_id) if is_journal else layout.row(run_id)
    name = _free_name(directory, run_id, JOURNAL if is_journal else ROW)
    backup = f"{layout.backups}{os.sep}{name}"
    quarantine = f"{layout.quarantine}{os.sep}{name}"
    directory.replace(run_id, backup, read_file(directory.files, path) or b"")
    directory.replace(
        run_id, quarantine, b"".join(_document(run_id, each) for each in damage.pieces)
    )
    if kept is None:
        directory.remove(run_id, path)
    else:
        directory.replace(run_id, path, kept)
    return Damage(
        run_id=run_id,
        part=damage.part,
        kept=damage.kept,
        pieces=damage.pieces,
        backup=backup,
        quarantine=quarantine,
    )


def _free_name(directory: StoreDirectory, run_id: str, suffix: str) -> str:
    moment = format_time(directory.clock.now_ms()).replace(":", "").lower()
    number = 0
    while True:
        more = f"-{number}" if number else ""
        name = f"{encode_name(run_id)}@{moment}{more}{suffix}"
        if not exists(directory.files, f"{directory.layout.backups}{os.sep}{name}"):
            return name
        number += 1


def _document(run_id: str, piece: Piece) -> bytes:
    document: dict[str, object] = {
        "runId": run_id,
        "position": piece.position,
        "offset": piece.offset,
        "kind": piece.kind,
        "why": piece.why,
    }
    try:
        document["text"] = piece.data.decode("utf-8")
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(piece.data).decode("ascii")
    return (json_text(document) + "\n").encode("utf-8")
