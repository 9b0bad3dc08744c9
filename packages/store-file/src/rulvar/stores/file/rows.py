"""Catalogue rows, one small JSON file each, and the list of every run of which there is a trace.

Listings read no journal. The writer reads the folders once, when it is first asked to list;
after that it looks again only at the runs that it has changed since. A read-only store reads
the folders' names at each listing, and the rows of the page that is asked for; it keeps none.
"""

from __future__ import annotations

import stat
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from rulvar.core.errors import StoreCorruptError
from rulvar.core.filters import matches
from rulvar.core.wire import InvalidJSONError, decode_meta
from rulvar.stores.file.filesystem import NotRegularFileError, read_file
from rulvar.stores.file.layout import JOURNAL, ROW

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from rulvar.core.records import RunFilter, RunMeta
    from rulvar.stores.file.directory import StoreDirectory

__all__ = ["Rows"]


@dataclass(slots=True)
class _Trace:
    """What there is of one run; ``row`` is None too when the row cannot be read."""

    row: RunMeta | None = None
    has_row: bool = False
    has_journal: bool = False
    has_blobs: bool = False

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
        for row in self._rows_after(wanted.after_run_id):
            if row is not None and matches(row, wanted):
                found.append(row)
                if len(found) == wanted.limit:
                    break
        return found

    def list_run_ids(self, after_run_id: str | None, limit: int) -> list[str]:
        """Return the page of run ids of which there is any trace."""
        if self._directory.read_only:
            return list(islice(self._traced_after(after_run_id), limit))
        self._refresh()
        start = 0 if after_run_id is None else bisect_right(self._order, after_run_id)
        return self._order[start : start + limit]

    def _rows_after(self, after: str | None) -> Iterator[RunMeta | None]:
        if self._directory.read_only:
            names = self._names(self._directory.layout.rows, ROW, after, self._being_deleted())
            for run_id in sorted(names):
                data = self._data(run_id)
                yield None if data is None else _readable(run_id, data)
            return
        self._refresh()
        start = 0 if after is None else bisect_right(self._order, after)
        for at in range(start, len(self._order)):
            yield self._traces[self._order[at]].row

    def _traced_after(self, after: str | None) -> Iterator[str]:
        """Yield what there is a trace of; nothing is looked into before it is reached."""
        layout, deleting = self._directory.layout, self._being_deleted()
        whole = {run_id for run_id, blobs_too in deleting.items() if blobs_too}
        journals = self._names(layout.journals, JOURNAL, after, deleting)
        rows = self._names(layout.rows, ROW, after, deleting)
        blobs = self._names(layout.blobs, "", after, whole)
        for run_id in sorted(journals | rows | blobs):
            if (
                run_id in rows
                or (run_id in journals and self._has_journal(run_id))
                or (run_id in blobs and self._has_blobs(run_id))
            ):
                yield run_id

    def _names(
        self, folder: str, suffix: str, after: str | None, without: Container[str]
    ) -> set[str]:
        """Return the run ids that a folder's names stand for."""
        names = self._directory.names
        found = (names.text_of(entry.name, suffix) for entry in self._directory.files.scan(folder))
        return {
            run_id
            for run_id in found
            if run_id is not None and (after is None or run_id > after) and run_id not in without
        }

    def _data(self, run_id: str) -> bytes | None:
        try:
            return read_file(self._directory.files, self._directory.layout.row(run_id))
        except NotRegularFileError:
            return b""  # a link in its place: as good as a row that cannot be decoded

    def _refresh(self) -> None:
        if not self._scanned:
            traces = {run_id: self._look(run_id) for run_id in self._traced_after(None)}
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
        data = self._data(run_id)
        return _Trace(
            row=None if data is None else _readable(run_id, data),
            has_row=data is not None,
            has_journal=self._has_journal(run_id),
            has_blobs=self._has_blobs(run_id),
        )

    def _has_journal(self, run_id: str) -> bool:
        try:
            return self._directory.files.look(self._directory.layout.journal(run_id)).st_size > 0
        except FileNotFoundError:
            return False

    def _has_blobs(self, run_id: str) -> bool:
        files, folder = self._directory.files, self._directory.layout.blob_folder(run_id)
        try:
            return stat.S_ISDIR(files.look(folder).st_mode) and bool(files.scan(folder))
        except FileNotFoundError:
            return False  # never there, or deleted beside us

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
