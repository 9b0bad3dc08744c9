"""A worktree is real, its patch is kept, and nothing of it is left, whoever crashed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, StepFailedError, StoreCorruptError, SupersededError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow, WorktreeResult
    from rulvar.core.events import Event
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall

BINARY = bytes(range(256)) * 8
PATCH = "r/patch/1"


def git(where: Path, *arguments: str, given: bytes | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(
        ["git", "-C", str(where), *who, *arguments],
        env=environment,
        input=given,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


class Bench:
    """A repository, a store, a workflow with one worktree, and what its body did."""

    def __init__(self, tmp_path: Path) -> None:
        self.repo = tmp_path / "repo"
        self.repo.mkdir()
        git(self.repo, "init", "-q", "-b", "main")
        (self.repo / "long.txt").write_text("".join(f"line {n}\n" for n in range(60)))
        (self.repo / "old.bin").write_bytes(BINARY)
        (self.repo / "run.sh").write_text("#!/bin/sh\n")
        (self.repo / "kept.txt").write_text("kept\n")
        (self.repo / ".gitignore").write_text("*.log\n")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-q", "-m", "first")
        self.first = git(self.repo, "rev-parse", "HEAD").strip()
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())
        self.base = "HEAD"
        self.where: str | Path = self.repo
        self.paths: list[Path] = []
        self.results: list[WorktreeResult[object]] = []
        self.events: list[Event] = []
        self.work: Callable[[Path], object] = lambda path: path.name

    def body(self, path: Path) -> object:
        self.paths.append(path)
        return self.work(path)

    @property
    def workflow(self) -> Workflow:
        @workflow(name="work")
        async def work(ctx: Context, _args: object) -> object:
            done = await ctx.worktree("fix", self.where, self.body, base=self.base)
            self.results.append(done)
            return done.value

        return work

    async def run(self, stores: StorePair | None = None) -> RunOutcome:
        async with Engine(
            stores or self.pair, clock=self.clock, observer=self.events.append
        ) as engine:
            return await engine.run(self.workflow, {}, run_id="r")

    async def resume(
        self, stores: StorePair | None = None, *, retry_failed: bool = False
    ) -> RunOutcome:
        self.clock.advance(self.store.lease_ttl_ms)
        async with Engine(stores or self.pair, [self.workflow], clock=self.clock) as engine:
            return await engine.resume("r", retry_failed=retry_failed)

    def forget_answer(self) -> None:
        """As if the process had died before it journalled what the worktree came to."""
        del self.store._tables._runs["r"].records[2:]

    def assert_nothing_left(self) -> None:
        assert git(self.repo, "worktree", "list").count("\n") == 1
        assert not (self.repo / ".git" / "worktrees").exists()
        assert leftovers() == []
        assert git(self.repo, "status", "--porcelain") == ""


def leftovers() -> list[str]:
    return sorted(
        path.name
        for place in Path(tempfile.gettempdir()).glob("rulvar-worktrees-*/*")
        for path in place.iterdir()
    )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return Bench(tmp_path)


# --- the patch --------------------------------------------------------------------------------


def change_everything(path: Path) -> dict[str, int]:
    (path / "new.bin").write_bytes(BINARY[::-1])
    (path / "old.bin").write_bytes(b"\0" + BINARY)
    (path / "long.txt").rename(path / "renamed.txt")
    (path / "kept.txt").unlink()
    (path / "run.sh").chmod(0o755)
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "b\u00e4r \u2603.txt").write_text("found\r\n", newline="")
    (path / "empty").touch()
    (path / "link").symlink_to("renamed.txt")
    (path / "noise.log").write_text("ignored")
    return {"changed": 8}


def tree_of(path: Path) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    for file in sorted(path.rglob("*")):
        if ".git" in file.parts or file.is_dir():
            continue
        content = str(file.readlink()).encode() if file.is_symlink() else file.read_bytes()
        found[file.relative_to(path).as_posix()] = (file.lstat().st_mode & 0o111, content)
    return found


def test_the_patch_carries_every_kind_of_change_and_applies(bench: Bench, tmp_path: Path) -> None:
    trees: list[dict[str, tuple[int, bytes]]] = []

    def work(path: Path) -> object:
        answer = change_everything(path)
        trees.append(tree_of(path))
        return answer

    bench.work = work
    outcome = asyncio.run(bench.run())
    assert outcome.value == {"changed": 8}
    assert (outcome.status, outcome.executed) == ("ok", 1)
    [done] = bench.results
    assert (done.ref, done.base) == (PATCH, bench.first)
    assert done.files_changed == 8
    assert set(done.files) == {
        "new.bin", "old.bin", "renamed.txt", "kept.txt", "run.sh", "empty", "link",
        "deep/er/b\u00e4r \u2603.txt",
    }  # fmt: skip
    assert bench.pair.transcripts.get(PATCH) == done.patch
    bench.assert_nothing_left()

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(bench.repo), str(clone))
    git(clone, "apply", "--index", "-", given=done.patch)
    expected = {name: facts for name, facts in trees[0].items() if name != "noise.log"}
    assert tree_of(clone) == expected


def test_a_body_may_be_async_and_may_commit(bench: Bench) -> None:
    async def work(path: Path) -> object:
        (path / "one.txt").write_text("one\n")
        git(path, "add", "-A")
        git(path, "commit", "-q", "-m", "inside")
        await asyncio.sleep(0)
        (path / "two.txt").write_text("two\n")
        return None

    @workflow
    async def both(ctx: Context) -> list[str]:
        done = await ctx.worktree("async", bench.repo, work)
        return list(done.files)

    async def main() -> RunOutcome:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return await engine.run(both)

    assert asyncio.run(main()).value == ["one.txt", "two.txt"]
    assert git(bench.repo, "rev-parse", "HEAD").strip() == bench.first
    bench.assert_nothing_left()


def test_a_body_that_changes_nothing_has_an_empty_patch(bench: Bench) -> None:
    bench.work = lambda path: (path / "kept.txt").read_text()
    assert asyncio.run(bench.run()).value == "kept\n"
    [done] = bench.results
    assert (done.patch, done.files, done.files_changed) == (b"", (), 0)
    assert bench.pair.transcripts.get(PATCH) == b""
    assert asyncio.run(bench.resume()).value == "kept\n"


def test_a_body_may_remove_everything(bench: Bench) -> None:
    def work(path: Path) -> None:
        for file in path.iterdir():
            if file.name != ".git":
                file.unlink()

    bench.work = work
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[0].files_changed == 5


def test_an_ignored_file_that_was_added_by_force_is_in_the_patch(bench: Bench) -> None:
    def work(path: Path) -> None:
        (path / "wanted.log").write_text("wanted")
        (path / "unwanted.log").write_text("unwanted")
        git(path, "add", "-f", "wanted.log")

    bench.work = work
    asyncio.run(bench.run())
    assert bench.results[0].files == ("wanted.log",)


def test_the_settings_of_whoever_runs_it_do_not_change_the_patch(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.work = change_everything
    asyncio.run(bench.run())
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    ran = tmp_path / "hook-ran"
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (hooks / "post-checkout").chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[diff]\nnoprefix = true\nmnemonicPrefix = true\nrenames = false\nexternal = false\n"
        "[color]\nui = always\ndiff = always\n[core]\nquotePath = false\nsafecrlf = true\n"
        f"hooksPath = {hooks}\nattributesFile = {tmp_path / 'attributes'}\n"
        '[diff "mine"]\ncommand = false\ntextconv = false\n'
    )
    (tmp_path / "attributes").write_text("* diff=mine\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    bench.forget_answer()
    asyncio.run(bench.resume())
    first, second = bench.results
    assert first.patch == second.patch
    assert len(bench.paths) == 2
    assert not ran.exists()


def test_line_ends_that_git_would_complain_about_are_no_failure(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\nautocrlf = input\nsafecrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    bench.work = change_everything
    asyncio.run(bench.run()).unwrap()
    assert bench.results[0].files_changed == 8


def test_the_callers_git_variables_do_not_leak_in(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    for name, value in {
        "GIT_DIR": str(other / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true",
    }.items():
        monkeypatch.setenv(name, value)
    bench.work = change_everything
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[0].files_changed == 8
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "objects").exists()
    bench.assert_nothing_left()


@pytest.mark.parametrize("born", [True, False], ids=["with a commit", "without one"])
def test_a_repository_inside_is_refused(bench: Bench, born: bool) -> None:
    def work(path: Path) -> None:
        (path / "inner").mkdir()
        git(path / "inner", "init", "-q")
        (path / "inner" / "file").write_text("lost otherwise")
        if born:
            git(path / "inner", "add", "-A")
            git(path / "inner", "commit", "-q", "-m", "inner")

    bench.work = work
    outcome = asyncio.run(bench.run())
    with pytest.raises(StepFailedError, match="inner"):
        outcome.unwrap()
    bench.assert_nothing_left()


def test_a_body_that_removes_git_changes_no_repository_around_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = bench.repo.parent / "around"
    around.mkdir()
    git(around, "init", "-q")
    (around / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(around / "temp"))

    def work(path: Path) -> None:
        (path / ".git").unlink()
        (path / "new.txt").write_text("new")

    bench.work = work
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[0].files == ("new.txt",)
    assert not (around / ".git" / "index").exists()
    bench.assert_nothing_left()


def test_folders_that_the_body_has_closed_and_locks_it_left_are_no_hindrance(bench: Bench) -> None:
    def work(path: Path) -> None:
        (path / "new.txt").write_text("new")
        inner = path / "closed.log" / "in"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.chmod(0o000)
        admin = Path((path / ".git").read_text().removeprefix("gitdir:").strip())
        (admin / "index.lock").touch()

    bench.work = work
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[0].files == ("new.txt",)
    bench.assert_nothing_left()


def test_worktrees_side_by_side(bench: Bench) -> None:
    together = threading.Barrier(4, timeout=30)

    def branch(number: int) -> Callable[[Context], Awaitable[bytes]]:
        def work(path: Path) -> None:
            together.wait()
            (path / f"{number}.txt").write_text(str(number))

        async def one(ctx: Context) -> bytes:
            done = await ctx.worktree("same", bench.repo, work)
            assert done.files == (f"{number}.txt",)
            return done.patch

        return one

    @workflow
    async def four(ctx: Context) -> int:
        return len(set(await ctx.parallel("all", [branch(n) for n in range(4)])))

    async def main() -> RunOutcome:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return await engine.run(four)

    assert asyncio.run(main()).value == 4
    bench.assert_nothing_left()


def test_a_folder_of_the_repository_and_a_bare_one_will_do(bench: Bench, tmp_path: Path) -> None:
    (bench.repo / "sub").mkdir()
    bench.where = bench.repo / "sub"
    bench.work = lambda path: (path / "kept.txt").read_text()
    assert asyncio.run(bench.run()).value == "kept\n"
    (bench.repo / "sub").rmdir()
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(bench.repo), str(bare))
    bench.where = str(bare)
    bench.work = change_everything
    bench.store.delete("r")
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[-1].files_changed == 8
    assert git(bare, "worktree", "list").count("\n") == 1


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repo", "base", "said"),
    [
        (None, "no-such-branch", "no-such-branch.*names no commit"),
        (None, "-x", "is no revision"),
        (None, "", "names no commit"),
        (None, "HEAD:kept.txt", "names no commit"),
        ("plain", "HEAD", "no git repository"),
        ("absent", "HEAD", "no git repository"),
        ("unborn", "HEAD", "names no commit"),
        ("no\0name", "HEAD", "no git repository"),
    ],
)
def test_what_cannot_be_worked_in_is_refused_before_anything_is_journalled(
    bench: Bench, tmp_path: Path, repo: str | None, base: str, said: str
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "unborn").mkdir()
    git(tmp_path / "unborn", "init", "-q")
    bench.base = base
    bench.where = bench.repo if repo is None else str(tmp_path / repo)
    _assert_refused(bench, said)


def test_the_absence_of_git_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    _assert_refused(bench, "git is not installed")


def _assert_refused(bench: Bench, said: str) -> None:
    caught: list[ConfigError] = []

    @workflow
    async def careful(ctx: Context) -> object:
        try:
            await ctx.worktree("fix", bench.where, bench.body, base=bench.base)
        except ConfigError as error:
            caught.append(error)
        bench.where, bench.base = bench.repo, "main"
        return await ctx.step("go on", lambda: "went on")

    async def main() -> RunOutcome:
        async with Engine(bench.pair, clock=bench.clock) as engine:
            return await engine.run(careful, run_id="r")

    assert asyncio.run(main()).value == "went on"
    [error] = caught
    assert re.search(said, str(error)), str(error)
    kinds = [entry.kind for entry in read_journal("r", bench.store.load("r"))]
    assert kinds == ["decision", "step", "step", "decision"]
    assert bench.paths == []


def test_a_call_that_was_refused_was_never_made(bench: Bench) -> None:
    """The next call of that name is the first one, in a replay too."""
    bench.base = "no-such-branch"

    @workflow(name="again")
    async def again(ctx: Context) -> object:
        if bench.base != "main":
            with pytest.raises(ConfigError):
                await ctx.worktree("fix", bench.repo, bench.body, base=bench.base)
        done = await ctx.worktree("fix", bench.repo, bench.body, base="main")
        return done.files_changed

    async def main() -> None:
        async with Engine(bench.pair, [again], clock=bench.clock) as engine:
            assert (await engine.run(again, run_id="r")).value == 0
            bench.base = "main"
            del bench.store._tables._runs["r"].records[3:]
            row = bench.store.get_meta("r")
            assert row is not None
            outcome = await engine.resume("r")
            assert (outcome.value, outcome.executed, outcome.replayed) == (0, 0, 1)

    asyncio.run(main())
    assert len(bench.paths) == 1


def test_a_body_that_fails_leaves_nothing_and_may_be_tried_again(bench: Bench) -> None:
    def fail(path: Path) -> None:
        (path / "half.txt").write_text("half")
        message = "not today"
        raise ValueError(message)

    bench.work = fail
    outcome = asyncio.run(bench.run())
    with pytest.raises(StepFailedError, match="not today"):
        outcome.unwrap()
    bench.assert_nothing_left()
    assert bench.pair.transcripts.get(PATCH) is None
    bench.work = change_everything
    again = asyncio.run(bench.resume(retry_failed=True))
    assert again.status == "ok"
    assert "half.txt" not in bench.results[0].files


def test_a_result_that_cannot_cross_the_journal_fails_it(bench: Bench) -> None:
    bench.work = lambda path: {"path": path}
    with pytest.raises(StepFailedError, match=r"\$\.path"):
        asyncio.run(bench.run()).unwrap()
    bench.assert_nothing_left()


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
from rulvar.core.engine import git
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
    [place] = Path(tempfile.gettempdir()).glob("rulvar-worktrees-*/*")
    run = bench.paths[0].name.partition("-")[0]
    older, later = f"{run}-d9-s1-e1-tree", f"{run}-d9-s7-e7-tree"
    for name in (older, later):
        git(bench.repo, "worktree", "add", "-q", "--detach", str(place / name))
    asyncio.run(bench.resume())
    assert leftovers() == [later]


def leftovers_of_others(bench: Bench, tmp_path: Path) -> list[str]:
    """Make a worktree of another run, and one of the owner's that is not there just now."""
    [place] = (tmp_path / "temp").glob("rulvar-worktrees-*/*")
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
        assert bench.results[-1].patch == bench.pair.transcripts.get(PATCH)
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
        asyncio.run(bench.resume(retry_failed=True)).unwrap()


def test_the_events_of_a_worktree(bench: Bench) -> None:
    asyncio.run(bench.run())
    told = [(e.kind, e.name, e.detail, e.seq) for e in bench.events if e.kind.startswith("work")]
    assert told == [("worktree.started", "fix", "", 1), ("worktree.finished", "fix", "ok", 1)]
    answer = json.loads(bench.store.load("r")[2].payload)["value"]
    assert set(answer) == {
        "value", "ref", "base", "patchHash", "patchBytes", "filesChanged", "files",
    }  # fmt: skip
