"""Power loss: what a cut leaves holds what was acknowledged; and the recorder misses nothing."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import power_loss
from power_disk import Disk
from power_images import KEPT, LOST, Fate, Plan, build, plans
from power_observe import DATABASE, observe
from power_scribe import recording
from power_sweep import Tally, record
from power_workloads import FULL_ONLY, WORKLOADS, birth, checkpoints

from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from power_disk import Cut
    from power_scribe import Scribe
    from power_sweep import Recording

    from rulvar.stores.sqlite.connection import Durability

IMAGES = 500
SEED = 20_260_101


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: no sync of these files means anything."""
    with power_loss.folder_in_memory() as folder:
        yield folder


@pytest.mark.storm
def test_every_image_holds_what_was_acknowledged(tmp_path: Path) -> None:
    tallies = power_loss.run(power_loss.Options(images=IMAGES, seed=SEED), tmp_path)
    print("\n".join(power_loss.table(tallies)))  # noqa: T201 - shown when the test fails
    assert [str(finding) for tally in tallies for finding in tally.findings] == []
    assert sum(tally.distinct for tally in tallies) >= IMAGES
    for tally in tallies:
        assert tally.consistent == tally.opened == tally.distinct > 0
        assert tally.points > 100
    full = {tally.workload for tally in tallies if tally.durability == "full"}
    normal = {tally.workload for tally in tallies if tally.durability == "normal"}
    assert full >= set(WORKLOADS)
    assert normal >= set(WORKLOADS) - FULL_ONLY
    assert sum(tally.refused for tally in tallies) > 40
    # The setting that may lose something is seen to lose it, and the other one is not.
    assert sum(tally.lossy for tally in tallies if tally.durability == "normal") > 10
    assert sum(tally.lossy for tally in tallies if tally.durability == "full") == 0


@pytest.mark.slow
def test_the_command_prints_json_and_refuses_what_cannot_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--images", "6", "--seed", "5", "--workload", "birth", "--json"]
    assert power_loss.main(options) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["seed"] == 5
    assert document["distinct"] == document["consistent"] >= 6
    for wrong in (["--images", "0"], ["--durability", "normal", "--workload", "sick_disk"]):
        with pytest.raises(SystemExit) as left:
            power_loss.main(wrong)
        assert left.value.code == 2


def test_where_no_image_was_looked_at_is_no_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(recorded: Recording, *_given: object, **_options: object) -> Tally:
        return Tally(recorded.name, recorded.durability)

    monkeypatch.setattr(power_loss, "sweep", blind)
    options = ["--images", "6", "--seed", "5", "--workload", "leases", "--durability", "full"]
    assert power_loss.main(options) == 1
    assert "NOTHING LOOKED AT in leases at full" in capsys.readouterr().out
    assert power_loss.main([*options, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


# --- the recorder -----------------------------------------------------------------------------

HASHES = """
import hashlib, os, sys
for name in sorted(os.listdir(sys.argv[1])):
    if not name.endswith("-shm"):
        with open(os.path.join(sys.argv[1], name), "rb") as file:
            print(name, hashlib.sha256(file.read()).hexdigest())
"""


def hashes_on_disk(folder: Path) -> list[str]:
    """Hash the files in another process: a handle closed in this one would drop its locks."""
    done = subprocess.run(
        [sys.executable, "-c", HASHES, str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_recorder_sees_every_byte(name: str, tmp_path: Path) -> None:
    with recording(tmp_path / "real", "full") as scribe:
        WORKLOADS[name](scribe)
        told = [
            f"{file} {hashlib.sha256(content).hexdigest()}"
            for file, content in sorted(scribe.disk.contents().items())
        ]
        assert told == hashes_on_disk(scribe.folder)
        assert len(told) == 2
        scribe.close()
        assert set(scribe.disk.contents()) == {DATABASE}
    assert hashes_on_disk(tmp_path / "real")[0].split()[0] == DATABASE


@pytest.fixture
def opened_folders() -> Iterator[list[str]]:
    """Note what SQLite's file system does when it opens a folder, which it does to sync it."""
    vfs = apsw.VFS("rulvar-power-looks", apsw.vfs_names()[0])
    real = vfs.xGetSystemCall("openDirectory")
    assert real is not None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    noted: list[str] = []

    def opening(path: bytes, descriptor: object) -> int:
        noted.append(Path(path.decode()).name)
        return int(kind(real)(path, descriptor))

    callback = kind(opening)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    assert vfs.xSetSystemCall("openDirectory", address)
    yield noted
    assert vfs.xSetSystemCall("openDirectory", real)
    vfs.unregister()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no folders to sync there")
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_the_folder_is_synced_where_the_recorder_says(
    durability: Durability, opened_folders: list[str], tmp_path: Path
) -> None:
    with recording(tmp_path / "real", durability) as scribe:
        birth(scribe)
        checkpoints_after_birth = scribe.open("last")
        checkpoints_after_birth.append("new")
        scribe.close()
        told = sum(cut.what == "sync the folder" for cut in scribe.disk.cuts)
    assert len(opened_folders) == told > 3
    assert set(opened_folders) == {f"{DATABASE}-journal", f"{DATABASE}-wal"}


# --- the model of the disk --------------------------------------------------------------------


def image(cut: Cut, fates: tuple[Fate, ...], names: tuple[tuple[str, int], ...] = ()) -> bytes:
    built = build(cut, Plan("test", fates, names), random.Random(1), shared_memory="shm")
    return built["a"]


def disk_with(content: bytes) -> Disk:
    disk = Disk()
    disk.put({"a": content})
    return disk


def test_what_was_synced_is_there_and_the_rest_has_its_own_fate() -> None:
    disk = disk_with(b"....")
    file = disk.find("a")
    assert file is not None
    disk.write(file, 0, b"AB")
    disk.sync(file)
    disk.write(file, 2, b"CD")
    disk.write(file, 6, b"EF")
    disk.truncate(file, 1)
    cut = disk.cuts[-1]
    assert image(cut, (LOST, LOST, LOST)) == b"AB.."
    assert image(cut, (LOST, KEPT, LOST)) == b"AB..\0\0EF"
    assert image(cut, (KEPT, LOST, LOST)) == b"ABCD"
    assert image(cut, (Fate(((1, 2),)), LOST, LOST)) == b"AB.D"
    assert image(cut, (KEPT, KEPT, KEPT)) == b"A"
    grown = Plan("test", (KEPT, LOST, LOST), (), growth="zeros")
    assert build(cut, grown, random.Random(1), shared_memory="shm")["a"] == b"ABCD\0\0\0\0"


def test_a_failed_sync_is_never_made_good_but_by_writing_again() -> None:
    disk = disk_with(b"........")
    file = disk.find("a")
    assert file is not None
    disk.write(file, 0, b"ABCDEF")
    disk.fail_to_sync(file)
    disk.write(file, 2, b"xy")
    disk.sync(file)
    cut = disk.cuts[-1]
    assert [change.orphan for change in cut.pending] == [True, True]
    assert image(cut, (LOST, LOST)) == b"..xy...."
    assert image(cut, (KEPT, LOST)) == b"ABxy...."
    assert image(cut, (KEPT, KEPT)) == b"ABxyEF.."


def test_names_arrive_in_their_order_and_the_folders_sync_keeps_them() -> None:
    disk = disk_with(b"old")
    disk.delete("a")
    file = disk.create("a")
    disk.write(file, 0, b"new")
    disk.sync(file)
    cut = disk.cuts[-1]
    assert image(cut, (), (("a", 0),)) == b"old"
    gone = build(cut, Plan("", (), (("a", 1),)), random.Random(1), shared_memory="shm")
    assert gone == {}
    assert image(cut, (), (("a", 2),)) == b"new"
    disk.sync_names()
    assert image(disk.cuts[-1], ()) == b"new"


@pytest.mark.parametrize("powersafe", [True, False])
def test_a_torn_write_changes_nothing_beside_it_unless_the_disk_is_unsafe(
    powersafe: bool,
) -> None:
    before, new = bytes(12_000), b"\1" * 5_000
    disk = disk_with(before)
    file = disk.find("a")
    assert file is not None
    disk.write(file, 3_000, new)
    source = random.Random(3)
    seen = set()
    beside = 0
    for plan, _ in zip(plans(disk.cuts[-1], source, powersafe=powersafe), range(400), strict=False):
        built = build(disk.cuts[-1], plan, source, shared_memory="shm")["a"]
        assert len(built) == len(before)
        beside += built[:3_000] != before[:3_000] or built[8_000:] != before[8_000:]
        seen.add(built)
    assert (beside == 0) is powersafe
    assert len(seen) > 50


# --- what power loss has taught the store -------------------------------------------------------


EARLIER = 6


def first_life(scribe: Scribe) -> None:
    """Fill some pages, so that what differs between two appends is not written first."""
    hand = scribe.open("first")
    for _ in range(EARLIER):
        hand.append("run", size=2_500)
    hand.acquire("run")
    hand.append("run")


def second_life(scribe: Scribe) -> None:
    """Write what the first life was writing when the power went, with another payload."""
    scribe.seqs["run"] = EARLIER - 1
    scribe.open("second").append("run")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_lost_commit_does_not_come_back_with_the_next_cut(
    durability: Durability, tmp_path: Path
) -> None:
    """Frames of a lost commit lie behind the end of the log; a new commit begins as it did."""
    first = record("first", first_life, tmp_path / "first", durability)
    begun, answered = (
        next(cut.position for cut in first.cuts if cut.what.startswith(f"{what} append seq 6"))
        for what in ("begin", "answer")
    )
    cut = max(first.cuts[begun:answered], key=lambda each: len(each.pending))
    assert len(cut.pending) >= 8
    plan = Plan("the first frame was lost", (LOST, LOST, *(KEPT,) * (len(cut.pending) - 2)), ())
    lost = build(cut, plan, random.Random(1), shared_memory="shm")
    found = observe(lost, tmp_path / "looked", ["run"])
    assert found.problem is None
    assert len(found.states["run"].journal) == EARLIER
    second = record(
        "second", second_life, tmp_path / "second", durability, before=(lost, found.states)
    )
    assert len(second.cuts) > 8
    for number, each in enumerate(second.cuts):
        left = dict.fromkeys((entry.name for entry in each.entries), 0)
        for entry in each.entries:
            left[entry.name] += 1
        kept = Plan("everything", (KEPT,) * len(each.pending), tuple(left.items()))
        again = observe(
            build(each, kept, random.Random(1), shared_memory="shm"),
            tmp_path / f"again-{number}",
            ["run"],
        )
        verdict = second.judge.verdict(again, each.position)
        assert [str(violation) for violation in verdict.violations] == [], each.what


@pytest.mark.parametrize("what", ["BEGIN IMMEDIATE", "BEGIN; SELECT count(*) FROM entries"])
def test_opening_waits_for_nobody_to_begin_the_log_anew(what: str, tmp_path: Path) -> None:
    """A writer or a reader is at work on a log that is not empty: the store opens beside it."""
    path = tmp_path / DATABASE
    with SqliteStore(path) as first:
        first.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
        other = apsw.Connection(str(path))
        other.execute(what).fetchall()
        with SqliteStore(path, open_timeout_ms=0) as second:
            assert len(second.load("run")) == 1
        other.execute("ROLLBACK")
        other.close()
        assert len(first.load("run")) == 1


@pytest.mark.parametrize("sick", [False, True])
def test_a_log_that_was_left_begins_anew_and_a_sick_disk_can_still_be_read(
    sick: bool, tmp_path: Path
) -> None:
    first = record("first", first_life, tmp_path / "first", "full")
    cut = next(each for each in reversed(first.cuts) if each.what.startswith("answer"))
    left = build(cut, Plan("nothing", (), ()), random.Random(1), shared_memory="shm")
    with recording(tmp_path / "second", "full", before=(left, {})) as scribe:
        scribe.recorder.failing_database_syncs = int(sick)
        with SqliteStore(scribe.folder / DATABASE) as store:
            assert len(store.load("run")) == EARLIER + 1
            log = scribe.disk.contents()[f"{DATABASE}-wal"]
            assert bool(log) is sick
            store.append("run", JournalRecord(seq=99, payload=b'{"seq":99}'))


def test_the_workloads_do_what_they_are_for(tmp_path: Path) -> None:
    with recording(tmp_path / "real", "full") as scribe:
        checkpoints(scribe)
        what = [cut.what for cut in scribe.disk.cuts]
    assert what.count(f"truncate {DATABASE}-wal to 0") >= 1
    assert sum(text.startswith("write 32 at 0 of") for text in what) >= 4
    assert sum(text.startswith("write 4096") and text.endswith(DATABASE) for text in what) > 20
