"""Journal files: appending, reading, and putting the end of a file right after a crash.

The writer knows the tail of each journal that it has touched, and trusts it for as long as
the file is the very one it left: same file, same size, same times of change. Otherwise it looks
whether its tail is still there. A journal that is less (gone, shorter, other bytes where its
last ones were) was removed, cut or restored under it, and every call on it is refused: what
would follow there would go with records that were answered for missing before it. Then the
last lines are read from the end and judged (`rulvar.stores.file.lines`). What a crash left
there is put right before anything else happens to the journal, and reported once, as a
warning of the logger ``rulvar.stores.file``. A read-only store judges in the same way and
changes nothing: what looks torn may be another process's append on its way.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from rulvar.core.errors import JournalOrderViolation, StoreCorruptError
from rulvar.stores.file.errors import NO_ROOM, DamagedJournalError
from rulvar.stores.file.filesystem import (
    APPEND,
    READ,
    exists,
    opened,
    read_back,
    read_file,
    read_range,
    write_all,
)
from rulvar.stores.file.lines import (
    LineError,
    classify_tail,
    decode_line,
    encode_line,
    last_line,
    refuse_order,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from rulvar.core.records import JournalRecord
    from rulvar.stores.file.directory import StoreDirectory
    from rulvar.stores.file.lines import (
        Tail,
    )

__all__ = ["Journals"]

logger = logging.getLogger("rulvar.stores.file")

_MOST_TAILS = 50_000
_LAST_BYTES = 4_096
_FIRST_LINES = 64
_ATTEMPTS = 5


_Signature = tuple[int, int, tuple[int, int]]


class _End(NamedTuple):
    """A journal as this store left it: the file, its size, its last bytes, its last seq."""

    inode: int
    size: int
    changed_ns: tuple[int, int]
    seq: int | None
    last: bytes
    """A digest of the last bytes; there are ``last_size`` of them."""
    last_size: int


class Journals:
    """The journal files of one folder; every method stands inside the run's stripe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._ends: dict[str, _End] = {}

    # --- appending --------------------------------------------------------------------------

    def append(self, run_id: str, record: JournalRecord) -> None:
        """Add a record. Raises `JournalOrderViolation` when its seq is not above the tail."""
        directory = self._directory
        path = directory.layout.journal(run_id)
        for _ in range(_ATTEMPTS):
            try:
                descriptor = directory.files.open(path, APPEND)
            except FileNotFoundError:
                self._require_nothing_left(run_id, path)
                self._begin(run_id, path, record)
                return
            try:
                end = self._known_end(run_id, directory.files.stat(descriptor))
                if end is not None:
                    self._extend(run_id, path, descriptor, end, record)
                    return
            finally:
                directory.files.close(descriptor)
            self._examine(run_id, path)
        message = f"{path} is being changed by something else than this store"
        raise OSError(None, message, path)

    def _known_end(self, run_id: str, now: os.stat_result) -> _End | None:
        end = self._ends.get(run_id)
        if end is None or end[:3] != _signature(now):
            return None
        return end

    def _remember(self, run_id: str, now: os.stat_result, seq: int | None, last: bytes) -> None:
        last = last[-_LAST_BYTES:]
        self._ends.pop(run_id, None)
        while len(self._ends) >= _MOST_TAILS:
            self._ends.pop(next(iter(self._ends)), None)
        self._ends[run_id] = _End(*_signature(now), seq, _digest(last), len(last))

    def forget(self, run_id: str) -> None:
        """Know nothing of a run that was deleted: what comes is another journal."""
        self._ends.pop(run_id, None)

    def _begin(self, run_id: str, path: str, record: JournalRecord) -> None:
        """Make a journal of one record: it has its place only once it is whole."""
        directory = self._directory
        directory.register(run_id)
        temporary = directory.new_temporary()
        directory.set_recovery(run_id, partial(directory.discard, temporary))
        line = encode_line(record)
        try:
            directory.write_new(temporary, line, sync=directory.full)
            directory.set_recovery(run_id, partial(self._unbegin, run_id, temporary, path))
            directory.files.rename(temporary, path)
            directory.sync_folder(directory.layout.journals)
            now = directory.files.look(path)
        except OSError as error:
            directory.fail(run_id, error, landed=False)
        self._remember(run_id, now, record.seq, line)
        directory.clear_recovery(run_id)

    def _unbegin(self, run_id: str, temporary: str, path: str) -> None:
        directory = self._directory
        self.forget(run_id)
        directory.discard(temporary)
        if exists(directory.files, path):
            directory.files.unlink(path)
            directory.sync_folder(directory.layout.journals)

    def _extend(
        self, run_id: str, path: str, descriptor: int, end: _End, record: JournalRecord
    ) -> None:
        line = encode_line(record)
        if end.seq is not None and record.seq <= end.seq:
            last = line[-_LAST_BYTES:]
            landed = len(last) == end.last_size and _digest(last) == end.last
            raise JournalOrderViolation(
                run_id=run_id, seq=record.seq, tail_seq=end.seq, landed=landed
            )
        directory = self._directory
        directory.set_recovery(run_id, partial(self._cut, run_id, path, end))
        try:
            write_all(directory.files, descriptor, line)
            if directory.full:
                directory.files.sync(descriptor)
            now = self._in_place(path, directory.files.stat(descriptor))
            if now is None or now.st_size < end.size + len(line):
                self._take_back(descriptor, line)
        except OSError as error:
            directory.fail(run_id, error, landed=False)
        if now is None or now.st_size < end.size + len(line):
            directory.clear_recovery(run_id)
            raise _less(run_id, path, "was removed, replaced or cut during the append")
        self._remember(run_id, now, record.seq, line)
        directory.clear_recovery(run_id)

    def _in_place(self, path: str, written: os.stat_result) -> os.stat_result | None:
        """Return what is known of the journal now, None where it is not the file written to."""
        try:
            now = self._directory.files.look(path)
        except FileNotFoundError:
            return None
        return now if now.st_ino == written.st_ino else None

    def _take_back(self, descriptor: int, line: bytes) -> None:
        """Remove a line that went behind less than it was to follow."""
        files = self._directory.files
        size = files.stat(descriptor).st_size
        start = size - len(line)
        if start >= 0 and read_range(files, descriptor, start, size) == line:
            files.truncate(descriptor, start)
            files.sync(descriptor)

    def _cut(self, run_id: str, path: str, end: _End) -> None:
        """Take away what an append wrote behind ``end``, durably, if the file is still that one."""
        self._ends[run_id] = end
        files = self._directory.files
        with suppress(FileNotFoundError), opened(files, path, APPEND) as descriptor:
            size = files.stat(descriptor).st_size
            if size <= end.size or not self._follows(descriptor, end):
                return  # removed, cut or replaced under us: the next call says so
            files.truncate(descriptor, end.size)
            if self._directory.full:
                files.sync(descriptor)

    # --- the tail that this store left -------------------------------------------------------

    def _follows(self, descriptor: int, end: _End) -> bool:
        """Whether the bytes before ``end`` are those that this store left there."""
        start = end.size - end.last_size
        return _digest(read_range(self._directory.files, descriptor, start, end.size)) == end.last

    def _require_left(self, run_id: str, path: str, descriptor: int, size: int) -> None:
        """Raise `StoreCorruptError` for a journal that is less than this store left there."""
        end = self._ends.get(run_id)
        if end is None:
            return
        if size < end.size:
            raise _less(run_id, path, f"has {size} bytes, where this store left {end.size}")
        if not self._follows(descriptor, end):
            raise _less(
                run_id, path, f"has other bytes up to {end.size} than this store left there"
            )

    def _require_nothing_left(self, run_id: str, path: str) -> None:
        end = self._ends.get(run_id)
        if end is not None and end.size:
            raise _less(run_id, path, f"is gone, where this store left {end.size} bytes")

    # --- the end of a file ------------------------------------------------------------------

    def _examine(self, run_id: str, path: str) -> None:
        """Judge the end of a journal, put it right, and remember it."""
        files = self._directory.files
        with opened(files, path, READ) as descriptor:
            if self._directory.full:
                # What another process wrote and did not sync must not be read and then be gone.
                files.sync(descriptor)
            now = files.stat(descriptor)
            self._require_left(run_id, path, descriptor, now.st_size)
            start, data = read_back(files, descriptor, now.st_size, 2)
        last = last_line(data)
        at, after = start + last.at, None
        try:
            if last.before:
                at -= len(last.before[-1]) + 1
                after = decode_line(last.before[-1]).seq
                at = start + last.at
            tail = classify_tail(last.line, ended=last.ended, after=after)
        except LineError as error:
            raise self._damaged(run_id, path, at, error) from error
        if tail.kind != "clean":
            self._put_right(run_id, path, at, tail)
            with opened(files, path, READ) as descriptor:
                now = files.stat(descriptor)
                data = read_range(files, descriptor, now.st_size - _LAST_BYTES, now.st_size)
        seq = tail.records[-1].seq if tail.records else after
        self._remember(run_id, now, seq, data)

    def _damaged(self, run_id: str, path: str, at: int, error: LineError) -> DamagedJournalError:
        position = (read_file(self._directory.files, path) or b"")[:at].count(b"\n")
        return _error(run_id, position, error)

    def _put_right(self, run_id: str, path: str, at: int, tail: Tail) -> None:
        """Leave whole lines alone on the disk; every step leaves a file that can be judged."""
        directory = self._directory
        if tail.prefix is None:
            kept = (read_file(directory.files, path) or b"")[:at]
            lines = b"".join(encode_line(record) for record in tail.records)
            directory.replace(run_id, path, kept + lines)
        else:
            with opened(directory.files, path, APPEND) as descriptor:
                if tail.dropped:
                    directory.files.truncate(descriptor, at + tail.prefix)
                if tail.records:
                    write_all(directory.files, descriptor, b"\n")
                if directory.full:
                    directory.files.sync(descriptor)
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
        path = self._directory.layout.journal(run_id)
        if not self._directory.read_only:
            self._make_ready(run_id, path)
            return read(path)
        # Beside a writer: what cannot be read counts only once the file stands still.
        before = self._looked_at(path)
        for _ in range(_ATTEMPTS):
            try:
                return read(path)
            except DamagedJournalError:
                now = self._looked_at(path)
                if now == before:
                    raise
                before = now
        return read(path)

    def _looked_at(self, path: str) -> _Signature | None:
        try:
            return _signature(self._directory.files.look(path))
        except FileNotFoundError:
            return None

    def _make_ready(self, run_id: str, path: str) -> None:
        """Put the end right where that is due; a read is answered also on a full disk."""
        try:
            now = self._directory.files.look(path)
        except FileNotFoundError:
            self._require_nothing_left(run_id, path)
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
        data = read_file(self._directory.files, path)
        return [] if data is None else self._records(run_id, path, 0, data)

    def _load_after(self, run_id: str, path: str, after_seq: int) -> list[JournalRecord]:
        files = self._directory.files
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
            records += classify_tail(last.line, ended=last.ended, after=after).records
        except LineError as error:
            at = start + sum(len(line) + 1 for line in last.before[: len(records)])
            raise self._damaged(run_id, path, at, error) from error
        return records


def _signature(now: os.stat_result) -> _Signature:
    # The time of change cannot be set back, as a copy that keeps its times sets the other one.
    return now.st_ino, now.st_size, (now.st_mtime_ns, now.st_ctime_ns)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _less(run_id: str, path: str, what: str) -> StoreCorruptError:
    message = (
        f"the journal of run {run_id!r} {what} ({path}): something else removed, cut or restored "
        "it while the store was open, and nothing was written: close this store, bring the file "
        "back or delete the run, and open the store again"
    )
    return StoreCorruptError(message, run_id=run_id)


def _reaches(data: bytes, after_seq: int) -> bool:
    """Whether a stretch begins at or before a seq, so that nothing before it is asked for."""
    try:
        return decode_line(data.partition(b"\n")[0]).seq <= after_seq
    except LineError:
        return False


def _error(run_id: str, position: int, error: LineError) -> DamagedJournalError:
    return DamagedJournalError(run_id=run_id, position=position, kind=error.kind, why=str(error))
