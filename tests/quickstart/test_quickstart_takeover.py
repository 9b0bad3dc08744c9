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

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart" / "quickstart.py"
MUTATIONS = ("append", "put_meta", "put_blob", "delete_blob", "renew", "release", "delete")

# Takes effect in one worker's process alone: Python imports it when it starts.
SABOTAGE = '''
import os, signal, sys, threading

import apsw
from rulvar.core import LeaseHeldError
from rulvar.stores.sqlite import SqliteStore
from rulvar.stores.sqlite.transcripts import SqliteTranscripts


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


def ends_otherwise():
    """Have A's segment end with another error than the loss of its run."""
    from rulvar.core import Engine, RunFailedError, SupersededError
    whole = Engine.run

    async def run(self, *args, **options):
        try:
            return await whole(self, *args, **options)
        except SupersededError:
            raise RunFailedError("swallowed", error_type="ValueError") from None

    Engine.run = run


def miscounts():
    """Have B come to another outcome."""
    from dataclasses import replace
    from rulvar.core import Worker
    whole = Worker.__init__

    def init(self, engine, *, on_result, **options):
        def tell(result):
            outcome = result.outcome
            if outcome is not None:
                outcome = replace(outcome, value={**outcome.value, "lines": -1})
            on_result(replace(result, outcome=outcome))

        whole(self, engine, on_result=tell, **options)

    Worker.__init__ = init


def forgets_what_was_done():
    """Have B find each file's step begun, and in the place of its answer another entry."""
    import json
    from rulvar.core.spi import JournalRecord
    whole = SqliteStore.load

    def load(self, run_id):
        kept = []
        for record in whole(self, run_id):
            entry = json.loads(record.payload)
            if entry["kind"] == "step" and entry["status"] == "ok" and entry["key"] != "list":
                told = {each: entry[each] for each in ("hashVersion", "seq", "epoch")}
                payload = json.dumps(told | {"kind": "note", "status": "ok"}).encode()
                record = JournalRecord(seq=record.seq, payload=payload)
            kept.append(record)
        return kept

    SqliteStore.load = load


def writes_under_an_old_epoch():
    import re
    from dataclasses import replace
    whole = SqliteStore.append

    def append(self, run_id, record, *, lease=None):
        payload = re.sub(rb'"epoch":[0-9]+', b'"epoch":0', record.payload)
        whole(self, run_id, replace(record, payload=payload), lease=lease)

    SqliteStore.append = append


if "{role}" in sys.orig_argv:
    {sabotage}
'''

HOLES = {
    "append": 'unfenced(SqliteStore, "append")',
    "put_meta": 'unfenced(SqliteStore, "put_meta")',
    "put_blob": 'unfenced(SqliteTranscripts, "put")',
    "delete_blob": 'unfenced(SqliteTranscripts, "delete")',
    "renew": 'deaf(SqliteStore, "renew")',
    "release": 'deaf(SqliteStore, "release")',
    "delete": 'unfenced(SqliteStore, "delete")',
}


def play(
    tmp_path: Path, *, sabotage: str = "", role: str = "own", lease_ttl_ms: int = 600
) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(6):
        (folder / f"file-{number}.txt").write_text("line\n" * (number * 100))
    environment = dict(os.environ)
    environment.pop("HATCH_ENV_ACTIVE", None)
    if sabotage:
        source = SABOTAGE.replace("{sabotage}", sabotage).replace("{role}", role)
        (tmp_path / "sitecustomize.py").write_text(source)
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
            rf"worker A +{mutation} +LeaseHeldError: superseded \(.+ holds .+\)\n"
            for mutation in MUTATIONS
        ),
    ]
    at = 0
    for line in happened:
        found = re.compile(line).search(account, 0 if "LeaseHeldError" in line else at)
        assert found is not None, f"{line!r} is not told, or not in its place:\n{account}"
        at = found.end()
    assert len(checks(account)) >= len(MUTATIONS) + 6
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
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_hole_in_the_fence_is_named(tmp_path: Path, mutation: str) -> None:
    done = play(tmp_path, sabotage=HOLES[mutation])
    assert done.returncode == 1, done.stdout + done.stderr
    held = checks(done.stdout)
    assert held[f"{mutation}: refused with LeaseHeldError"] is False
    others = [other for other in MUTATIONS if other != mutation]
    assert all(held[f"{other}: refused with LeaseHeldError"] for other in others)
    assert re.search(rf"FAILED:\n(?:  .*\n)*  {mutation}: refused", done.stdout)


@pytest.mark.storm
def test_a_write_behind_a_refusal_is_found_in_the_bytes(tmp_path: Path) -> None:
    done = play(tmp_path, sabotage='writes_then_refuses(SqliteStore, "put_meta")')
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [what for what, holds in checks(done.stdout).items() if not holds]
    assert len(failed) == 1, failed
    assert failed[0].startswith("the store is the same, byte for byte")


@pytest.mark.storm
@pytest.mark.parametrize(
    ("role", "sabotage", "lines"),
    [
        ("own", "ends_otherwise()", ["worker A's segment ended as SupersededError"]),
        ("follow", "miscounts()", ["the outcome is what one process computes plainly"]),
        ("follow", "forgets_what_was_done()", ["each of 8 steps", "worker B executed none of"]),
        ("follow", "writes_under_an_old_epoch()", ["along the journal the epochs never fall"]),
    ],
)
def test_every_other_promise_that_breaks_is_named(
    tmp_path: Path, role: str, sabotage: str, lines: list[str]
) -> None:
    done = play(tmp_path, sabotage=sabotage, role=role)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [what for what, holds in checks(done.stdout).items() if not holds]
    assert len(failed) == len(lines), failed
    assert all(what.startswith(line) for what, line in zip(failed, lines, strict=True)), failed


def test_what_it_cannot_use_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("no database\n" * 100, encoding="utf-8")
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "nowhere is no folder"),
        ([str(tmp_path / "notes.db")], "notes.db is no folder"),
        (["--database", str(tmp_path / "no" / "x.db")], "does not exist: create it first"),
        (["--database", str(tmp_path / "notes.db")], "cannot be read as a SQLite database"),
        ([str(tmp_path), "--database", str(tmp_path / "x.db")], "lies in the folder that is read"),
    ):
        command = [sys.executable, str(QUICKSTART), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


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
