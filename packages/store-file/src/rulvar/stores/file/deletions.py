"""Deleting several files as one: decided in one step, carried out in several.

The decision is a file in ``deleting``, which gets there by a rename: the run is deleted from
that moment on, and not a moment before. Then its files go, and the decision last. Whatever
stops that, the next call on the run, or the next opening of the folder, finishes it; a
read-only store takes a run whose deletion is decided for deleted.

Both are synced at every durability: a decision that came back after power loss would delete
the run that was made under the same id since.

What the store remembers of the journal goes in the same steps as the journal itself: before its
file, and again whenever they are repeated. Forgotten after them, it would outlive the file when
an exception falls between, and make every later call take the deletion for a loss.
"""

from __future__ import annotations

import stat
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.wire import json_text
from rulvar.stores.file.filesystem import exists
from rulvar.stores.file.journals import logger

if TYPE_CHECKING:
    from rulvar.stores.file.directory import StoreDirectory
    from rulvar.stores.file.journals import Journals

__all__ = ["delete_run", "finish_deletions", "is_being_deleted"]


def delete_run(directory: StoreDirectory, journals: Journals, run_id: str, *, blobs: bool) -> None:
    """Remove a run's journal and row, and its blobs where asked, all or nothing (D1)."""
    layout, files = directory.layout, directory.files
    paths = [layout.journal(run_id), layout.row(run_id)]
    if blobs:
        paths.append(layout.blob_folder(run_id))
    if not any(exists(files, path) for path in paths):
        journals.forget(run_id)
        return
    directory.register(run_id)
    decision = layout.deletion(run_id, blobs=blobs)
    temporary = directory.new_temporary()
    directory.set_recovery(run_id, partial(directory.discard, temporary))
    moving = False
    try:
        text = json_text({"runId": run_id, "blobs": blobs}) + "\n"
        directory.write_new(temporary, text.encode("utf-8"), sync=True)
        directory.set_recovery(
            run_id, partial(_recover, directory, journals, run_id, temporary, blobs=blobs)
        )
        moving = True
        files.rename(temporary, decision)
        files.sync_folder(layout.deleting)
    except OSError as error:
        directory.fail(run_id, error, landed=moving and directory.is_gone(temporary))
    try:
        directory.recover(run_id)
    except OSError as error:
        logger.warning(
            "run %r is deleted, and some of its files are still there: %s; the next call on it, or "
            "the next opening, removes them",
            run_id,
            error,
        )


def _recover(
    directory: StoreDirectory, journals: Journals, run_id: str, temporary: str, *, blobs: bool
) -> None:
    directory.discard(temporary)
    decision = directory.layout.deletion(run_id, blobs=blobs)
    if exists(directory.files, decision):
        journals.forget(run_id)
        _carry_out(directory, run_id, decision, blobs=blobs)
    else:
        directory.files.sync_folder(directory.layout.deleting)


def _carry_out(directory: StoreDirectory, run_id: str, decision: str, *, blobs: bool) -> None:
    layout, files = directory.layout, directory.files
    files.sync_folder(layout.deleting)
    directory.discard(layout.journal(run_id))
    directory.discard(layout.row(run_id))
    if blobs:
        _remove_blobs(directory, layout.blob_folder(run_id))
    files.sync_folder(layout.journals)
    files.sync_folder(layout.rows)
    files.unlink(decision)
    files.sync_folder(layout.deleting)


def _remove_blobs(directory: StoreDirectory, folder: str) -> None:
    files = directory.files
    if not exists(files, folder):
        return
    if stat.S_ISDIR(files.look(folder).st_mode):
        for entry in files.scan(folder):
            files.unlink(entry.path)
        files.remove_folder(folder)
    else:
        files.unlink(folder)  # a link: what it leads to is not ours
    files.sync_folder(directory.layout.blobs)


def finish_deletions(directory: StoreDirectory) -> None:
    """Carry out what was decided before the folder was opened."""
    for entry in directory.files.scan(directory.layout.deleting):
        for suffix, blobs in ((".run", False), (".whole", True)):
            run_id = directory.names.text_of(entry.name, suffix)
            if run_id is not None:
                _carry_out(directory, run_id, entry.path, blobs=blobs)


def is_being_deleted(directory: StoreDirectory, run_id: str, *, blobs: bool = False) -> bool:
    """Whether a run's deletion is decided: what a read-only store has to ask."""
    whole = exists(directory.files, directory.layout.deletion(run_id, blobs=True))
    if blobs or whole:
        return whole
    return exists(directory.files, directory.layout.deletion(run_id, blobs=False))
