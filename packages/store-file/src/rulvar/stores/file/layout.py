"""Where everything is below the root, and what a name there stands for.

::

    <root>/
        store.json           what this folder is, and in which layout
        journals/<run>.jsonl one line for each record
        rows/<run>.json      the catalogue row
        blobs/<run>/<name>   one file for each blob, its bytes as they are
        names/<sha256>.json  what a shortened name stands for
        deleting/            runs whose deletion was decided and is not finished
        temporary/           files on their way to their place; emptied at every opening
        backups/, quarantine/  what a repair saved, and what it took out
        writer.lock, opening.lock, writer.json   who is writing

No deeper folder is ever made, and no name leads out of one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rulvar.core.checks import run_of_ref
from rulvar.core.wire import InvalidJSONError, json_text, parse_json
from rulvar.stores.file.filesystem import read_file
from rulvar.stores.file.names import decode_name, digest_of, encode_name, is_digest_name

if TYPE_CHECKING:
    from rulvar.stores.file.filesystem import FileSystem

__all__ = ["JOURNAL", "ROW", "Layout", "Names", "name_document"]

JOURNAL = ".jsonl"
ROW = ".json"
_FOLDERS = (
    "journals",
    "rows",
    "blobs",
    "names",
    "deleting",
    "temporary",
    "backups",
    "quarantine",
)
_FILES = ("store.json", "writer.lock", "opening.lock", "writer.json")


class Layout:
    """Paths as text; nothing here touches the disk."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.journals = os.path.join(root, "journals")  # noqa: PTH118 - text in, text out
        self.rows = os.path.join(root, "rows")  # noqa: PTH118
        self.blobs = os.path.join(root, "blobs")  # noqa: PTH118
        self.names = os.path.join(root, "names")  # noqa: PTH118
        self.deleting = os.path.join(root, "deleting")  # noqa: PTH118
        self.temporary = os.path.join(root, "temporary")  # noqa: PTH118
        self.backups = os.path.join(root, "backups")  # noqa: PTH118
        self.quarantine = os.path.join(root, "quarantine")  # noqa: PTH118
        self.folders = tuple(f"{root}{os.sep}{name}" for name in _FOLDERS)
        self.marker = os.path.join(root, "store.json")  # noqa: PTH118
        self.writer_lock = os.path.join(root, "writer.lock")  # noqa: PTH118
        self.opening_lock = os.path.join(root, "opening.lock")  # noqa: PTH118
        self.writer = os.path.join(root, "writer.json")  # noqa: PTH118

    def is_ours(self, name: str) -> bool:
        """Whether an entry of the root is one that an unfinished first opening leaves."""
        return name in _FOLDERS or name in _FILES

    def journal(self, run_id: str) -> str:
        """Return the path of a run's journal."""
        return f"{self.journals}{os.sep}{encode_name(run_id)}{JOURNAL}"

    def row(self, run_id: str) -> str:
        """Return the path of a run's row."""
        return f"{self.rows}{os.sep}{encode_name(run_id)}{ROW}"

    def deletion(self, run_id: str, *, blobs: bool) -> str:
        """Return the path of the decision to delete a run, with its blobs or without."""
        return f"{self.deleting}{os.sep}{encode_name(run_id)}{'.whole' if blobs else '.run'}"

    def blob_folder(self, run_id: str) -> str:
        """Return the folder of a run's blobs."""
        return f"{self.blobs}{os.sep}{encode_name(run_id)}"

    def blob(self, ref: str) -> str:
        """Return the path of a blob."""
        run_id = run_of_ref(ref)
        return f"{self.blob_folder(run_id)}{os.sep}{encode_name(ref[len(run_id) + 1 :])}"

    def name_file(self, digest: str) -> str:
        """Return the path of the file that says what a shortened name stands for."""
        return f"{self.names}{os.sep}{digest}.json"


def name_document(text: str) -> bytes:
    """Return what a file in ``names`` holds."""
    return (json_text({"name": text}) + "\n").encode("utf-8")


class Names:
    """From a name on disk back to its id; remembers the shortened ones it has met."""

    def __init__(self, files: FileSystem, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self._known: dict[str, str] = {}

    def is_known(self, digest: str) -> bool:
        """Whether the file behind a shortened name has been seen on the disk."""
        return digest in self._known

    def learn(self, text: str) -> None:
        """Remember that what a shortened name stands for is on the disk."""
        self._known[digest_of(text)] = text

    def text_of(self, entry: str, suffix: str = "") -> str | None:
        """Return the id of an entry of a folder; None for what is not this store's."""
        if not entry.endswith(suffix):
            return None
        name = entry[: len(entry) - len(suffix)]
        digest = is_digest_name(name)
        if digest is None:
            return decode_name(name)
        if digest not in self._known:
            text = self._read(digest)
            if text is None:
                return None
            self._known[digest] = text
        text = self._known[digest]
        return text if encode_name(text) == name else None

    def _read(self, digest: str) -> str | None:
        data = read_file(self._files, self._layout.name_file(digest))
        if data is None:
            return None
        try:
            value = parse_json(data)
            text = value.get("name") if isinstance(value, dict) else None
            return text if isinstance(text, str) and digest_of(text) == digest else None
        except (InvalidJSONError, UnicodeEncodeError):
            return None  # not as this store writes it: the name stands for nothing we know
