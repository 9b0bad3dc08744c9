"""Journal files: appending, reading, and putting the end of a file right after a crash.

The writer knows the tail of each journal that it has touched, and trusts it for as long as
the file is the very one it left: same file, same size, same time of change. Otherwise the
last lines are read from the end and judged (`rulvar.stores.file.lines`). What a crash left
there is put right before anything else happens to the journal, and reported once, as a
warning of the logger ``rulvar.stores.file``. A read-only store judges in the same way and
changes nothing: what looks torn may be another process's append on its way.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rulvar.core.errors import JournalOrderViolation
from rulvar.stores.file.errors import NO_ROOM, DamagedJournalError
from rulvar.stores.file.filesystem import (
    APPEND,
    READ,
    exists,
    opened,
    read_back,
    read_file,
    write_all,
)
from rulvar.stores.file.lines import (
    LineError,
    decode_line,
    encode_line,
    judge_tail,
    last_line,
    refuse_order,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from rulvar.core.records import JournalRecord
    from rulvar.stores.file.home import Home
    from rulvar.stores.file.lines import (
        Tail,
    )

__all__ = ["Journals"]

logger = logging.getLogger("rulvar.stores.file")

_MOST_TAILS = 50_000
_FIRST_LINES = 64
_ATTEMPTS = 5


class _End(NamedTuple):
    """A journal as this writer left it, and the seq of its last record."""

    inode: int
    size: int
    changed_ns: int
    seq: int | None


class Journals:
    """The journal files of one folder; every method stands inside the run's stripe."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._ends: dict[str, _End] = {}

    # --- appending --------------------------------------------------------------------------

    def append(self, run_id: str, record: JournalRecord) -> None:
        """Add a record. Raises `JournalOrderViolation` when its seq is not above the tail."""
        home = self._home
        path = home.layout.journal(run_id)
        for _ in range(_ATTEMPTS):
            try:
                descriptor = home.files.open(path, APPEND)
            except FileNotFoundError:
                self._begin(run_id, path, record)
                return
            try:
                end = self._known_end(run_id, home.files.stat(descriptor))
                if end is not None:
                    self._extend(run_id, path, descriptor, end, record)
                    return
            finally:
                home.files.close(descriptor)
            self._examine(run_id, path)
        message = f"{path} is being changed by something else than this store"
        raise OSError(None, message, path)

    def _known_end(self, run_id: str, now: os.stat_result) -> _End | None:
        end = self._ends.get(run_id)
        if end is None or end[:3] != (now.st_ino, now.st_size, now.st_mtime_ns):
            return None
        return end

    def _remember(self, run_id: str, now: os.stat_result, seq: int | None) -> None:
        if len(self._ends) >= _MOST_TAILS:
            self._ends.clear()
        self._ends[run_id] = _End(now.st_ino, now.st_size, now.st_mtime_ns, seq)

    def forget(self, run_id: str) -> None:
        """Look at the file anew at the next call."""
        self._ends.pop(run_id, None)

    def _begin(self, run_id: str, path: str, record: JournalRecord) -> None:
        """Make a journal of one record: it has its place only once it is whole."""
        home = self._home
        home.register(run_id)
        temporary = home.new_temporary()
        home.doubt(run_id, partial(home.discard, temporary))
        try:
            home.write_new(temporary, encode_line(record), sync=home.full)
            home.doubt(run_id, partial(self._unbegin, run_id, temporary, path))
            home.files.rename(temporary, path)
            home.sync_folder(home.layout.journals)
            now = home.files.look(path)
        except OSError as error:
            home.fail(run_id, error, landed=False)
        self._remember(run_id, now, record.seq)
        home.certain(run_id)

    def _unbegin(self, run_id: str, temporary: str, path: str) -> None:
        home = self._home
        self.forget(run_id)
        home.discard(temporary)
        if exists(home.files, path):
            home.files.unlink(path)
            home.sync_folder(home.layout.journals)

    def _extend(
        self, run_id: str, path: str, descriptor: int, end: _End, record: JournalRecord
    ) -> None:
        if end.seq is not None and record.seq <= end.seq:
            raise JournalOrderViolation(run_id=run_id, seq=record.seq, tail_seq=end.seq)
        home = self._home
        home.doubt(run_id, partial(self._cut, run_id, path, end.size))
        try:
            write_all(home.files, descriptor, encode_line(record))
            if home.full:
                home.files.sync(descriptor)
            now = home.files.stat(descriptor)
        except OSError as error:
            home.fail(run_id, error, landed=False)
        self._remember(run_id, now, record.seq)
        home.certain(run_id)

    def _cut(self, run_id: str, path: str, size: int) -> None:
        """Take away what stands behind ``size``, durably."""
        self.forget(run_id)
        with opened(self._home.files, path, APPEND) as descriptor:
            self._home.files.truncate(descriptor, size)
            if self._home.full:
                self._home.files.sync(descriptor)

    # --- the end of a file ------------------------------------------------------------------

    def _examine(self, run_id: str, path: str) -> None:
        """Judge the end of a journal, put it right, and remember it."""
        files = self._home.files
        with opened(files, path, READ) as descriptor:
            if self._home.full:
                # What another process wrote and did not sync must not be read and then be gone.
                files.sync(descriptor)
            size = files.stat(descriptor).st_size
            start, data = read_back(files, descriptor, size, 2)
        last = last_line(data)
        at, after = start + last.at, None
        try:
            if last.before:
                at -= len(last.before[-1]) + 1
                after = decode_line(last.before[-1]).seq
                at = start + last.at
            tail = judge_tail(last.line, ended=last.ended, after=after)
        except LineError as error:
            raise self._damaged(run_id, path, at, error) from error
        if tail.kind != "clean":
            self._put_right(run_id, path, at, tail)
        seq = tail.records[-1].seq if tail.records else after
        self._remember(run_id, files.look(path), seq)

    def _damaged(self, run_id: str, path: str, at: int, error: LineError) -> DamagedJournalError:
        position = (read_file(self._home.files, path) or b"")[:at].count(b"\n")
        return _error(run_id, position, error)

    def _put_right(self, run_id: str, path: str, at: int, tail: Tail) -> None:
        """Leave whole lines alone on the disk; every step leaves a file that can be judged."""
        home = self._home
        self.forget(run_id)
        if tail.prefix is None:
            kept = (read_file(home.files, path) or b"")[:at]
            lines = b"".join(encode_line(record) for record in tail.records)
            home.replace(run_id, path, kept + lines)
        else:
            with opened(home.files, path, APPEND) as descriptor:
                if tail.dropped:
                    home.files.truncate(descriptor, at + tail.prefix)
                if tail.records:
                    write_all(home.files, descriptor, b"\n")
                if home.full:
                    home.files.sync(descriptor)
        logger.warning(
            "run %r: the end of its journal was not whole (%s): %d whole records are kept there, "
            "%d bytes are dropped, which no append was answered for",
            run_id,
            tail.kind,
            len(tail.records),
            tail.dropped,
            extra={"run_id": run_id, "tail_kind": tail.kind, "dropped_bytes": tail.dropped},
        )

    # --- reading ----------------------------------------------------------------------------

    def load(self, run_id: str) -> list[JournalRecord]:
        """Return the journal. Raises `DamagedJournalError` when it is not whole."""
        return self._read(run_id, lambda path: self._load(run_id, path))

    def load_after(self, run_id: str, after_seq: int, limit: int) -> list[JournalRecord]:
        """Return what stands behind a seq, reading from the end of the file."""
        return self._read(run_id, lambda path: self._load_after(run_id, path, after_seq))[:limit]

    def _read(self, run_id: str, read: Callable[[str], list[JournalRecord]]) -> list[JournalRecord]:
        path = self._home.layout.journal(run_id)
        if not self._home.read_only:
            self._make_ready(run_id, path)
            return read(path)
        # Beside a writer: what cannot be read counts only once the file stands still.
        before = self._signature(path)
        for _ in range(_ATTEMPTS):
            try:
                return read(path)
            except DamagedJournalError:
                now = self._signature(path)
                if now == before:
                    raise
                before = now
        return read(path)

    def _signature(self, path: str) -> tuple[int, int, int] | None:
        try:
            now = self._home.files.look(path)
        except FileNotFoundError:
            return None
        return now.st_ino, now.st_size, now.st_mtime_ns

    def _make_ready(self, run_id: str, path: str) -> None:
        """Put the end right where that is due; a read is answered also when there is no room."""
        try:
            now = self._home.files.look(path)
        except FileNotFoundError:
            return
        if self._known_end(run_id, now) is not None:
            return
        try:
            self._examine(run_id, path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.warning("run %r: no room to put the end of its journal right", run_id)

    def _load(self, run_id: str, path: str) -> list[JournalRecord]:
        data = read_file(self._home.files, path)
        return [] if data is None else self._records(run_id, path, 0, data)

    def _load_after(self, run_id: str, path: str, after_seq: int) -> list[JournalRecord]:
        files = self._home.files
        try:
            descriptor = files.open(path, READ)
        except FileNotFoundError:
            return []
        try:
            size = files.stat(descriptor).st_size
            lines = _FIRST_LINES
            start, data = read_back(files, descriptor, size, lines)
            while start > 0 and not _reaches(data, after_seq):
                lines *= 8
                start, data = read_back(files, descriptor, size, lines)
        finally:
            files.close(descriptor)
        records = self._records(run_id, path, start, data)
        return [record for record in records if record.seq > after_seq]

    def _records(self, run_id: str, path: str, start: int, data: bytes) -> list[JournalRecord]:
        """Decode a stretch of a journal that begins at ``start``, all of it or nothing."""
        last = last_line(data)
        records: list[JournalRecord] = []
        after: int | None = None
        try:
            for line in last.before:
                record = decode_line(line)
                refuse_order(record.seq, after)
                after = record.seq
                records.append(record)
            records += judge_tail(last.line, ended=last.ended, after=after).records
        except LineError as error:
            at = start + sum(len(line) + 1 for line in last.before[: len(records)])
            raise self._damaged(run_id, path, at, error) from error
        return records


def _reaches(data: bytes, after_seq: int) -> bool:
    """Whether a stretch begins at or before a seq, so that nothing before it is asked for."""
    try:
        return decode_line(data.partition(b"\n")[0]).seq <= after_seq
    except LineError:
        return False


def _error(run_id: str, position: int, error: LineError) -> DamagedJournalError:
    return DamagedJournalError(run_id=run_id, position=position, kind=error.kind, why=str(error))
