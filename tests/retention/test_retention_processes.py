"""A process is killed at each of its store calls while it takes away; the next one finishes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.core import Continue, Done, Engine, RetentionPolicy, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import WatchedStores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from rulvar.core import Context

PROCESS = Path(__file__).with_name("retention_process.py")
TTL_MS = 100


@workflow
async def loop(ctx: Context) -> object:
    def turn(_state: object, number: int) -> object:
        return Done("over") if number == 2 else Continue(number)

    return (await ctx.turns("turns", turn, 0)).result


async def prepare(store: SqliteStore) -> None:
    async with Engine(Stores(store, store.transcripts()), [loop]) as engine:
        for run_id in ("r", "r.0", "rr"):
            assert (await engine.run(loop, run_id=run_id)).value == "over"


async def finish(store: SqliteStore, role: str, hide: tuple[str, ...]) -> None:
    stores = WatchedStores(Stores(store, store.transcripts()), without=hide)
    async with Engine(stores, [loop]) as engine:
        if role == "delete":
            await engine.delete_run("r")
        elif role == "prune":
            await engine.prune_run("r")
        else:
            await engine.apply_retention(RetentionPolicy(older_than=0))


def until_nobody_holds(store: SqliteStore) -> None:
    give_up_at = time.monotonic() + 60
    while any(lease.live for lease in store.list_leases(None, 9)):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def look(store: SqliteStore, run_id: str) -> tuple[object, ...]:
    refs = store.transcripts().list_refs(run_id)
    return store.load(run_id), store.get_meta(run_id), list(refs)


def killed_at(folder: Path, role: str, at: int, *, after: bool, hide: tuple[str, ...]) -> bool:
    folder.mkdir()
    url = f"sqlite:///{folder / 'runs.db'}?lease_ttl_ms={TTL_MS}"
    store = SqliteStore(folder / "runs.db", lease_ttl_ms=TTL_MS)
    try:
        asyncio.run(prepare(store))
        neighbours = [look(store, run_id) for run_id in ("r.0", "rr")]
        journal = store.load("r")
        command = [sys.executable, "-W", "error", str(PROCESS), role, "--store", url]
        command += ["--at", str(at), *(["--after"] if after else [])]
        command += [part for name in hide for part in ("--hide", name)]
        done = subprocess.run(command, timeout=60, check=False)
        assert done.returncode in {0, -signal.SIGKILL}
        until_nobody_holds(store)
        if done.returncode == 0 and role != "prune":
            assert look(store, "r") == ([], None, []), "nobody came between: it is gone"
        asyncio.run(finish(store, role, hide))
        if role == "retain":
            assert store.list_run_ids(None, 9) == []
        else:
            assert [look(store, run_id) for run_id in ("r.0", "rr")] == neighbours
        if role == "prune":
            assert (store.load("r"), list(store.transcripts().list_refs("r"))) == (
                journal,
                ["r/source"],
            )
        else:
            assert look(store, "r") == ([], None, [])
            assert store.acquire("r", "next").epoch > 1
        return done.returncode != 0
    finally:
        store.close()


@pytest.mark.storm
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("role", "hide"),
    [("delete", ()), ("delete", ("delete_whole_run",)), ("prune", ()), ("retain", ())],
    ids=["delete whole", "delete by calls", "prune", "retain"],
)
def test_what_a_killed_process_began_to_take_away_a_second_one_finishes(
    tmp_path: Path, role: str, hide: tuple[str, ...], after: bool
) -> None:
    at = 1
    while killed_at(tmp_path / str(at), role, at, after=after, hide=hide):
        at += 1
    assert at >= 4, "acquire, read and delete at the least"
