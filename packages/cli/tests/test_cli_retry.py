"""`rulvar runs retry` reopens what failed, one or many, and says of each what became of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_command import rulvar

from rulvar.core import open_stores
from rulvar.core.records import JournalRecord
from rulvar.core.spi import has_leases

if TYPE_CHECKING:
    from pathlib import Path

FLOWS = """
import os
from rulvar.core import workflow

def risky(what):
    with open("paid", "a") as file:
        file.write(what + "\\n")
    if not os.path.exists("well"):
        raise RuntimeError("not well")
    return what

@workflow
async def order(ctx, what):
    await ctx.step("reserve", lambda: "reserved")
    return await ctx.step("charge", risky, what)

@workflow
async def family(ctx, what):
    return await ctx.child("c", order, what)

@workflow
async def fine(ctx):
    return "fine"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RULVAR_STORE", "sqlite:///runs.db")
    monkeypatch.setenv("RULVAR_APP", "retry_flows")
    (tmp_path / "retry_flows.py").write_text(FLOWS)
    return tmp_path


def three_runs() -> None:
    rulvar("run", "order", "--args", '"a"', "--run-id", "a", status=1)
    rulvar("run", "order", "--args", '"b"', "--run-id", "b", "--tag", "vip", status=1)
    rulvar("run", "fine", "--run-id", "f")


def test_every_run_that_failed_is_reopened_and_workers_go_on(project: Path) -> None:
    three_runs()
    said = rulvar("runs", "retry", "--status", "error", "--since", "1h", "--dry-run").stdout
    assert said.splitlines() == ["run a: would be reopened", "run b: would be reopened"]
    assert "a    error" in rulvar("runs", "ls").stdout
    rulvar("runs", "retry", "--status", "error", "--since", "1h")
    (project / "well").touch()
    rulvar("worker", "--until-idle")
    listed = json.loads(rulvar("runs", "ls", "--json").stdout)
    assert [(row["run_id"], row["status"]) for row in listed["runs"]] == [
        ("a", "ok"),
        ("b", "ok"),
        ("f", "ok"),
    ]
    assert sorted((project / "paid").read_text().split()) == ["a", "a", "b", "b"]


@pytest.mark.usefixtures("project")
def test_what_narrows_the_runs_and_what_did_not_fail() -> None:
    three_runs()
    said = json.loads(rulvar("runs", "retry", "--status", "error", "--tag", "vip", "--json").stdout)
    assert said == {"runs": [{"run_id": "b", "reopened": True, "status": None}]}
    assert (
        "nothing to retry"
        in rulvar("runs", "retry", "--status", "error", "--workflow", "other").stdout
    )
    assert "run f: did not fail (ok): unchanged" in rulvar("runs", "retry", "f").stdout
    assert "there is no run 'x'" in rulvar("runs", "retry", "x", status=2).stderr


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "words", [[], ["a", "--status", "error"], ["a", "--since", "1h"], ["a", "--tag", "t"]]
)
def test_ids_and_filters_are_told_apart(words: list[str]) -> None:
    assert "--status" in rulvar("runs", "retry", *words, status=2).stderr


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_one_that_is_held_or_damaged_stops_no_other(dry: tuple[str, ...]) -> None:
    """With ``--dry-run`` the same is said of each run, and nothing is changed."""
    three_runs()
    with open_stores("sqlite:///runs.db") as stores:
        journal = stores.journal
        assert has_leases(journal)
        held = journal.acquire("a", "somebody")
        tail = journal.load("f")[-1].seq
        journal.append(
            "f", JournalRecord(seq=tail + 1, payload=b'{"seq":%d,"kind":7}' % (tail + 1))
        )
        words = ("runs", "retry", "a", "f", "b", "--json", *dry)
        found = json.loads(rulvar(*words, status=3).stdout)["runs"]
        journal.release(held)
        after = [meta.status for meta in journal.list_runs()]
    assert found[0]["error"]["code"] == "lease-held"
    assert found[0]["error"]["holder"] == "somebody"
    assert found[1]["error"]["code"] == "store-corrupt"
    assert (found[2].get("would_reopen"), found[2]["reopened"]) == (
        (True, False) if dry else (None, True)
    )
    assert after == ["error", "error" if dry else "suspended", "ok"]


def bulk(*words: str) -> dict[str, tuple[object, object]]:
    """Return of each run whether it is, or would be, reopened, and why it was left out."""
    said = json.loads(rulvar("runs", "retry", "--status", "error", "--json", *words).stdout)
    return {
        run["run_id"]: (run.get("would_reopen", run["reopened"]), run.get("left_out"))
        for run in said["runs"]
    }


def test_a_failed_child_is_left_to_its_parent_and_that_is_said(project: Path) -> None:
    rulvar("run", "family", "--args", '"a"', "--run-id", "p", status=1)
    [(first, found), (child_id, (reopened, why))] = bulk("--dry-run").items()
    assert (first, found, reopened) == ("p", (True, None), False)
    assert why == "its parent 'p' is retried, and the child in its segment"
    text = rulvar("runs", "retry", "--status", "error", "--dry-run").stdout
    assert f"run {child_id}: left out: {why}" in text
    assert bulk() == {"p": (True, None), child_id: (False, why)}
    # The parent is unfinished by now, and stands in no selection of failed runs.
    [(left, (reopened, why))] = bulk().items()
    assert (left, reopened) == (child_id, False)
    assert "resume 'p'" in str(why)
    (project / "well").touch()
    rulvar("worker", "--until-idle")
    listed = json.loads(rulvar("runs", "ls", "--json").stdout)
    assert {row["status"] for row in listed["runs"]} == {"ok"}


@pytest.mark.parametrize("parent", ["deleted", "narrowed out"])
def test_a_failed_orphan_is_reopened_as_any_run(project: Path, parent: str) -> None:
    rulvar("run", "family", "--args", '"a"', "--run-id", "p", status=1)
    words = ("--workflow", "order") if parent == "narrowed out" else ()
    if parent == "deleted":
        rulvar("runs", "rm", "p", "--yes")
    [(child_id, found)] = bulk("--dry-run", *words).items()
    assert (child_id.startswith("p."), found) == (True, (True, None))
    assert bulk(*words) == {child_id: (True, None)}
    (project / "well").touch()
    rulvar("worker", "--until-idle")
    listed = json.loads(rulvar("runs", "ls", "--json").stdout)
    assert {row["run_id"]: row["status"] for row in listed["runs"]}[child_id] == "ok"
