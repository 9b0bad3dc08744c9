"""What a disk has at each instant, and what it may yet get: pure, no file is touched.

A `Disk` is told of every call that reaches the file system, in order. What a file has at its
last sync is on the medium; every write and truncation since is *pending*. What a folder has at
its last sync is on the medium too; every name that was made or taken away since is pending.
After each call it keeps a `Cut`: all of that, as it stands.

A sync that the system reports as failed promises nothing, also later: what was pending then
may be lost although a later sync succeeds, unless it was written anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["Cut", "Disk", "Entry", "Truncation", "Write", "applied"]


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were written to a file and not synced since."""

    file: int
    offset: int
    data: bytes
    orphan: bool = False

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Truncation:
    """A file's new size, not synced since."""

    file: int
    size: int
    orphan: bool = False


Pending = Write | Truncation


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that was made (for a file) or taken away (None), its folder not synced since."""

    name: str
    file: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """One instant: ``synced`` and ``names`` are on the medium, the rest may be or not.

    ``pending`` and ``entries`` are in the order of the calls; ``what`` is the call that came
    last.
    """

    position: int
    what: str
    synced: dict[int, bytes]
    pending: tuple[Pending, ...]
    names: dict[str, int]
    entries: tuple[Entry, ...]


def applied(content: bytearray, change: Pending) -> None:
    """Do a write or a truncation; a gap before a write is zeros."""
    if isinstance(change, Truncation):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.end] = change.data


@dataclass(slots=True)
class Disk:
    """The state that calls build up, and a cut after each of them.

    ``ignores_syncs`` makes it a disk that lies: syncs succeed and nothing is kept.
    """

    ignores_syncs: bool = False
    cuts: list[Cut] = field(default_factory=list)
    bytes_written: int = 0
    syncs: int = 0
    _synced: dict[int, bytes] = field(default_factory=dict)
    _pending: tuple[Pending, ...] = ()
    _names: dict[str, int] = field(default_factory=dict)
    _entries: tuple[Entry, ...] = ()
    _count: int = 0

    @property
    def position(self) -> int:
        """The number of cuts so far: what is told now is known at every later one."""
        return len(self.cuts)

    def put(self, image: dict[str, bytes]) -> None:
        """Have these files on the medium from the start."""
        for name, content in image.items():
            self._count += 1
            self._synced[self._count] = content
            self._names[name] = self._count

    def find(self, name: str) -> int | None:
        """Return the file that has this name now."""
        file = self._names.get(name)
        for entry in self._entries:
            if entry.name == name:
                file = entry.file
        return file

    def create(self, name: str) -> int:
        """Make an empty file."""
        self._count += 1
        self._synced[self._count] = b""
        self._entries += (Entry(name, self._count),)
        self.cut(f"create {name}")
        return self._count

    def delete(self, name: str) -> None:
        """Take a name away."""
        self._entries += (Entry(name, None),)
        self.cut(f"delete {name}")

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Write bytes."""
        self._pending += (Write(file, offset, data),)
        self.bytes_written += len(data)
        self.cut(f"write {len(data)} at {offset} of {self.name_of(file)}")

    def truncate(self, file: int, size: int) -> None:
        """Set a file's size."""
        self._pending += (Truncation(file, size),)
        self.cut(f"truncate {self.name_of(file)} to {size}")

    def sync(self, file: int) -> None:
        """Put a file's bytes on the medium, but for what an earlier sync has failed on."""
        self.syncs += 1
        if not self.ignores_syncs:
            mine = [change for change in self._pending if change.file == file]
            content = bytearray(self._synced[file])
            left: list[Pending] = []
            for change in mine:
                if change.orphan:
                    left.append(change)
                else:
                    applied(content, change)
                    left = [rest for each in left for rest in _without(each, change)]
            self._synced[file] = bytes(content)
            self._pending = (
                *left,
                *(change for change in self._pending if change.file != file),
            )
        self.cut(f"sync {self.name_of(file)}")

    def fail_to_sync(self, file: int) -> None:
        """Report an error of the disk: what is pending now no later sync will answer for."""
        self._pending = tuple(
            replace(change, orphan=True) if change.file == file else change
            for change in self._pending
        )
        self.cut(f"fail to sync {self.name_of(file)}")

    def sync_names(self) -> None:
        """Put the folder's names on the medium."""
        if not self.ignores_syncs:
            for entry in self._entries:
                if entry.file is None:
                    self._names.pop(entry.name, None)
                else:
                    self._names[entry.name] = entry.file
            self._entries = ()
        self.cut("sync the folder")

    def cut(self, what: str) -> int:
        """Keep how things stand now; return its position."""
        cut = Cut(
            self.position,
            what,
            dict(self._synced),
            self._pending,
            dict(self._names),
            self._entries,
        )
        self.cuts.append(cut)
        return cut.position

    def name_of(self, file: int) -> str:
        """Return a name that the file has or had."""
        for entry in self._entries:
            if entry.file == file:
                return entry.name
        return next((name for name, each in self._names.items() if each == file), "?")

    def contents(self) -> dict[str, bytes]:
        """Return every file as the system shows it now."""
        found: dict[str, bytes] = {}
        for name in {*self._names, *(entry.name for entry in self._entries)}:
            file = self.find(name)
            if file is not None:
                content = bytearray(self._synced[file])
                for change in self._pending:
                    if change.file == file:
                        applied(content, change)
                found[name] = bytes(content)
        return found


def _without(old: Pending, new: Pending) -> list[Pending]:
    """Return what of a doubtful change a later, synced one has not replaced."""
    if isinstance(new, Truncation):
        if isinstance(old, Truncation) or old.offset >= new.size:
            return []
        return [replace(old, data=old.data[: new.size - old.offset])]
    if isinstance(old, Truncation):
        return [old] if old.size >= new.end else []
    rest: list[Pending] = []
    if old.offset < new.offset:
        rest.append(replace(old, data=old.data[: new.offset - old.offset]))
    if old.end > new.end:
        skip = max(0, new.end - old.offset)
        rest.append(replace(old, offset=old.offset + skip, data=old.data[skip:]))
    return [each for each in rest if isinstance(each, Write) and each.data]
