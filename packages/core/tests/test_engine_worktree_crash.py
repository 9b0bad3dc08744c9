"""A worktree's patch is replayed, and nothing of it is left, whoever crashed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from engine_worktree_bench import PATCH, Bench, change_everything, git, leftovers

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import StepFailedError, StoreCorruptError, SupersededError
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context
    from rulvar.core.testing import StoreCall

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return Bench(tmp_path)


# --- replay -----------------------------------------------------------------------------------


def test_a_replay_has_value_and_patch_without_git_or_the_repository(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.work = change_everything
    asyncio.run(bench.run())
    del bench.store._tables._runs["r"].records[3:]
    bench.repo.rename(bench.repo.with_name("away"))
    monkeypatch.setenv("PATH", "")
    outcome = asyncio.run(bench.resume())
    assert (outcome.value, outcome.executed) == ({"changed": 8}, 0)
    first, second = bench.results
    assert first == second
    assert len(bench.paths) == 1


@pytest.mark.parametrize("spoilt", [None, b"", b"another"])
def test_a_patch_that_is_not_the_one_ends_the_segment_and_not_the_run(
    bench: Bench, spoilt: bytes | None
) -> None:
    bench.work = change_everything
    asyncio.run(bench.run())
    del bench.store._tables._runs["r"].records[3:]
    patch = bench.pair.transcripts.get(PATCH)
    assert patch is not None
    if spoilt is None:
        bench.pair.transcripts.delete(PATCH)
    else:
        bench.pair.transcripts.put(PATCH, spoilt)
    with pytest.raises(StoreCorruptError, match=PATCH):
        asyncio.run(bench.resume())
    assert len(bench.store.load("r")) == 3, "nothing was settled"
    bench.pair.transcripts.put(PATCH, patch)
    assert asyncio.run(bench.resume()).value == {"changed": 8}
    assert len(bench.paths) == 1


def test_the_base_stays_the_commit_that_it_first_named(bench: Bench) -> None:
    bench.work = lambda path: (path / "kept.txt").read_text()
    asyncio.run(bench.run())
    bench.forget_answer()
    (bench.repo / "kept.txt").write_text("moved on\n")
    git(bench.repo, "commit", "-q", "-a", "-m", "second")
    assert asyncio.run(bench.resume()).value == "kept\n"
    assert bench.results[-1].base == bench.first
    assert bench.paths[0] != bench.paths[1]


# --- crashes ----------------------------------------------------------------------------------

KILLED = """
import asyncio, json, os, signal, sys
from pathlib import Path
from rulvar.core import Engine, Stores, workflow
from rulvar.core.engine.calls import git
from rulvar.core.testing import ReferenceStore

where, run, how = sys.argv[1:]
if how == "in git":
    git._SETTINGS = (*git._SETTINGS, f"core.hooksPath={os.getcwd()}")

@workflow(name="work")
async def work(ctx, args):
    def body(path):
        (path / "half.txt").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    await ctx.worktree("fix", where, body)

async def main():
    store = ReferenceStore()
    class Ids:
        def token(self): return run
        def uuid(self): raise AssertionError
        def random(self): raise AssertionError
    async with Engine(Stores(store, store.transcripts()), ids=Ids()) as engine:
        await engine.run(work, {}, run_id="r")

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["in the body", "in git"])
def test_the_next_segment_clears_what_a_killed_process_left(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    asyncio.run(bench.run())
    bench.forget_answer()
    row = bench.store.get_meta("r")
    assert row is not None
    assert row.genesis is not None
    if how == "in git":
        # Git runs this in the new worktree and is killed with its parent, half-way.
        hook = tmp_path / "post-checkout"
        hook.write_text("#!/bin/sh\nkill -9 $PPID\n")
        hook.chmod(0o755)
    environment = os.environ | {"TMPDIR": str(tmp_path / "temp")}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(bench.repo), row.genesis, how],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
        capture_output=True,
    )
    if how == "in the body":
        assert done.returncode == -9, done.stderr
        [left] = leftovers()
        assert "-d1-s1-e1-" in left
        [admin] = (bench.repo / ".git" / "worktrees").iterdir()
        # What a git that is killed while it makes a worktree leaves, too.
        (admin / "locked").write_text("initializing\n")
        (admin / "index.lock").touch()
        foreign = leftovers_of_others(bench, tmp_path)
    else:
        foreign = []
    assert asyncio.run(bench.resume()).status == "ok"
    if not foreign:
        bench.assert_nothing_left()
        return
    assert leftovers() == foreign, "another run's worktree is not touched"
    away = git(bench.repo, "worktree", "list", "--porcelain")
    assert str(tmp_path / "usb") in away, "a worktree of the owner's that is away stays known"


def test_a_later_segment_clears_what_an_older_one_left_of_any_dispatch(bench: Bench) -> None:
    asyncio.run(bench.run())
    bench.forget_answer()
    [place] = Path(tempfile.gettempdir()).glob("rulvar-worktrees-*/*/*")
    run = bench.paths[0].name.partition("-")[0]
    older, later = f"{run}-d9-s1-e1-tree", f"{run}-d9-s7-e7-tree"
    for name in (older, later):
        git(bench.repo, "worktree", "add", "-q", "--detach", str(place / name))
    asyncio.run(bench.resume())
    assert leftovers() == [later]


def test_a_later_segment_clears_what_lies_in_another_temp_folder(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(bench.run())
    bench.forget_answer()
    [place] = Path(tempfile.gettempdir()).glob("rulvar-worktrees-*/*/*")
    run = bench.paths[0].name.partition("-")[0]
    older, moved = (place / f"{run}-d{number}-s1-e1-tree" for number in (1, 2))
    for path in (older, moved):
        git(bench.repo, "worktree", "add", "-q", "--detach", str(path))
    owners = moved.rename(tmp_path / moved.name)
    moved.symlink_to(owners)  # no worktree of git's any more: whoever made this, it was not us
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    asyncio.run(bench.resume())
    assert not older.exists()
    assert (owners / "kept.txt").exists()
    assert leftovers() == []
    assert not (bench.repo / ".git" / "worktrees").exists()


def leftovers_of_others(bench: Bench, tmp_path: Path) -> list[str]:
    """Make a worktree of another run, and one of the owner's that is not there just now."""
    [place] = (tmp_path / "temp").glob(f"rulvar-worktrees-*/{os.getpid()}-*/*")
    other = place / f"{'0' * 16}-d1-s1-e1-tree"
    git(bench.repo, "worktree", "add", "-q", "--detach", str(other))
    git(bench.repo, "worktree", "add", "-q", "--detach", str(tmp_path / "usb"))
    (tmp_path / "usb").rename(tmp_path / "unplugged")
    return [other.name]


class ProcessDiedError(BaseException):
    """The process image is gone: nothing that it still tries has any effect."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(5, 12))
def test_a_crash_at_any_store_call_ends_with_one_patch(
    bench: Bench, at: int, when: Literal["before", "after"]
) -> None:
    dead = False

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal dead
        if dead:
            raise ProcessDiedError
        if call.number < at:
            return perform()
        dead = True
        if when == "after":
            perform()
        raise ProcessDiedError

    bench.work = change_everything
    try:
        asyncio.run(bench.run(WatchedStores(bench.pair, around=around)))
    except BaseException:  # noqa: BLE001 - whatever a dead store raises
        assert dead
    bench.clock.advance(bench.store.lease_ttl_ms)
    began = bool(bench.store.load("r"))
    outcome = asyncio.run(bench.resume() if began else bench.run())
    assert outcome.value == {"changed": 8}
    assert len(bench.paths) <= 2
    if outcome.executed or outcome.replayed:
        # A death before the call was opened is journalled first: then its seq is another one.
        result = bench.results[-1]
        assert result.patch == bench.pair.transcripts.get(result.ref)
    bench.assert_nothing_left()


def test_a_stalled_segment_keeps_out_of_its_successors_worktree(bench: Bench) -> None:
    """The stalled body wakes up after a successor took over: its patch is refused."""
    inside, thaw = threading.Event(), threading.Event()

    def stall(path: Path) -> str:
        (path / "stale.txt").write_text("stale")
        inside.set()
        assert thaw.wait(60)
        return "stale"

    def succeed(path: Path) -> str:
        assert path != bench.paths[0]
        assert not bench.paths[0].exists(), "the stalled one's worktree was cleared away"
        (path / "fresh.txt").write_text("fresh")
        return "fresh"

    bench.work = stall
    lost: list[BaseException] = []

    def stalled() -> None:
        try:
            asyncio.run(bench.run())
        except SupersededError as error:
            lost.append(error)

    thread = threading.Thread(target=stalled)
    thread.start()
    assert inside.wait(60)
    bench.work = succeed
    assert asyncio.run(bench.resume()).value == "fresh"
    thaw.set()
    thread.join(60)
    assert len(lost) == 1
    assert bench.results[-1].files == ("fresh.txt",)
    assert bench.pair.transcripts.get(PATCH) == bench.results[-1].patch
    bench.assert_nothing_left()


def test_a_cancelled_run_leaves_nothing(bench: Bench) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def wait(path: Path) -> None:
            bench.paths.append(path)
            (path / "half.txt").write_text("half")
            begun.set()
            await asyncio.Event().wait()

        @workflow
        async def endless(ctx: Context) -> None:
            await ctx.worktree("fix", bench.repo, wait)

        async with Engine(bench.pair, clock=bench.clock) as engine:
            handle = engine.start(endless, run_id="r")
            await begun.wait()
            assert (await handle.cancel()).status == "cancelled"

    asyncio.run(main())
    assert not bench.paths[0].exists()
    bench.assert_nothing_left()


def test_a_place_that_somebody_else_made_is_refused(bench: Bench, tmp_path: Path) -> None:
    if not hasattr(os, "getuid"):
        return  # the temp folder is the user's own there
    place = tmp_path / "temp" / f"rulvar-worktrees-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(StepFailedError, match="not a folder of this user alone"):
        asyncio.run(bench.run()).unwrap()
    place.rmdir()
    place.symlink_to(tmp_path)
    with pytest.raises(StepFailedError, match="not a folder of this user alone"):
        asyncio.run(bench.resume(retry=True)).unwrap()


def test_the_events_of_a_worktree(bench: Bench) -> None:
    asyncio.run(bench.run())
    told = [(e.kind, e.name, e.detail, e.seq) for e in bench.events if e.kind.startswith("work")]
    assert told == [("worktree.started", "fix", "", 1), ("worktree.finished", "fix", "ok", 1)]
    answer = json.loads(bench.store.load("r")[2].payload)["value"]
    assert set(answer) == {
        "value", "ref", "base", "patchHash", "patchBytes", "filesChanged", "files",
    }  # fmt: skip
