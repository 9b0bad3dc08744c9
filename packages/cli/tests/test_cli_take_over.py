"""Taking a run from its holder, from the command line."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from cli_command import document, rulvar

from rulvar.cli import multi_run
from rulvar.cli.commands.take_over import _take
from rulvar.core import Engine, Stores, workflow
from rulvar.core.errors import LeaseHeldError, SupersededError
from rulvar.core.plugins import open_stores
from rulvar.core.spi import JournalRecord
from rulvar.core.testing import WatchedStores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.core import Context
    from rulvar.core.testing import StoreCall


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RULVAR_STORE", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stalled_segment_is_fenced_and_the_run_is_free_at_once(project: Path) -> None:
    executed: list[str] = []
    inside, thaw = threading.Event(), threading.Event()

    def slow() -> str:
        executed.append("slow")
        if len(executed) == 1:
            inside.set()
            assert thaw.wait(30)
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return str(await ctx.step("slow", slow))

    async def stalled() -> None:
        with SqliteStore(project / "runs.db", lease_ttl_ms=60_000) as store:
            stores = Stores(store, store.transcripts())
            async with Engine(stores, [job]) as engine:
                handle = engine.start(job, run_id="a")
                await asyncio.to_thread(inside.wait, 30)
                taken = await asyncio.to_thread(rulvar, "runs", "take-over", "a", "--yes")
                assert "run a: taken from " in taken.stdout
                assert "(epoch 1)" in taken.stdout
                async with Engine(stores, [job]) as successor:
                    outcome = await successor.resume("a")
                thaw.set()
                with pytest.raises(SupersededError):
                    await handle.result()
                assert (outcome.status, outcome.value) == ("ok", "done")

    asyncio.run(stalled())
    assert executed == ["slow", "slow"]


def test_a_run_that_nobody_holds_is_left_as_it_is() -> None:
    with open_stores("sqlite:///runs.db") as stores:
        stores.journal.append("a", JournalRecord(seq=1, payload=b'{"seq":1}'))
    free = {"taken": False, "holder": None, "epoch": None}
    assert document("runs", "take-over", "a", "--yes") == {"runs": [{"run_id": "a"} | free]}
    assert "not held" in rulvar("runs", "take-over", "a", "--yes").stdout
    with SqliteStore("runs.db") as store:
        assert store.acquire("a", "w").epoch == 1  # none was used up


def test_an_unknown_run_is_named_and_the_others_are_taken() -> None:
    with SqliteStore("runs.db") as store:
        lease = store.acquire("a", "holder")
        result = rulvar("runs", "take-over", "nope", "a", "--yes", status=2)
        assert "there is no run 'nope'" in result.stderr
        assert "run a: taken from holder (epoch 1)" in result.stdout
        with pytest.raises(LeaseHeldError) as caught:
            store.renew(lease)
        assert caught.value.reason == "superseded"
        assert store.get_lease("a") is None


def test_an_operator_who_is_overtaken_by_another_one_has_taken_the_run_all_the_same() -> None:
    with SqliteStore("runs.db") as store:
        stalled = store.acquire("a", "holder")

        def around(call: StoreCall, perform: Callable[[], object]) -> object:
            if call.method == "release":
                store.seize("a", "another operator")
            return perform()

        watched = WatchedStores(Stores(store, store.transcripts()), around=around)
        stores = Stores(watched.journal, watched.transcripts)
        done = asyncio.run(_take(Engine(stores), stores, "a"))
        assert done == {"taken": True, "holder": "holder", "epoch": 1}
        left = store.get_lease("a")
        assert left is not None
        assert (left.owner, left.epoch) == ("another operator", 3)
        with pytest.raises(LeaseHeldError):
            store.renew(stalled)


def test_it_asks_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore("runs.db") as store:
        lease = store.acquire("a", "holder")
        assert "confirm with --yes" in rulvar("runs", "take-over", "a", status=2).stderr
        monkeypatch.setattr(multi_run, "_is_terminal", lambda: True)
        rulvar("runs", "take-over", "a", status=130, stdin="n\n")
        store.renew(lease)
        rulvar("runs", "take-over", "a", stdin="y\n")
        with pytest.raises(LeaseHeldError):
            store.renew(lease)


def test_it_looks_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore("runs.db") as store:
        store.append("free", JournalRecord(seq=1, payload=b'{"seq":1}'))
        assert "not held" in rulvar("runs", "take-over", "free").stdout
        unknown = rulvar("runs", "take-over", "nope", status=2).stderr
        assert "there is no run 'nope'" in unknown
        assert "live holder" not in unknown
        store.acquire("held", "holder")
        told = rulvar("runs", "take-over", "free", "held", status=2).stderr
        assert "taking held from holder ends the work of a live holder" in told
        asked: list[str] = []

        def granted_meanwhile(question: str, **_options: object) -> None:
            asked.append(question)
            store.seize("held", "a newer one")

        monkeypatch.setattr("click.confirm", granted_meanwhile)
        monkeypatch.setattr(multi_run, "_is_terminal", lambda: True)
        refused = rulvar("runs", "take-over", "free", "held", status=3)
        assert asked == ["Take held from holder?"]
        # It was agreed to end another tenure than this one.
        assert "is held by 'a newer one' under epoch 2" in refused.stderr
        left = store.get_lease("held")
        assert left is not None
        assert (left.owner, left.live) == ("a newer one", True)


def test_a_store_without_leases_says_so(project: Path) -> None:
    folder = f"file:///{project}/runs"
    with open_stores(folder) as stores:
        stores.journal.append("a", JournalRecord(seq=1, payload=b'{"seq":1}'))
    result = rulvar("runs", "take-over", "a", "--yes", "--store", folder, status=2)
    assert "does not support take-over" in result.stderr
    result = rulvar("runs", "take-over", "a", "--store", folder, status=2)
    assert "does not support take-over" in result.stderr
