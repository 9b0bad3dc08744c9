"""A workflow's code that stops the command's event loop, or cancels its own task, is named."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.capabilities import has_lease_admin

if TYPE_CHECKING:
    from pathlib import Path

FLOWS = """
import asyncio
from rulvar.core import workflow

@workflow
async def stops(ctx):
    asyncio.get_running_loop().stop()
    await ctx.step("s", lambda: 1)

@workflow
async def cancels(ctx):
    for task in asyncio.all_tasks():
        task.cancel()
    await ctx.step("s", lambda: 1)
"""

SAID = {
    "stops": "the code of a workflow has stopped the command's event loop",
    "cancels": "the code of a workflow has cancelled the command's own task",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_it_is_told_without_a_traceback_and_the_lease_is_given_back(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["--app", "flows", "--store", "sqlite:///runs.db"]
        command = [sys.executable, "-m", "rulvar.cli", *words, *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    for words in (("run", name, "--run-id", "r"), ("worker", "--until-idle")):
        done = said(*words)
        assert done.returncode == 2, done.stderr
        assert SAID[name] in done.stderr
        assert "Traceback" not in done.stderr
        with open_stores(f"sqlite:///{tmp_path}/runs.db") as stores:
            assert has_lease_admin(stores.journal)
            lease = stores.journal.get_lease("r")
            assert lease is None or not lease.live
            [row] = stores.journal.list_runs()
            assert row.status == "running"
