"""Deleting, pruning and retaining runs from the command line, over a SQLite file."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest
from cli_command import document, rulvar

from rulvar.cli import multi_run
from rulvar.core.plugins import open_stores

if TYPE_CHECKING:
    from pathlib import Path


FLOWS = """
from rulvar.core import Done, Continue, workflow

@workflow
async def one(ctx):
    return await ctx.step("one", lambda: 1)

@workflow
async def loop(ctx):
    def turn(state, n):
        return Done("over") if n == 2 else Continue(n)
    return (await ctx.turns("turns", turn, 0)).result
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_removal_flows.py").write_text(FLOWS, encoding="utf-8")
    settings = '[tool.rulvar]\nstore = "sqlite:///runs.db"\napp = "cli_removal_flows"\n'
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_removal_flows", raising=False)
    return tmp_path


def begin(*run_ids: str, workflow: str = "one") -> None:
    for run_id in run_ids:
        rulvar("run", workflow, "--run-id", run_id)


def left() -> list[str]:
    listed = cast("list[dict[str, object]]", document("runs", "ls")["runs"])
    return [str(row["run_id"]) for row in listed]


def test_rm_deletes_each_run_and_names_one_that_is_not_there() -> None:
    begin("a", "b", "c")
    result = rulvar("runs", "rm", "a", "nope", "b", "--yes", status=2)
    assert result.stdout == "run a: deleted\nrun b: deleted\n"
    assert "there is no run 'nope'" in result.stderr
    assert left() == ["c"]
    assert document("runs", "rm", "c", "--yes") == {"runs": [{"run_id": "c", "deleted": True}]}
    with open_stores("sqlite:///runs.db") as stores:
        assert stores.transcripts.list_refs("c") == []


def test_rm_asks_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    begin("a")
    assert "confirm with --yes" in rulvar("runs", "rm", "a", status=2).stderr
    assert left() == ["a"]
    unknown = rulvar("runs", "rm", "nope", status=2).stderr
    assert "there is no run 'nope'" in unknown
    assert "permanently" not in unknown
    asked: list[str] = []
    monkeypatch.setattr(multi_run, "_is_terminal", lambda: True)

    def answer(question: str, **_options: object) -> None:
        asked.append(question)

    monkeypatch.setattr("click.confirm", answer)
    rulvar("runs", "rm", "nope", "a", status=2)
    assert asked == ["Delete a permanently?"]
    assert left() == []


def test_rm_of_a_held_run_is_status_3_and_deletes_the_others() -> None:
    begin("a", "b")
    with open_stores("sqlite:///runs.db") as stores:
        stores.journal.acquire("a", "somebody")  # type: ignore[attr-defined] # SQLite has leases
    found = cast(
        "list[dict[str, object]]", document("runs", "rm", "a", "b", "--yes", status=3)["runs"]
    )
    error = cast("dict[str, object]", found[0]["error"])
    assert (error["code"], error["holder"]) == ("lease-held", "somebody")
    assert found[1] == {"run_id": "b", "deleted": True}
    assert left() == ["a"]


def test_prune_names_what_it_deleted() -> None:
    begin("a", workflow="loop")
    assert rulvar("runs", "prune", "a").stdout == "run a: deleted a/ckpt/1\n"
    assert document("runs", "prune", "a") == {"runs": [{"run_id": "a", "deleted": []}]}
    assert "never began" in rulvar("runs", "prune", "nope", status=2).stderr
    assert left() == ["a"]


def test_retain_deletes_by_age_status_and_number() -> None:
    begin("a", "b", "c")
    rulvar("runs", "retain", "--older-than", "1d")
    assert left() == ["a", "b", "c"]
    dry = document("runs", "retain", "--older-than", "0s", "--keep-last", "1", "--dry-run")
    assert dry == {"dry_run": True, "matched": 2, "deleted": ["a", "b"], "kept": {}, "failed": {}}
    assert left() == ["a", "b", "c"]
    assert rulvar("runs", "retain", "--older-than", "0s", "--status", "error").stdout == (
        "deleted 0 of 0 matching runs\n"
    )
    with open_stores("sqlite:///runs.db") as stores:
        stores.journal.acquire("a", "somebody")  # type: ignore[attr-defined]
    result = rulvar("runs", "retain", "--older-than", "0s", "--keep-last", "1")
    assert result.stdout == "deleted b\ndeleted 1 of 2 matching runs\n"
    assert "kept a: run 'a' is held by 'somebody'" in result.stderr
    assert left() == ["a", "c"]


@pytest.mark.slow
def test_retain_that_could_delete_nothing_does_not_say_that_all_is_well() -> None:
    begin("a", "b")
    apsw = pytest.importorskip("apsw")
    url = "sqlite:///runs.db?busy_timeout_ms=100"
    connection = apsw.Connection("runs.db")
    # The command in a process of its own, as the writer that is in its way is another's.
    command = [sys.executable, "-m", "rulvar.cli", "runs", "retain", "--older-than", "0s"]
    try:
        connection.execute("BEGIN IMMEDIATE").fetchall()
        done = subprocess.run(
            [*command, "--store", url, "--json"], capture_output=True, text=True, check=False
        )
    finally:
        connection.close()
    assert done.returncode == 5, done.stderr
    report = json.loads(done.stdout)
    assert (report["deleted"], report["kept"], report["matched"]) == ([], {}, 2)
    assert report["failed"].keys() == {"a", "b"}
    assert "StoreBusyError" in report["failed"]["a"]
    assert left() == ["a", "b"]
    assert subprocess.run([*command, "--store", url], check=False).returncode == 0
    assert left() == []


@pytest.mark.parametrize(
    "args",
    [
        ("--older-than", "30"),
        ("--older-than", "30 d"),
        ("--older-than", "999999999999999w"),
        ("--older-than", "1d", "--status", "running"),
        (),
    ],
)
def test_retain_refuses_what_cannot_be_meant(args: tuple[str, ...]) -> None:
    rulvar("runs", "retain", *args, status=2)


def test_a_worker_deletes_by_age_too() -> None:
    begin("a", "b")
    result = rulvar(
        "worker", "--until-idle", "--retain-older-than", "0s", "--retain-keep-last", "1"
    )
    assert "1 deleted by age" in result.stdout
    assert left() == ["b"]
    rulvar("worker", "--until-idle", "--retain-older-than", "soon", status=2)
