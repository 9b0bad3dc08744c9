"""A repository to work in, and a look at what a worktree has left."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.core.engine import Engine, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow, WorktreeResult
    from rulvar.core.events import Event
    from rulvar.core.stores import StorePair


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

    async def resume(self, stores: StorePair | None = None, *, retry: bool = False) -> RunOutcome:
        self.clock.advance(self.store.lease_ttl_ms)
        async with Engine(stores or self.pair, [self.workflow], clock=self.clock) as engine:
            return await (engine.retry("r") if retry else engine.resume("r"))

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
        for place in Path(tempfile.gettempdir()).glob("rulvar-worktrees-*/*/*")
        for path in place.iterdir()
    )


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
