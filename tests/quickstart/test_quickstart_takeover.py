"""The quickstart does what it says, and it notices a fence with a hole in it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart" / "quickstart.py"
SURFACES = ("append", "meta", "blob put", "blob delete", "renew", "release", "run delete")

# Takes effect in worker A's process alone: Python imports it when it starts.
SABOTAGE = '''
import os, signal, sys, threading

import apsw
from rulvar.core import LeaseHeldError
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.twin import SqliteTranscripts


def unfenced(cls, name):
    whole = getattr(cls, name)
    setattr(cls, name, lambda self, *args, lease=None: whole(self, *args))


def deaf(cls, name):
    whole = getattr(cls, name)

    def call(self, lease):
        try:
            return whole(self, lease)
        except LeaseHeldError:
            return lease

    setattr(cls, name, call)


def writes_then_refuses(cls, name):
    whole = getattr(cls, name)

    def call(self, *args, lease=None):
        try:
            whole(self, *args, lease=lease)
        except LeaseHeldError:
            whole(self, *args)
            raise

    setattr(cls, name, call)


def holds_the_file_until_thawed():
    """Have the file locked for writing from before the freeze until after the thaw."""
    thawed, locked = threading.Event(), threading.Event()
    signal.signal(signal.SIGCONT, lambda *_: thawed.set())
    whole = SqliteStore.get_lease

    def hold(path):
        connection = apsw.Connection(path)
        connection.execute("BEGIN IMMEDIATE")
        locked.set()
        thawed.wait()
        connection.execute("ROLLBACK")
        connection.close()

    def get_lease(self, run_id):
        found = whole(self, run_id)
        threading.Thread(target=hold, args=(self.path,), daemon=True).start()
        locked.wait()
        return found

    SqliteStore.get_lease = get_lease


if "own" in sys.orig_argv:
    {sabotage}
'''

HOLES = {
    "append": 'unfenced(SqliteStore, "append")',
    "meta": 'unfenced(SqliteStore, "put_meta")',
    "blob put": 'unfenced(SqliteTranscripts, "put")',
    "blob delete": 'unfenced(SqliteTranscripts, "delete")',
    "renew": 'deaf(SqliteStore, "renew")',
    "release": 'deaf(SqliteStore, "release")',
    "run delete": 'unfenced(SqliteStore, "delete")',
}


def play(
    tmp_path: Path, *, sabotage: str = "", lease_ttl_ms: int = 600
) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(6):
        (folder / f"file-{number}.txt").write_text("line\n" * (number * 100))
    environment = dict(os.environ)
    environment.pop("HATCH_ENV_ACTIVE", None)
    if sabotage:
        (tmp_path / "sitecustomize.py").write_text(SABOTAGE.replace("{sabotage}", sabotage))
        environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, str(QUICKSTART), str(folder), "--lease-ttl-ms", str(lease_ttl_ms)]
    command += ["--database", str(tmp_path / "quick start.db")]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def checks(account: str) -> dict[str, bool]:
    """Return what was held against the promises, and whether it held."""
    lines = re.findall(r"^  (ok    |FAILED)  (.*)$", account, re.MULTILINE)
    return {what: verdict.strip() == "ok" for verdict, what in lines}


def test_a_zombie_changes_nothing_and_the_account_says_so(tmp_path: Path) -> None:
    done = play(tmp_path, lease_ttl_ms=1_500)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    account = done.stdout
    happened = [
        r"worker A +owns the run under epoch 1\n",
        r"worker A +has read the first half of file-3\.txt \(file 4 of 6\)\n",
        r"quickstart +freezes A \(SIGSTOP\) in that step, with 4 steps journalled before it\n",
        r"quickstart +the lease of A \(epoch 1\) is over\n",
        r"worker B +owns the run under epoch 2\n",
        r"worker B +finishes: ok; 4 steps from the journal, 4 executed",
        r"quickstart +takes the run under epoch 3",
        r"worker A +its segment ends: SupersededError ",
        *(
            rf"worker A +{surface} +LeaseHeldError: superseded \(.+ holds .+\)\n"
            for surface in SURFACES
        ),
    ]
    at = 0
    for line in happened:
        found = re.compile(line).search(account, 0 if "LeaseHeldError" in line else at)
        assert found is not None, f"{line!r} is not told, or not in its place:\n{account}"
        at = found.end()
    assert len(checks(account)) >= len(SURFACES) + 6
    assert all(checks(account).values())
    # What it leaves tells the same story.
    told = shlex.split(account.rstrip().splitlines()[-1])
    assert told[0] == "rulvar"
    shown = subprocess.run(
        [sys.executable, "-m", "rulvar.cli", *told[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "TOOK OVER" in shown
    assert "count file-3.txt" in shown


@pytest.mark.storm
@pytest.mark.parametrize("surface", SURFACES)
def test_a_hole_in_the_fence_is_named(tmp_path: Path, surface: str) -> None:
    done = play(tmp_path, sabotage=HOLES[surface])
    assert done.returncode == 1, done.stdout + done.stderr
    held = checks(done.stdout)
    assert held[f"{surface}: refused with LeaseHeldError"] is False
    others = [other for other in SURFACES if other != surface]
    assert all(held[f"{other}: refused with LeaseHeldError"] for other in others)
    assert re.search(rf"FAILED:\n(?:  .*\n)*  {surface}: refused", done.stdout)


@pytest.mark.storm
def test_a_write_behind_a_refusal_is_found_in_the_bytes(tmp_path: Path) -> None:
    done = play(tmp_path, sabotage='writes_then_refuses(SqliteStore, "put_meta")')
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [what for what, holds in checks(done.stdout).items() if not holds]
    assert len(failed) == 1, failed
    assert failed[0].startswith("the store is the same, byte for byte")


@pytest.mark.storm
def test_a_freeze_inside_a_commit_is_thawed_and_tried_again(tmp_path: Path) -> None:
    done = play(tmp_path, sabotage="holds_the_file_until_thawed()")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "the freeze landed inside a commit: thawed, to try again" in done.stdout


def test_ctrl_c_leaves_no_stopped_worker_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(QUICKSTART), "--lease-ttl-ms", "60000"]
    command += ["--database", str(tmp_path / "quickstart.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as quickstart:
        assert quickstart.stdout is not None
        workers = []
        for line in quickstart.stdout:
            workers += [int(pid) for pid in re.findall(r"starts as process (\d+)", line)]
            if "passes it over" in line:
                break
        assert len(workers) == 2
        quickstart.send_signal(signal.SIGINT)
        assert quickstart.wait(30) == 128 + signal.SIGINT
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_ends_when_its_quickstart_is_gone(tmp_path: Path) -> None:
    worker = QUICKSTART.with_name("worker_process.py")
    command = [sys.executable, str(worker), "follow", "--run", "day", "--owner", "worker-b"]
    command += ["--store", f"sqlite:///{tmp_path}/quickstart.db"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert b"sweeping" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(30) == 0
