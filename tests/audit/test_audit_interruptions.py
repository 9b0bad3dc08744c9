"""Verdicts that a real interruption leaves behind in a SQLite file, and their repair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core.audit import audit_run, audit_runs, reconcile_run_meta, repair_runs
from rulvar.core.journal import last_settle, read_journal
from rulvar.core.wire import parse_time
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rulvar.core.spi import RunMeta

PROCESS = Path(__file__).with_name("audit_process.py")
TTL_MS = 600


class Pair:
    """A store and its twin."""

    def __init__(self, path: Path) -> None:
        self.journal = SqliteStore(path, lease_ttl_ms=TTL_MS)
        self.transcripts = self.journal.transcripts()

    def row(self) -> RunMeta:
        found = self.journal.get_meta("r")
        assert found is not None
        return found

    def until_nobody_holds_it(self) -> None:
        """Wait for the lease of whoever died to run out."""
        give_up_at = time.monotonic() + 60
        while (lease := self.journal.get_lease("r")) is not None and lease.live:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


class Player:
    """One process over the file."""

    def __init__(self, path: Path, *arguments: str) -> None:
        url = f"sqlite:///{path}?lease_ttl_ms={TTL_MS}"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROCESS), "--store", url, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hear(self, kind: str) -> dict[str, object]:
        """Wait for a report of this kind, past the steps that were executed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = cast("dict[str, object]", json.loads(line))
            if told["kind"] == kind:
                return told
            assert told["kind"] == "executed", told
        pytest.fail(f"it ended without {kind!r}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def dies(self) -> None:
        assert self.process.wait(60) == -signal.SIGKILL

    def kill(self) -> None:
        self.process.kill()
        self.dies()


class Stage:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.db"
        self.players: list[Player] = []
        self.pair = Pair(self.path)

    def player(self, *arguments: str) -> Player:
        player = Player(self.path, *arguments)
        self.players.append(player)
        return player

    def put_away(self) -> None:
        for player in self.players:
            player.process.kill()
            player.process.wait()
            for stream in (player.process.stdin, player.process.stdout):
                assert stream is not None
                stream.close()
        self.pair.journal.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.put_away()


RUN_SQL = "import apsw, sys; c = apsw.Connection(sys.argv[1]); [c.execute(s) for s in sys.argv[2:]]"


def run_sql(stage: Stage, *statements: str) -> None:
    """Change the file as no store would: in another process, for its locks' sake."""
    command = [sys.executable, "-c", RUN_SQL, str(stage.path), *statements]
    subprocess.run(command, check=True, timeout=60)


ADD_UNKNOWN_MEMBER = """
UPDATE meta SET payload = rtrim(payload, '}') || ',"cost": 1.50 }' WHERE run_id = 'r'
"""


def members(row: RunMeta) -> dict[str, object]:
    names = set(type(row).__dataclass_fields__) - {"status", "updated_at"}
    return {name: getattr(row, name) for name in names}


# --- meta-behind --------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize(
    ("names", "status"), [(["one"], "ok"), (["one", "fails"], "error"), (["asks"], "suspended")]
)
def test_killed_between_the_settle_and_the_row(stage: Stage, names: list[str], status: str) -> None:
    pair = stage.pair
    stage.player(*names, "--kill", "before-the-settled-row").dies()
    # Its lease still lives: nobody can know yet that it is dead.
    owned = audit_run(pair, "r")
    assert (owned.verdict, owned.holder is not None) == ("owned", True)
    assert reconcile_run_meta(pair, "r").outcome == "skipped"
    pair.until_nobody_holds_it()

    run_sql(stage, ADD_UNKNOWN_MEMBER)
    before, journal = pair.row(), pair.journal.load("r")
    assert before.extra == {"cost": "1.50"}
    audit = audit_run(pair, "r")
    assert (audit.verdict, audit.row_status, audit.journal_status) == (
        "meta-behind",
        "running",
        status,
    )
    repair = reconcile_run_meta(pair, "r")
    assert (repair.outcome, repair.after.verdict) == ("repaired", "consistent")
    after = pair.row()
    settle = last_settle(read_journal("r", journal))
    assert settle is not None
    assert (after.status, after.updated_at) == (status, settle.settled_at)
    assert members(after) == members(before)
    assert pair.journal.load("r") == journal
    assert [audit.verdict for audit in audit_runs(pair)] == ["consistent"]

    # The next segment finds the run as it is, and executes nothing of what was done.
    again = stage.player(*names).hear("ended")
    assert (again["status"], again["executed"]) == (status, 0)


# --- stranded -----------------------------------------------------------------------------


def stale_settle(stage: Stage, *options: str) -> Player:
    """Have a settled segment freeze before its row, its run retried by one that is killed.

    Then the first one wakes up and writes its row, or tries to.
    """
    stalled = stage.player("one", "fails", "--pause", "before-the-settled-row", *options)
    stalled.hear("paused")
    stalled.process.send_signal(signal.SIGSTOP)
    stage.pair.until_nobody_holds_it()
    successor = stage.player("--retry", "--mended", "--pause", "fails", *options)
    # It runs the step again that failed: from here on there is live work in the journal.
    successor.hear("executed")
    assert stage.pair.row().status == "running"
    successor.kill()
    stalled.process.send_signal(signal.SIGCONT)
    stalled.go()
    return stalled


@pytest.mark.storm
def test_a_stale_terminal_row_over_live_work_without_the_marker(stage: Stage) -> None:
    pair = stage.pair
    stalled = stale_settle(stage, "--unfenced")
    stalled.process.wait(60)
    assert pair.row().status == "error"
    pair.until_nobody_holds_it()
    audit = audit_run(pair, "r")
    assert (audit.verdict, audit.journal_status) == ("stranded", "error")
    before = pair.row()
    (repair,) = repair_runs(pair)
    assert (repair.outcome, repair.after.verdict) == ("repaired", "consistent")
    after = pair.row()
    assert after.status == "running"
    assert parse_time(after.updated_at) > 0
    assert members(after) == members(before)
    # It can be swept, and finishes: the failed step runs again, the other does not.
    end = stage.player("--retry", "--mended").hear("ended")
    assert (end["status"], end["executed"]) == ("ok", 1)


@pytest.mark.storm
def test_the_same_with_the_marker_leaves_nothing_to_repair(stage: Stage) -> None:
    pair = stage.pair
    stalled = stale_settle(stage)
    assert stalled.hear("ended") == {"kind": "ended", "error": "SupersededError"}
    assert pair.row().status == "running"
    pair.until_nobody_holds_it()
    assert audit_run(pair, "r").verdict == "consistent"


# --- nothing to repair --------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.parametrize("place", ["before-the-start", "one", "before-the-settle"])
def test_killed_anywhere_else_the_row_is_right_as_it_is(stage: Stage, place: str) -> None:
    stage.player("one", "--kill", place).dies()
    stage.pair.until_nobody_holds_it()
    before = stage.pair.row()
    audit = audit_run(stage.pair, "r")
    assert (audit.verdict, audit.row_status) == ("consistent", "running")
    # A source that was kept for a start which never came is nobody's yet.
    assert [blob.ref for blob in audit.orphans] == (
        ["r/source"] if place == "before-the-start" else []
    )
    assert reconcile_run_meta(stage.pair, "r").outcome == "unneeded"
    assert stage.pair.row() == before
    assert stage.player("one").hear("ended")["status"] == "ok"
    assert audit_run(stage.pair, "r").blobs == ()


# --- damage, prepared ---------------------------------------------------------------------


@pytest.mark.storm
def test_one_unreadable_journal_hides_no_other(stage: Stage) -> None:
    for run_id in ("a", "r", "z"):
        ended = stage.player("one", "--run", run_id).hear("ended")
        assert ended["status"] == "ok"
    run_sql(
        stage,
        "DROP INDEX entries_run_seq",  # it would not take the text
        "UPDATE entries SET payload = 'torn' WHERE id = "
        "(SELECT max(id) FROM entries WHERE run_id = 'r')",
        "UPDATE meta SET payload = '{}' WHERE run_id = 'z'",
    )
    found = {audit.run_id: audit for audit in audit_runs(stage.pair)}
    assert {run_id: audit.verdict for run_id, audit in found.items()} == {
        "a": "consistent",
        "r": "damaged",
        "z": "damaged",
    }
    assert [f.code for f in found["r"].findings] == ["journal-unreadable"]
    assert found["r"].findings[0].position == 3
    assert [f.code for f in found["z"].findings] == ["row-unreadable"]
    assert {repair.outcome for repair in repair_runs(stage.pair)} == {"unneeded", "left"}
