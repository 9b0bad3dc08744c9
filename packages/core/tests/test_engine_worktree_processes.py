"""Each process has a folder of worktrees of its own: dead ones' are cleared, living ones' never."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_worktree_bench import Bench, git, leftovers

from rulvar.core.engine.calls.git import Tenure, make_tree, place_of, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

RUN = "0123456789abcdef"
OTHER = "fedcba9876543210"

CHILD = """
import os, sys
from rulvar.core.engine.calls.git import Tenure, make_tree, place_of

repo, run, segment, base = sys.argv[1:]
place = place_of(repo)
tree = make_tree(place, run, 1, Tenure(int(segment), int(segment)), base)
if sys.stdin.readline() == "fork\\n":
    pid = os.fork()
    if pid == 0:
        place_of(repo)
        os._exit(0)
    os.waitpid(pid, 0)
    print("forked", flush=True)
    sys.stdin.readline()
print(tree.path, flush=True)
sys.stdin.readline()
"""


class Process:
    """Another process with one worktree, alive until it is told or killed."""

    def __init__(self, bench: Bench, run: str, segment: int = 1) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(bench.repo), run, str(segment), bench.first],
            env=os.environ | {"TMPDIR": tempfile.gettempdir()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, word: str = "") -> str:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


@contextmanager
def another(bench: Bench, run: str, segment: int = 1) -> Iterator[Process]:
    process = Process(bench, run, segment)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return Bench(tmp_path)


def known_to_git(bench: Bench) -> int:
    return git(bench.repo, "worktree", "list").count("\n") - 1


def test_what_a_dead_process_left_of_any_run_is_cleared(bench: Bench) -> None:
    with another(bench, OTHER) as process:
        theirs = Path(process.tell())
        ours = place_of(str(bench.repo))
        assert ours.folder != theirs.parent
        assert ours.folder.parent != theirs.parent.parent
        assert (theirs / "kept.txt").exists(), "its process lives"
        process.kill()
        place_of(str(bench.repo))
        assert not theirs.parent.parent.exists()
        assert known_to_git(bench) == 0
    assert leftovers() == []


def test_a_worktree_that_a_living_process_uses_is_not_taken_from_under_it(bench: Bench) -> None:
    """Its run has a later segment elsewhere by now; it has not noticed yet."""
    with another(bench, RUN) as stalled:
        theirs = Path(stalled.tell())
        tree = make_tree(place_of(str(bench.repo)), RUN, 1, Tenure(2, 2), bench.first)
        assert (theirs / "kept.txt").exists()
        assert known_to_git(bench) == 2
        remove_tree(tree)
        assert (theirs / "kept.txt").exists()
        stalled.kill()
        later = make_tree(place_of(str(bench.repo)), RUN, 1, Tenure(3, 3), bench.first)
        assert not theirs.exists()
        remove_tree(later)
    bench.assert_nothing_left()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_takes_nothing_from_its_parent(bench: Bench) -> None:
    with another(bench, OTHER) as process:
        assert process.tell("fork") == "forked"
        theirs = Path(process.tell())
        place_of(str(bench.repo))
        assert (theirs / "kept.txt").exists()


def test_a_process_that_ends_in_order_leaves_no_folder(bench: Bench) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from rulvar.core.engine.calls.git import place_of; place_of(sys.argv[1])",
            str(bench.repo),
        ],
        env=os.environ | {"TMPDIR": tempfile.gettempdir()},
        check=False,
    )
    assert done.returncode == 0
    [place] = Path(tempfile.gettempdir()).glob("rulvar-worktrees-*")
    assert list(place.iterdir()) == []


def test_a_folder_that_was_cleared_away_is_made_again(bench: Bench) -> None:
    first = place_of(str(bench.repo))
    for path in sorted(first.folder.parent.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    second = place_of(str(bench.repo))
    tree = make_tree(second, RUN, 1, Tenure(1, 1), bench.first)
    assert (tree.path / "kept.txt").exists()
    remove_tree(tree)
    bench.assert_nothing_left()
