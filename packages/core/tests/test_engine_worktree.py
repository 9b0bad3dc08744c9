"""A worktree is real, its patch is kept, and nothing of it is left, whoever crashed."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_worktree_bench import PATCH, Bench, change_everything, git

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, StepFailedError
from rulvar.core.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return Bench(tmp_path)


# --- the patch --------------------------------------------------------------------------------


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
    # Not by copying the folder of objects: the patch alone must have what is new.
    git(tmp_path, "clone", "-q", "--no-local", str(bench.repo), str(clone))
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


def test_what_only_a_submodule_has_is_refused(bench: Bench, tmp_path: Path) -> None:
    allowed = ("-c", "protocol.file.allow=always")
    git(tmp_path, "clone", "-q", str(bench.repo), str(tmp_path / "library"))
    git(bench.repo, *allowed, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    git(bench.repo, "commit", "-q", "-m", "second")

    def work(path: Path) -> None:
        git(path, *allowed, "submodule", "--quiet", "update", "--init")
        (path / "kept.txt").write_text("changed\n")

    def inside(path: Path) -> None:
        work(path)
        (path / "lib" / "kept.txt").write_text("lost otherwise\n")

    bench.work = inside
    with pytest.raises(StepFailedError, match="submodule 'lib' of the worktree has changes"):
        asyncio.run(bench.run()).unwrap()
    bench.assert_nothing_left()
    bench.work = work
    assert asyncio.run(bench.resume(retry=True)).status == "ok"
    assert bench.results[-1].files == ("kept.txt",), "one that is as it was is no hindrance"


def test_a_sparse_repository_is_worked_in_whole(bench: Bench) -> None:
    (bench.repo / "wanted").mkdir()
    (bench.repo / "other").mkdir()
    for name in ("wanted/file", "other/file"):
        (bench.repo / name).write_text("old\n")
    git(bench.repo, "add", "-A")
    git(bench.repo, "commit", "-q", "-m", "second")
    git(bench.repo, "sparse-checkout", "set", "wanted")
    assert not (bench.repo / "other").exists()

    def work(path: Path) -> None:
        (path / "other" / "file").write_text("new\n")
        (path / "third").mkdir()
        (path / "third" / "file").touch()

    bench.work = work
    assert asyncio.run(bench.run()).status == "ok"
    assert bench.results[-1].files == ("other/file", "third/file")


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


@pytest.mark.parametrize("left", ["nothing", "a file", "a link"])
def test_a_body_that_takes_its_folder_away_has_failed_and_leaves_nothing(
    bench: Bench, left: str
) -> None:
    def work(path: Path) -> None:
        shutil.rmtree(path)
        if left == "a file":
            path.write_text("in its place")
        elif left == "a link":
            path.symlink_to(bench.repo)

    bench.work = work
    outcome = asyncio.run(bench.run())
    if left != "a link":  # git looks through it, and finds the same folder
        assert outcome.status == "error"
    bench.assert_nothing_left()
    assert (bench.repo / "kept.txt").exists()
    bench.work = change_everything
    bench.store.delete_whole_run("r")
    assert asyncio.run(bench.run()).status == "ok"
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
        (None, "-x", "is not a revision"),
        (None, "", "names no commit"),
        (None, "HEAD:kept.txt", "names no commit"),
        (None, "^HEAD", "names no commit"),
        (None, "\ud800", "names no commit"),
        ("plain", "HEAD", "not a usable git repository"),
        ("absent", "HEAD", "not a usable git repository"),
        ("unborn", "HEAD", "names no commit"),
        ("no\0name", "HEAD", "not a usable git repository"),
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
    again = asyncio.run(bench.resume(retry=True))
    assert again.status == "ok"
    assert "half.txt" not in bench.results[0].files


def test_a_result_that_cannot_cross_the_journal_fails_it(bench: Bench) -> None:
    bench.work = lambda path: {"path": path}
    with pytest.raises(StepFailedError, match=r"\$\.path"):
        asyncio.run(bench.run()).unwrap()
    bench.assert_nothing_left()
