"""`rulvar replay` tries journals against the present code; blocked runs read well everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_command import rulvar

if TYPE_CHECKING:
    from pathlib import Path

OLD = """
from rulvar.core import workflow

def pay(what):
    with open("paid", "a") as file:
        file.write(what + "\\n")
    return what

@workflow
async def order(ctx, what):
    await ctx.step("reserve", pay, what)
    await ctx.await_external("approval")
    return await ctx.step("ship", pay, "ship " + what)

@workflow
async def fine(ctx):
    return await ctx.step("fine", pay, "fine")

@workflow
async def gone(ctx):
    return await ctx.await_external("never")
"""

NEW = (
    OLD.replace('"reserve", pay', '"book", pay')
    .replace("@workflow\nasync def gone", "async def gone")
    .replace('    return await ctx.step("fine"', '    print("x")\n    return await ctx.step("fine"')
)


class Project:
    """A folder with a store and an app; the real command, in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deploy(OLD)

    def deploy(self, code: str) -> None:
        (self.folder / "flows.py").write_text(code)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    @property
    def paid(self) -> list[str]:
        return (self.folder / "paid").read_text().splitlines()

    def store(self) -> dict[str, bytes]:
        """Return what is in the database's files; a reader leaves an empty log behind."""
        files = map(self.folder.joinpath, ("runs.db", "runs.db-wal"))
        found = {each.name: each.read_bytes() for each in files if each.exists()}
        return {name: content for name, content in found.items() if content}

    def said(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        options = ["--store", "sqlite:///runs.db"]
        if words[0] in {"run", "resume", "replay", "worker"}:
            options += ["--app", "flows"]
        command = [sys.executable, "-m", "rulvar.cli", *words, *options]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.said("run", "order", "--args", '"a"', "--run-id", "a", status=6)
    project.said("run", "fine", "--run-id", "f")
    project.said("run", "gone", "--run-id", "g", status=6)
    return project


@pytest.mark.slow
def test_a_deploy_is_tried_and_a_blocked_run_reads_well(project: Project) -> None:
    before = project.store()
    assert project.said("replay", "a", "f").stdout.splitlines() == [
        "run a: ok, 1 call from the journal; then: external 'approval'",
        "run f: ok, 1 call from the journal; then: ends as ok",
    ]
    project.deploy(NEW)
    tried = project.said("replay", "--status", "suspended", status=1)
    assert tried.stdout.startswith(
        "run a: blocked: step 'book' stands where the journal has step 'reserve' (seq 1); "
    )
    assert "versions that the app does not have: 1" in tried.stderr
    assert project.store() == before
    assert project.paid == ["a", "fine"]

    # The same run, resumed for good by the code that cannot.
    resumed = project.said("resume", "a", status=1)
    assert "step 'book' stands where the journal has step 'reserve'" in resumed.stderr
    [listed] = [x for x in project.said("runs", "ls").stdout.splitlines() if x.startswith("a ")]
    assert "blocked, the code cannot replay it: step 'book' stands where" in listed
    shown = project.said("runs", "show", "a").stdout
    [line] = [each for each in shown.splitlines() if each.startswith("blocked")]
    assert "1 version of the code could not replay its journal: step 'book' stands where" in line
    assert "rulvar resume a" in line
    assert "never settled" not in shown
    assert project.paid == ["a", "fine"]

    project.deploy(OLD)  # the rollback goes on with it
    assert "run a: ok" in project.said("replay", "a").stdout
    project.said("resolve", "a", "approval", "true")
    project.said("worker", "--until-idle")
    assert project.paid == ["a", "fine", "ship a"]
    assert "blocked" not in project.said("runs", "ls").stdout


@pytest.mark.slow
def test_what_programs_get(project: Project) -> None:
    project.deploy(NEW.replace('    print("x")\n', ""))
    said = json.loads(project.said("replay", "a", "f", "--json", status=1).stdout)
    a, f = said["runs"]
    assert (a["run_id"], a["status"], a["replayed"]) == ("a", "blocked", 0)
    assert f == {
        "run_id": "f",
        "status": "ok",
        "reason": None,
        "replayed": 1,
        "then": "ends as ok",
        "untried": None,
        "changed_args": [],
    }
    mixed = json.loads(project.said("replay", "x", "g", "f", "--json", status=2).stdout)
    assert [each["run_id"] for each in mixed["runs"]] == ["x", "g", "f"]
    assert "not in this store" in mixed["runs"][0]["error"]["message"]
    assert "'gone', which this engine does not have" in mixed["runs"][1]["error"]["message"]
    assert mixed["runs"][2]["status"] == "ok"


@pytest.mark.parametrize("words", [[], ["a", "--status", "suspended"]])
def test_ids_and_filters_are_told_apart(words: list[str]) -> None:
    assert "give RUN_IDs, or --status" in rulvar("replay", *words, status=2).stderr


def test_a_limit_that_no_workflow_can_keep_is_refused() -> None:
    assert "--body-limit 0" in rulvar("replay", "a", "--body-limit", "0s", status=2).stderr


def test_a_store_without_such_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "replay_none.py").write_text(OLD)
    words = ("--store", "sqlite:///runs.db", "--app", "replay_none")
    rulvar("run", "fine", *words)
    assert "nothing to replay" in rulvar("replay", "--status", "suspended", *words).stdout


@pytest.mark.slow
def test_what_the_body_prints_is_no_part_of_the_result(project: Project) -> None:
    project.deploy('print("imported")\n' + NEW)
    done = project.said("replay", "f", "--json")
    assert [run["status"] for run in json.loads(done.stdout)["runs"]] == ["ok"]
    assert "imported" in done.stderr
    assert "x" in done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_body_that_blocks_the_loop_ends_the_command(project: Project, form: str) -> None:
    """It is told as blocked, with what was tried before it; what comes behind it is named."""
    project.deploy(
        OLD.replace(
            '    await ctx.step("reserve"',
            '    import threading\n    threading.Event().wait()\n    await ctx.step("reserve"',
        )
    )
    words = ["replay", "f", "a", "g", "--body-limit", "1s"]
    done = project.said(*words, *(["--json"] if form == "json" else []), status=1)
    assert "not tried, because that workflow cannot be interrupted: g" in done.stderr
    reason = "the workflow has blocked the event loop for 1 s"
    if form == "text":
        assert done.stdout.splitlines()[-1] == f"run a: blocked: {reason}"
        return
    fine, blocked = json.loads(done.stdout)["runs"]
    assert (fine["run_id"], fine["status"]) == ("f", "ok")
    assert (blocked["run_id"], blocked["status"], blocked["reason"]) == ("a", "blocked", reason)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")
def test_what_a_subprocess_or_a_descriptor_writes_is_no_part_of_the_result(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is written past waits in a buffer
    noise = (
        "import os, subprocess, sys\nos.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'])\n"
    )
    noise += "sys.__stdout__.write('past\\n')\n"
    body = "    " + noise.replace("\n", "\n    ").rstrip(" ")
    project.deploy(
        noise
        + OLD.replace('    return await ctx.step("fine"', body + '    return await ctx.step("fine"')
    )
    done = project.said("replay", "f", "--json")
    assert [run["status"] for run in json.loads(done.stdout)["runs"]] == ["ok"]
    assert [done.stderr.splitlines().count(each) for each in ("raw", "child", "past")] == [2, 2, 2]
