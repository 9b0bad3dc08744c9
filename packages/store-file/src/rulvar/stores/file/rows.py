"""Catalogue rows, one small JSON file each, and the list of every run of which there is a trace.

Listings read no journal. The writer reads the folders once, when it is first asked to list;
after that it looks again only at the runs that it has changed since. A read-only store scans
the folders at each listing and reads the rows whose file is not the one that it knows.
"""

from __future__ import annotations

import stat
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreCorruptError
from rulvar.core.filters import matches
from rulvar.core.wire import InvalidJSONError, decode_meta
from rulvar.stores.file.filesystem import NotRegularFileError, exists, read_file
from rulvar.stores.file.layout import JOURNAL, ROW

if TYPE_CHECKING:
    import os

    from rulvar.core.records import RunFilter, RunMeta
    from rulvar.stores.file.directory import StoreDirectory

__all__ = ["Rows"]

_Signature = tuple[int, int, int]


@dataclass(slots=True)
class _Trace:
    """What there is of one run; ``row`` is None too when the row cannot be read."""

    row: RunMeta | None = None
    has_row: bool = False
    has_journal: bool = False
    has_blobs: bool = False
    signature: _Signature | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.has_row or self.has_journal or self.has_blobs)


class Rows:
    """The rows of one folder."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._traces: dict[str, _Trace] = {}
        self._order: list[str] = []
        self._scanned = False

    # --- one row, inside the run's stripe -----------------------------------------------------

    def put(self, run_id: str, text: str) -> None:
        """Replace the row."""
        self._directory.register(run_id)
        path = self._directory.layout.row(run_id)
        self._directory.replace(run_id, path, (text + "\n").encode("utf-8"))

    def get(self, run_id: str) -> RunMeta | None:
        """Return the row or None. Raises `StoreCorruptError` when it cannot be read."""
        data = read_file(self._directory.files, self._directory.layout.row(run_id))
        if data is None:
            return None
        try:
            return decode_meta(run_id, data)
        except InvalidJSONError as error:
            message = f"the row of run {run_id!r} cannot be read: {error}; audit the run"
            raise StoreCorruptError(message, run_id=run_id) from error

    # --- all of them, inside StoreDirectory.listing -----------------------------------------

    def list_runs(self, wanted: RunFilter) -> list[RunMeta]:
        """Return the page of matching rows, by run id."""
        found: list[RunMeta] = []
        self._refresh()
        after = wanted.after_run_id
        start = 0 if after is None else bisect_right(self._order, after)
        for at in range(start, len(self._order)):
            row = self._traces[self._order[at]].row
            if row is not None and matches(row, wanted):
                found.append(row)
                if len(found) == wanted.limit:
                    break
        return found

    def list_run_ids(self, after_run_id: str | None, limit: int) -> list[str]:
        """Return the page of run ids of which there is any trace."""
        self._refresh()
        start = 0 if after_run_id is None else bisect_right(self._order, after_run_id)
        return self._order[start : start + limit]

    def _refresh(self) -> None:
        if self._directory.read_only or not self._scanned:
            traces = self._scan()
            # Code point order is UTF-8 byte order, for every string without lone surrogates.
            self._traces, self._order = traces, sorted(traces)
        # Traces and order change in two steps: whatever stops them, the folders are read anew.
        self._scanned = False
        for run_id in self._directory.changed_runs():
            with self._directory.reading(run_id):
                self._update(run_id, self._look(run_id))
                self._directory.seen(run_id)
        self._scanned = True

    def _update(self, run_id: str, trace: _Trace) -> None:
        known = run_id in self._traces
        if trace.is_empty:
            if known:
                del self._order[bisect_left(self._order, run_id)]
                del self._traces[run_id]
            return
        if not known:
            insort(self._order, run_id)
        self._traces[run_id] = trace

    def _look(self, run_id: str) -> _Trace:
        """Return what there is of one run now."""
        files, layout = self._directory.files, self._directory.layout
        try:
            data = read_file(files, layout.row(run_id))
        except NotRegularFileError:
            data = b""
        journal, folder = layout.journal(run_id), layout.blob_folder(run_id)
        return _Trace(
            row=None if data is None else _readable(run_id, data),
            has_row=data is not None,
            has_journal=exists(files, journal) and files.look(journal).st_size > 0,
            has_blobs=self._has_blobs(folder),
        )

    def _has_blobs(self, folder: str) -> bool:
        files = self._directory.files
        if not exists(files, folder) or not stat.S_ISDIR(files.look(folder).st_mode):
            return False
        return bool(files.scan(folder))

    # --- the folders --------------------------------------------------------------------------

    def _scan(self) -> dict[str, _Trace]:
        """Return what there is of every run; a row whose file is known is not read again."""
        files, layout, names = self._directory.files, self._directory.layout, self._directory.names
        deleting = self._being_deleted()
        traces: dict[str, _Trace] = {}
        for entry in files.scan(layout.journals):
            run_id = names.text_of(entry.name, JOURNAL)
            if run_id is None or run_id in deleting or not _has_bytes(entry):
                continue
            traces.setdefault(run_id, _Trace()).has_journal = True
        for entry in files.scan(layout.rows):
            run_id = names.text_of(entry.name, ROW)
            if run_id is not None and run_id not in deleting:
                self._read_row(run_id, entry, traces)
        for entry in files.scan(layout.blobs):
            run_id = names.text_of(entry.name)
            if run_id is None or deleting.get(run_id, False) or not _is_folder(entry):
                continue
            try:
                held = files.scan(entry.path)
            except FileNotFoundError:
                continue  # deleted beside us since the scan
            if held:
                traces.setdefault(run_id, _Trace()).has_blobs = True
        return traces

    def _read_row(self, run_id: str, entry: os.DirEntry[str], traces: dict[str, _Trace]) -> None:
        try:
            now = entry.stat(follow_symlinks=False)
            signature = (now.st_ino, now.st_size, now.st_mtime_ns)
            known = self._traces.get(run_id)
            if known is not None and known.signature == signature:
                row = known.row
            else:
                try:
                    data = read_file(self._directory.files, entry.path)
                except NotRegularFileError:
                    data = b""  # a link in its place: as good as a row that cannot be decoded
                if data is None:
                    return
                row = _readable(run_id, data)
        except FileNotFoundError:
            return  # deleted beside us since the scan
        trace = traces.setdefault(run_id, _Trace())
        trace.row, trace.has_row, trace.signature = row, True, signature

    def _being_deleted(self) -> dict[str, bool]:
        """Return the runs whose deletion is decided, and whether it takes the blobs too."""
        found: dict[str, bool] = {}
        for entry in self._directory.files.scan(self._directory.layout.deleting):
            for suffix, whole in ((".run", False), (".whole", True)):
                run_id = self._directory.names.text_of(entry.name, suffix)
                if run_id is not None:
                    found[run_id] = found.get(run_id, False) or whole
        return found


def _readable(run_id: str, data: bytes) -> RunMeta | None:
    """Decode a row; one that is not readable is left out of listings (promise M2)."""
    try:
        return decode_meta(run_id, data)
    except InvalidJSONError:
        return None


def _has_bytes(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
