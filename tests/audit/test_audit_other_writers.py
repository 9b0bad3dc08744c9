"""Rows of another writer beyond our own limits: such a run is named, and hides no other."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.audit import audit_runs, reconcile_run_meta, repair_runs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

FILL = """
import json, sys
import apsw

path, rows = sys.argv[1], json.loads(sys.argv[2])
connection = apsw.Connection(path)
for run_id, row in rows.items():
    for seq, value in enumerate((
        {"decisionType": "run_start", "workflow": "w", "genesis": "g"},
        {"decisionType": "run_settle", "runStatus": "ok", "segment": 1},
    )):
        entry = {"hashVersion": 102, "seq": seq, "kind": "decision", "status": "ok"}
        entry |= {"value": value, "endedAt": "2026-01-02T03:04:05.000Z"}
        connection.execute(
            "INSERT INTO entries (run_id, payload) VALUES (?, ?)", (run_id, json.dumps(entry))
        )
    members = {"runId": run_id, "status": "running", "updatedAt": "2026-01-01T00:00:00.000Z"}
    members |= {"segments": 1, "genesis": "g"} | row
    connection.execute("INSERT INTO meta VALUES (?, ?)", (run_id, json.dumps(members)))
connection.close()
"""
ODD = {
    "a-fine-one": {},
    "b-name": {"name": "n" * 201},
    "c-tags": {"tags": [str(number) for number in range(65)]},
    "d-tag": {"tags": ["t" * 201]},
    "e-large": {"note": "x" * 70_000},
    "f-fine-too": {},
}
FINE = {"a-fine-one", "f-fine-too"}


def fill(path: Path, rows: Mapping[str, object]) -> str:
    """Write rows as another program does, past every check of ours."""
    url = f"sqlite:///{path}"
    open_stores(url).close()
    subprocess.run([sys.executable, "-c", FILL, str(path), json.dumps(rows)], check=True)
    return url


@pytest.fixture
def url(tmp_path: Path) -> str:
    return fill(tmp_path / "runs.db", ODD)


def test_a_row_that_cannot_be_written_is_named_and_the_others_are_repaired(url: str) -> None:
    with open_stores(url) as stores:
        repairs = {each.run_id: each for each in repair_runs(stores)}
        assert repairs.keys() == ODD.keys()
        for run_id, repair in repairs.items():
            if run_id in FINE:
                assert (repair.outcome, repair.sound) == ("repaired", True)
                continue
            assert (repair.outcome, repair.sound) == ("skipped", False)
            assert repair.why is not None
            assert "its row cannot be written here" in repair.why
            # What is there stays, and nobody is left holding it.
            assert repair.after.row == repair.before.row
            assert reconcile_run_meta(stores, run_id).outcome == "skipped"
        left = {each.run_id for each in audit_runs(stores) if not each.sound}
        assert left == ODD.keys() - FINE


def test_the_command_goes_on_too(url: str) -> None:
    command = [sys.executable, "-m", "rulvar.cli", "runs", "audit", "--repair", "--json"]
    done = subprocess.run([*command, "--store", url], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    outcomes = {each["run_id"]: each["outcome"] for each in said["repairs"]}
    assert {run_id for run_id, outcome in outcomes.items() if outcome == "repaired"} == FINE
    assert {run_id for run_id, outcome in outcomes.items() if outcome == "skipped"} == (
        ODD.keys() - FINE
    )
