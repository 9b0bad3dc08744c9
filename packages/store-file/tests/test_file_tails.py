"""Crash images of the end of a journal: every byte offset, and what else a crash leaves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import JournalOrderViolation
from rulvar.core.records import JournalRecord
from rulvar.stores.file import DamagedJournalError, FileJournalStore
from rulvar.stores.file.lines import encode_line
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from pathlib import Path


def record(seq: int, rest: str = "") -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq}{rest}}}'.encode())


EARLIER = [record(0), record(1, ',"v":"é"'), record(4, ',"v":{"seq":9}')]
LAST = {
    "short": record(5),
    "nested": record(5, ',"v":[{"seq":6},{"seq":7,"w":"}{\\"seq\\":8}"}],"x":null'),
    "text": record(5, ',"kind":"step","value":"' + "häßlich\\n\U0001f600 " * 26 + '"'),
    "broken over lines": JournalRecord(seq=5, payload=b'{\n  "seq": 5,\n  "v": [1, {"a": "b"}]\n}'),
}
NEXT = record(8, ',"value":"next"')


class Journal:
    """One journal file, put into a state and then used by store after store."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.open().close()
        self.path = self.root / "journals" / "run.jsonl"

    def open(self, *, read_only: bool = False) -> FileJournalStore:
        return FileJournalStore(self.root, read_only=read_only, filesystem=FaultyFileSystem())

    def load(self, *, read_only: bool = False) -> list[JournalRecord]:
        with self.open(read_only=read_only) as store:
            return list(store.load("run"))

    def append(self, entry: JournalRecord) -> None:
        with self.open() as store:
            store.append("run", entry)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each for each in caplog.records if each.name == "rulvar.stores.file"]
    assert all(each.levelno == logging.WARNING for each in found)
    return [vars(each)["tail_kind"] for each in found]


def whole(earlier: list[JournalRecord]) -> bytes:
    return b"".join(map(encode_line, earlier))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_every_offset_of_the_last_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    journal = Journal(tmp_path)
    last = encode_line(LAST[name])
    images = 0
    for cut in range(len(last) + 1):
        kept = [*EARLIER, LAST[name]] if cut >= len(last) - 1 else EARLIER
        expected = {0: [], len(last) - 1: ["unended"], len(last): []}.get(cut, ["torn"])
        for nuls in (0, len(last) - cut, 4096):
            image = whole(EARLIER) + last[:cut] + b"\0" * nuls
            caplog.clear()
            journal.path.write_bytes(image)
            assert journal.load(read_only=True) == kept
            assert journal.path.read_bytes() == image
            assert reports(caplog) == []
            journal.append(NEXT)
            assert journal.load() == [*kept, NEXT]
            assert reports(caplog) == (["nul-run"] if nuls else expected)
            assert journal.path.read_bytes() == whole([*kept, NEXT])
            images += 1
    assert images == 3 * (len(last) + 1)


def refusal_of(journal: Journal, entry: JournalRecord) -> DamagedJournalError | None:
    try:
        journal.append(entry)
    except DamagedJournalError as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_a_record_that_was_written_behind_a_torn_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    journal = Journal(tmp_path)
    last = encode_line(LAST[name])[:-1]
    unsure = 0
    for cut in range(1, len(last) + 1):
        kept = [*EARLIER, LAST[name]] if cut == len(last) else EARLIER
        image = whole(EARLIER) + last[:cut] + encode_line(NEXT)
        caplog.clear()
        journal.path.write_bytes(image)
        refusal = refusal_of(journal, record(9))
        if refusal is not None:
            # Where a value may follow, what stands there may be a part of the torn record.
            assert (refusal.kind, refusal.position) == ("joined", len(EARLIER))
            assert journal.path.read_bytes() == image
            unsure += 1
            continue
        assert journal.load() == [*kept, NEXT, record(9)]
        assert journal.path.read_bytes() == whole([*kept, NEXT, record(9)])
        assert reports(caplog) == ["joined"]
    assert unsure < len(last) / 4


def test_there_are_two_thousand_crash_images() -> None:
    lengths = [len(encode_line(last)) for last in LAST.values()]
    assert sum(3 * (length + 1) + length - 1 for length in lengths) >= 2_000


def test_a_reading_writer_reports_and_puts_right_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    journal.path.write_bytes(whole(EARLIER) + b'{"seq":5,"v')
    with journal.open() as store:
        assert store.load("run") == EARLIER
        assert store.load("run") == EARLIER
        assert store.load_after("run", 0, 10) == EARLIER[1:]
    assert journal.load() == EARLIER
    assert reports(caplog) == ["torn"]
    assert journal.path.read_bytes() == whole(EARLIER)


def test_a_journal_of_one_torn_record_is_empty(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for image in (b"", b"{", b'{"seq":0', b"\0\0"):
        journal.path.write_bytes(image)
        assert journal.load(read_only=True) == []
        journal.append(record(0))
        assert journal.load() == [record(0)]


def test_the_guard_knows_the_true_tail_after_a_crash(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for image, tail in (
        (whole(EARLIER) + b'{"seq":5,"v', 4),
        (whole(EARLIER) + b'{"seq":5}', 5),
        (whole(EARLIER) + b'{"seq":5}{"seq":6}\n', 6),
    ):
        journal.path.write_bytes(image)
        with journal.open() as store, pytest.raises(JournalOrderViolation) as caught:
            store.append("run", record(tail))
        assert caught.value.tail_seq == tail


def test_the_guard_sees_what_another_hand_wrote(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.open() as store:
        for each in EARLIER:
            store.append("run", each)
        with journal.path.open("ab") as file:
            file.write(encode_line(record(7)))
        with pytest.raises(JournalOrderViolation) as caught:
            store.append("run", record(7))
        assert caught.value.tail_seq == 7
        store.append("run", record(8))
        assert store.load("run") == [*EARLIER, record(7), record(8)]


DAMAGE = {
    "undecodable": b'{"seq":1,"v"\n',
    "no-record": b'{"sxq":1}\n',
    "nul-run": b"\0\0\0\0\n",
    "joined": b'{"seq":1}{"seq":2}\n',
    "out-of-order": b'{"seq":0}\n',
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("read_only", [False, True])
def test_damage_in_the_middle_is_never_silent(tmp_path: Path, kind: str, read_only: bool) -> None:
    journal = Journal(tmp_path)
    image = encode_line(record(0)) + DAMAGE[kind] + whole([record(5), record(6), record(7)])
    journal.path.write_bytes(image)
    with journal.open(read_only=read_only) as store:
        with pytest.raises(DamagedJournalError) as caught:
            store.load("run")
        assert (caught.value.run_id, caught.value.position) == ("run", 1)
        assert caught.value.kind == kind
        assert "run 'run'" in str(caught.value)
        assert "position 1" in str(caught.value)
        assert kind in str(caught.value)
        with pytest.raises(DamagedJournalError):
            store.load_after("run", -1, 100)
        # What stands behind the damage, and reads no further, is as good as ever.
        assert store.load("other") == []
    assert journal.path.read_bytes() == image


def test_a_damaged_end_refuses_appends_and_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    image = whole(EARLIER) + b'{"seq":5,"v":"acknow?edged"]\n'
    journal.path.write_bytes(image)
    with journal.open() as store, pytest.raises(DamagedJournalError) as caught:
        store.append("run", NEXT)
    assert (caught.value.position, caught.value.kind) == (3, "undecodable")
    assert journal.path.read_bytes() == image


class CountingFileSystem(FaultyFileSystem):
    """Counts the bytes that are read."""

    bytes_read = 0

    def read(self, descriptor: int, size: int, offset: int, /) -> bytes:
        data = super().read(descriptor, size, offset)
        self.bytes_read += len(data)
        return data


def test_an_append_and_a_tail_read_no_whole_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    filler = "x" * 1000
    journal.path.write_bytes(whole([record(seq, f',"v":"{filler}"') for seq in range(2000)]))
    files = CountingFileSystem()
    with FileJournalStore(journal.root, filesystem=files) as store:
        opening = files.bytes_read
        store.append("run", record(2000))
        assert files.bytes_read - opening <= 64 * 1024
        seen = files.bytes_read
        for seq in range(2001, 2051):
            store.append("run", record(seq))
        assert files.bytes_read == seen
        assert [each.seq for each in store.load_after("run", 2048, 10)] == [2049, 2050]
        assert [each.seq for each in store.load_after("run", 1990, 3)] == [1991, 1992, 1993]
        assert files.bytes_read - seen < 400_000
        assert len(store.load_after("run", -1, 10_000)) == 2051
