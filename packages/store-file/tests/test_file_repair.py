"""Repair: seen first, then backed up, quarantined and kept, and never a record invented."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rulvar.cli.main import main
from rulvar.core.errors import ConfigError, StoreError, StoreInUseError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.testing import ManualClock
from rulvar.stores.file import DamagedJournalError, FileJournalStore, FileStores
from rulvar.stores.file.lines import encode_line
from rulvar.stores.file.repair import find_damage, repair_damage
from rulvar.stores.file.testing import FAULT_KINDS, FaultyFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.stores.file.testing import FaultKind


def record(seq: int, rest: str = "") -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq}{rest}}}'.encode())


def line(seq: int) -> bytes:
    return encode_line(record(seq))


DAMAGED = {
    "undecodable": (line(0) + b'{"seq":1,"v":\xff}\n' + line(2), [0, 2], ["undecodable"]),
    "two": (
        line(0) + b"one\n" + line(2) + b"{}\n" + line(4),
        [0, 2, 4],
        ["undecodable", "no-record"],
    ),
    "nul-run": (line(0) + b"\0" * 40 + b"\n" + line(2), [0, 2], ["nul-run"]),
    "joined whole": (line(0) + b'{"seq":1}{"seq":2}\n' + line(3), [0, 1, 2, 3], ["joined"]),
    "joined torn": (line(0) + b'{"seq":1,"v{"seq":2}\n' + line(3), [0, 2, 3], ["joined"]),
    "joined unsure": (line(0) + b'{"seq":1,"v":{"seq":2}\n' + line(3), [0, 3], ["joined"]),
    "one number": (line(0) + line(900) + line(1) + line(2), [0, 1, 2], ["out-of-order"]),
    "twice": (line(0) + line(1) + line(1) + line(2), [0, 1, 2], ["out-of-order"]),
    "and torn": (b"x\n" + line(1) + b'{"seq":2', [1], ["undecodable", "torn"]),
    "all": (b"x\n", [], ["undecodable"]),
    "an end that ends": (line(0) + b'{"seq":1,"v\n', [0], ["undecodable"]),
}


def quick(root: Path) -> FileJournalStore:
    return FileJournalStore(root, filesystem=FaultyFileSystem())


def make(root: Path, image: bytes) -> Path:
    with quick(root) as store:
        if not store.load("sound"):
            store.append("sound", record(0))
    path = root / "journals" / "run.jsonl"
    path.write_bytes(image)
    return path


@pytest.mark.parametrize("name", DAMAGED)
def test_what_can_be_read_is_kept_and_the_rest_laid_aside(tmp_path: Path, name: str) -> None:
    image, kept, kinds = DAMAGED[name]
    root = tmp_path / "store"
    path = make(root, image)
    with FileJournalStore(root, read_only=True) as store, pytest.raises(DamagedJournalError):
        store.load("run")
    (seen,) = find_damage(root)
    assert path.read_bytes() == image
    assert (seen.run_id, seen.part, seen.kept, seen.backup) == ("run", "journal", len(kept), None)
    assert sorted(piece.kind for piece in seen.pieces) == sorted(kinds)
    (done,) = repair_damage(root)
    assert done.pieces == seen.pieces
    with quick(root) as store:
        assert [each.seq for each in store.load("run")] == kept
        store.append("run", record(1000))
        assert [each.seq for each in store.load("run")] == [*kept, 1000]
        assert store.load("sound") == [record(0)]
    assert find_damage(root) == []
    assert done.backup is not None
    assert done.quarantine is not None
    assert (root / "backups" / done.backup).read_bytes() == image
    documents = [json.loads(each) for each in (root / done.quarantine).read_text().splitlines()]
    assert [each["kind"] for each in documents] == [piece.kind for piece in seen.pieces]
    assert all(each["runId"] == "run" for each in documents)


def test_a_torn_end_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root, line(0) + b'{"seq":1,"v')
    assert find_damage(root) == []
    assert repair_damage(root) == []
    assert list((root / "backups").iterdir()) == []


def test_a_row_is_repaired_too_and_only_the_runs_that_are_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root, b"x\n")
    with quick(root) as store:
        store.put_meta(RunMeta(run_id="other", status="ok", updated_at="now"))
    (root / "rows" / "other.json").write_bytes(b'{"status":1}')
    assert [(each.run_id, each.part) for each in find_damage(root)] == [
        ("other", "row"),
        ("run", "journal"),
    ]
    (done,) = repair_damage(root, ["other"])
    assert (done.run_id, done.part) == ("other", "row")
    with quick(root) as store:
        assert store.get_meta("other") is None
    assert [each.run_id for each in find_damage(root)] == ["run"]
    with pytest.raises(ConfigError):
        find_damage(root, ["a/b"])


class BadSector(FaultyFileSystem):
    """One journal gives no bytes."""

    def open(self, path: str, flags: int, /) -> int:
        if path.endswith("bad.jsonl"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().open(path, flags)


def test_a_file_that_gives_no_bytes_hides_no_other_s_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with quick(root) as store:
        for run_id in ("bad", "link", "other"):
            store.append(run_id, record(0))
        store.put_meta(RunMeta(run_id="link", status="ok", updated_at="now"))
    (root / "rows" / "link.json").unlink()
    (root / "rows" / "link.json").symlink_to(root / "store.json")
    path = make(root, DAMAGED["two"][0])
    (root / "journals" / "other.jsonl").write_bytes(b"x\n")
    expected = [("bad", "journal"), ("link", "row"), ("other", "journal"), ("run", "journal")]
    seen = find_damage(root, filesystem=BadSector())
    assert [(each.run_id, each.part) for each in seen] == expected
    assert [each.is_unreadable for each in seen] == [True, True, False, False]
    done = repair_damage(root, filesystem=BadSector())
    assert [(each.run_id, each.part) for each in done] == expected
    assert [each.backup is None for each in done] == [True, True, False, False]
    assert path.read_bytes() == line(0) + line(2) + line(4)
    assert (root / "rows" / "link.json").is_symlink()
    # The bad sector is gone, the link is there: that is said, and is no success.
    told = CliRunner().invoke(
        main, ("runs", "repair-file", "--store", f"file:///{root}", "--apply")
    )
    assert told.exit_code == 1
    assert "'link': its row is damaged" in told.stdout
    assert "unreadable, 0 bytes: is a symbolic link" in told.stdout
    assert "it was not changed: check the disk" in told.stdout


def test_backups_never_replace_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()  # all within the same millisecond
    monkeypatch.setattr("rulvar.stores.file.store.SystemClock", lambda: clock)
    root = tmp_path / "store"
    images = [b"first\n", b"second\n", b"third\n"]
    for image in images:
        make(root, image)
        repair_damage(root)
    for folder, count in (("backups", 3), ("quarantine", 3)):
        assert len(list((root / folder).iterdir())) == count
    found = [each.read_bytes() for each in (root / "backups").iterdir()]
    assert sorted(found) == sorted(images)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_repair_that_is_cut_short_loses_nothing_and_can_be_repeated(
    tmp_path: Path, kind: FaultKind
) -> None:
    image, kept, _ = DAMAGED["two"]
    at = 0
    files = None
    while files is None or files.fired:
        at += 1
        root = tmp_path / str(at)
        path = make(root, image)
        files = FaultyFileSystem(kind, at=at, for_ever=True)
        with suppress(StoreError):  # and nothing but an error of the tree
            repair_damage(root, filesystem=files)
        backups = [each.read_bytes() for each in (root / "backups").iterdir()]
        assert path.read_bytes() == image or image in backups
        repair_damage(root, filesystem=FaultyFileSystem())
        with quick(root) as store:
            assert [each.seq for each in store.load("run")] == kept
        assert image in [each.read_bytes() for each in (root / "backups").iterdir()]


def test_the_command_looks_first_and_repairs_when_told(tmp_path: Path) -> None:
    root = tmp_path / "store"
    path = make(root, DAMAGED["two"][0])
    store = ("--store", f"file:///{root}")
    seen = CliRunner().invoke(main, ("runs", "repair-file", *store))
    assert seen.exit_code == 1
    assert "position 1 (byte 10): undecodable" in seen.stdout
    assert "records that can be kept: 3" in seen.stdout
    assert "nothing was changed: add --apply" in seen.stdout
    assert path.read_bytes() == DAMAGED["two"][0]
    machine = CliRunner().invoke(main, ("runs", "repair-file", *store, "--json"))
    document = json.loads(machine.stdout)
    assert (document["applied"], len(document["damage"][0]["pieces"])) == (False, 2)
    with FileStores(root):
        beside = CliRunner().invoke(main, ("runs", "repair-file", *store))
        assert beside.exit_code == 1
        refused = CliRunner().invoke(main, ("runs", "repair-file", *store, "--apply"))
        assert refused.exit_code == 5
        assert "open for writing by process" in refused.stderr
    done = CliRunner().invoke(main, ("runs", "repair-file", *store, "--apply", "--run", "run"))
    assert done.exit_code == 0
    assert "repaired; as it was:" in done.stdout
    assert CliRunner().invoke(main, ("runs", "repair-file", *store)).stdout == "no damage\n"


@pytest.mark.parametrize("url", ["sqlite:///runs.db", "file://", "runs"])
def test_the_command_refuses_what_is_no_file_store(url: str) -> None:
    result = CliRunner().invoke(main, ("runs", "repair-file", "--store", url))
    assert result.exit_code == 2


def test_repair_needs_the_folder_to_itself(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root, b"x\n")
    with FileStores(root), pytest.raises(StoreInUseError):
        repair_damage(root)
