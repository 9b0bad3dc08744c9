"""Blob files: the bytes as they are, in a folder for each run."""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from rulvar.core.checks import run_of_ref
from rulvar.core.records import BlobStat
from rulvar.stores.file.filesystem import NotRegularFileError, read_file

if TYPE_CHECKING:
    import os

    from rulvar.stores.file.directory import StoreDirectory

__all__ = ["Blobs"]


class Blobs:
    """The blobs of one folder; every method stands inside the run's stripe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._durable: set[str] = set()
        """The runs whose folder is known to be on the medium, with the names in it."""
        self._made: set[str] = set()
        """The runs whose folder was made here, and may not be on the medium: opening the store
        has synced every other's name."""

    def put(self, ref: str, blob: bytes) -> None:
        """Replace a blob."""
        directory = self._directory
        run_id = run_of_ref(ref)
        directory.register(run_id)
        directory.register(ref[len(run_id) + 1 :])
        if not self._has_folder(run_id):
            self._durable.discard(run_id)
            self._made.add(run_id)
            directory.files.make_folder(directory.layout.blob_folder(run_id))
        self._sync_made(run_id)
        directory.replace(run_id, directory.layout.blob(ref), blob)
        self._durable.add(run_id)

    def get(self, ref: str) -> bytes | None:
        """Return a blob or None."""
        if not self._can_read(run_of_ref(ref)):
            return None
        return read_file(self._directory.files, self._directory.layout.blob(ref))

    def info(self, ref: str) -> BlobStat | None:
        """Return a blob's size and when it was stored, or None."""
        if not self._can_read(run_of_ref(ref)):
            return None
        try:
            found = self._directory.files.look(self._directory.layout.blob(ref))
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return BlobStat(ref=ref, size_bytes=found.st_size, stored_at=found.st_mtime_ns // 1_000_000)

    def refs(self, run_id: str) -> list[str]:
        """Return the run's refs by their bytes."""
        if not self._can_read(run_id):
            return []
        directory = self._directory
        found = (directory.names.text_of(each.name) for each in self._entries(run_id))
        return sorted(f"{run_id}/{rest}" for rest in found if rest is not None)

    def _entries(self, run_id: str) -> list[os.DirEntry[str]]:
        try:
            return self._directory.files.scan(self._directory.layout.blob_folder(run_id))
        except FileNotFoundError:
            if self._has_folder(run_id):
                raise  # the whole store was away for a moment
            return []  # beside a writer that removes it

    def delete(self, ref: str) -> None:
        """Remove a blob; a missing one is a no-op. The last one takes the folder with it."""
        directory = self._directory
        run_id = run_of_ref(ref)
        if not self._has_folder(run_id):
            return
        directory.remove(run_id, directory.layout.blob(ref))
        folder = directory.layout.blob_folder(run_id)
        if not directory.files.scan(folder):
            with suppress(OSError):  # the blob is gone, and an empty folder is no trace of a run
                directory.files.remove_folder(folder)

    def _can_read(self, run_id: str) -> bool:
        """Whether the run has blobs; a writer reads none that power loss would take again."""
        directory = self._directory
        if not self._has_folder(run_id):
            return False
        if not directory.read_only and run_id not in self._durable:
            # Another process may have moved one there, and died before it synced the folder.
            directory.sync_folder(directory.layout.blob_folder(run_id))
            self._sync_made(run_id)
            self._durable.add(run_id)
        return True

    def _sync_made(self, run_id: str) -> None:
        if run_id in self._made:
            self._directory.sync_folder(self._directory.layout.blobs)
            self._made.discard(run_id)

    def _has_folder(self, run_id: str) -> bool:
        """Whether the run has a folder of blobs; a link in its place leads out of the store."""
        folder = self._directory.layout.blob_folder(run_id)
        try:
            mode = self._directory.files.look(folder).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            what = "is a symbolic link" if stat.S_ISLNK(mode) else "is not a folder"
            raise NotRegularFileError(None, what, folder)
        return True
