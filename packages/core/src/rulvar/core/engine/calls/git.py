"""What a worktree needs of git: one command at a time, in an environment of its own.

The caller's ``GIT_*`` variables point at the caller's repository and are taken out; hooks,
external diffs and background maintenance are off, so that a patch depends on the files
alone. Every function blocks; none knows of runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.core.engine.calls.temporary import in_use_by_another, own_folder
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Changes",
    "GitError",
    "Place",
    "Tenure",
    "Tree",
    "changes_of",
    "make_tree",
    "place_of",
    "remove_tree",
    "resolve_base",
]

_KEPT = frozenset(
    {"GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM"}
    | {"GIT_EXEC_PATH", "GIT_SSH", "GIT_SSH_COMMAND"}
)
"""Where git and its user's settings are; every other ``GIT_*`` is about some repository."""

_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.safecrlf=false",
    "core.quotePath=true",
    # All of the base, or what the body does elsewhere could not be in the patch.
    "core.sparseCheckout=false",
    "worktree.useRelativePaths=false",
    "advice.addEmbeddedRepo=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
)
_GITLINK = "160000"
_COMMIT = re.compile(rb"[0-9a-f]{40,64}\n\Z")
_UNSTAGED = ("diff-files", "--raw", "-z", "--ignore-submodules=none", "--no-renames")
_MOST_NAMES = 1_000
_NAME = re.compile(r"([0-9a-f]{16})-d([0-9]+)-s([0-9]+)-e([0-9]+)-tree\Z")
# Where git already knew a worktree of that name, it added a number to its own folder for it.
_ADMIN_NAME = re.compile(r"([0-9a-f]{16})-d([0-9]+)-s([0-9]+)-e([0-9]+)-tree[0-9]*\Z")


class GitError(Exception):
    """A git command failed; the message is what git said."""


@dataclass(frozen=True, slots=True, order=True)
class Tenure:
    """Which dispatch of which segment a worktree belongs to."""

    segment: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the worktrees of one repository lie: git's folder, and ours in the temp folder."""

    repo: str
    common: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Tree:
    """One worktree: its path, and git's own folder for it."""

    place: Place
    path: Path
    admin: Path


@dataclass(frozen=True, slots=True)
class Changes:
    """How a worktree differs from its base."""

    patch: bytes
    count: int
    names: tuple[str, ...]


def _run(arguments: Sequence[str], extra: dict[str, str] | None = None) -> bytes:
    program = shutil.which("git")
    if program is None:
        message = "git is not installed, or not on PATH: install git to work in worktrees"
        raise ConfigError(message)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _KEPT
    }
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"} | (extra or {})
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    done = subprocess.run(  # noqa: S603 - git itself, without a shell
        [program, *settings, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "backslashreplace").strip()
        raise GitError(said or f"git {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def resolve_base(repo: str, base: str) -> str:
    """Return the commit that ``base`` names now, as a full object name.

    Raises `ConfigError` when git is absent, ``repo`` is no repository or ``base`` no commit.
    """
    _common(repo)
    if base.startswith("-") or "\0" in base:
        message = f"worktree base {base!r} is not a revision: give a branch, a tag or a commit"
        raise ConfigError(message)
    cause: Exception | None = None
    try:
        found = _run(["-C", repo, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"])
    except (GitError, ValueError) as error:  # a lone surrogate has no bytes for git
        found, cause = b"", error
    if _COMMIT.match(found) is None:  # ^HEAD is a revision too, and names what is left out
        message = (
            f"worktree base {base!r} names no commit of the repository {repo!r}: give a branch, "
            "a tag or a commit that it has"
        )
        raise ConfigError(message) from cause
    return found.decode("ascii").strip()


def _common(repo: str) -> Path:
    try:
        found = _run(["-C", repo, "rev-parse", "--git-common-dir"])
    except (GitError, ValueError) as error:
        message = f"{repo!r} is not a usable git repository: {error}"
        raise ConfigError(message) from error
    # Relative to the repository, unless it is absolute.
    return Path(repo, os.fsdecode(found.rstrip(b"\r\n"))).resolve()


def place_of(repo: str) -> Place:
    """Return where this process's worktrees of the repository lie; makes the folder.

    Clears away what dead processes left. Raises `ConfigError` as `resolve_base`
    does, and when another owner owns the place.
    """
    common = _common(repo)
    ours = own_folder(_remove_dead)
    name = hashlib.sha256(os.fsencode(common)).hexdigest()[:16]
    folder = ours / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return Place(repo, common, folder)


def _remove_dead(process: Path) -> None:
    """Remove a dead process's worktrees, and what git knows of them."""
    for place in _listed(process):
        for tree in _listed(place):
            if _NAME.match(tree.name) and not tree.is_symlink():
                _forget_dead(tree)
    _remove_folder(process)


def _forget_dead(tree: Path) -> None:
    with suppress(OSError):
        link = os.fsdecode((tree / ".git").read_bytes().rstrip(b"\r\n"))
        admin = Path(link.removeprefix("gitdir: "))
        back = Path(os.fsdecode((admin / "gitdir").read_bytes().rstrip(b"\r\n")))
        if back == tree / ".git" and _ADMIN_NAME.match(admin.name):
            _remove_folder(admin)


def make_tree(place: Place, run: str, dispatch: int, tenure: Tenure, base: str) -> Tree:
    """Check ``base`` out into a new worktree, after clearing away what older segments left.

    What lies in the folder of another process is left alone while that process lives.

    ``run`` is 16 hex digits that no other run has. Raises `GitError`.
    """
    _clear(place, run, dispatch, tenure)
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{run}-d{dispatch}-s{tenure.segment}-e{tenure.epoch}-tree"
    path = place.folder / name
    with_repo = ["--git-dir", str(place.common)]
    try:
        _run([*with_repo, "worktree", "add", "--detach", "--force", str(path), base])
        link = (path / ".git").read_text(encoding="utf-8")
    except BaseException:
        _remove(place, name)
        raise
    return Tree(place, path, Path(link.removeprefix("gitdir:").strip()))


def remove_tree(tree: Tree) -> None:
    """Remove a worktree, and what git knows of it. Raises ``OSError`` when a file resists."""
    _remove(tree.place, tree.path.name)
    _remove_folder(tree.admin)


def _clear(place: Place, run: str, dispatch: int, tenure: Tenure) -> None:
    """Remove the worktrees of this run's older segments, and older ones of this dispatch."""
    known = {path.name for path in _listed(place.folder)}
    for path in _listed(place.common / "worktrees"):
        if _ADMIN_NAME.match(path.name):
            known.add(path.name.rstrip("0123456789"))
    for name in sorted(known):
        runtime = _NAME.match(name)
        if runtime is None or runtime[1] != run:
            continue
        theirs = Tenure(int(runtime[3]), int(runtime[4]))
        same_dispatch = int(runtime[2]) == dispatch
        if theirs.segment < tenure.segment or (same_dispatch and theirs <= tenure):
            _remove(place, name)


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except FileNotFoundError:
        return


def _remove(place: Place, name: str) -> None:
    # By hand, and only what bears this name: a git that was killed leaves lock files that
    # `git worktree remove` stops at, and `git worktree prune` would also forget worktrees of
    # the repository's owner that only happen to be away.
    _remove_folder(place.folder / name)
    admins = place.common / "worktrees"
    for path in _listed(admins):
        if _ADMIN_NAME.match(path.name) and path.name.rstrip("0123456789") == name:
            link = _link_of(path)
            if link is not None and in_use_by_another(link.parent.parent.parent):
                continue
            _remove_elsewhere(path, name, link)
            _remove_folder(path)
    with suppress(OSError):
        admins.rmdir()  # as git does, when it was the last


def _link_of(admin: Path) -> Path | None:
    """Return the worktree's own ``.git`` as git knows it; None where it was cut short."""
    try:
        return Path(os.fsdecode((admin / "gitdir").read_bytes().rstrip(b"\r\n")))
    except OSError:
        return None


def _remove_elsewhere(admin: Path, name: str, link: Path | None) -> None:
    """Remove the worktree of a segment in another folder than this process's: git knows where."""
    if link is None:
        return
    try:
        mutual = os.fsdecode(link.read_bytes().rstrip(b"\r\n")) == f"gitdir: {admin}"
    except OSError:
        return  # gone already, or cut short by a crash
    if mutual and link.parent.name == name:
        _remove_folder(link.parent)


def _remove_folder(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        with suppress(FileNotFoundError):
            folder.unlink()
        return
    for inner, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(inner, 0o700)  # noqa: PTH101 - a folder that its body has closed
    shutil.rmtree(folder)


def changes_of(tree: Tree, base: str) -> Changes:
    """Return how the worktree differs from ``base``: all but ignored files.

    Raises `GitError`, and `ConfigError` for what a patch cannot carry: a repository inside the
    worktree, or uncommitted changes inside a submodule.
    """
    # Whatever has become of the worktree's .git: never the repository around it.
    here = ["--git-dir", str(tree.admin), "--work-tree", str(tree.path)]
    with suppress(FileNotFoundError):
        (tree.admin / "index.lock").unlink()  # of a git that the body has left behind
    _run(["-C", str(tree.path), *here, "add", "--all"])
    _check_submodules(_run(["-C", str(tree.path), *here, *_UNSTAGED]))
    compared = ["diff-index", "--cached", "--no-ext-diff", "--no-textconv", "--find-renames"]
    raw = _run(["-C", str(tree.path), *here, *compared, "--raw", "-z", base])
    names = _names(raw)
    form = ["--patch", "--binary", "--full-index", "--no-color", "--submodule=short"]
    prefixes = ["--src-prefix=a/", "--dst-prefix=b/"]
    patch = _run(["-C", str(tree.path), *here, *compared, *form, *prefixes, base])
    return Changes(patch, len(names), tuple(names[:_MOST_NAMES]))


def _check_submodules(raw: bytes) -> None:
    """Refuse what only a submodule has: a patch names the commit that it is at, no file of it."""
    fields = iter(raw.split(b"\0")[:-1])
    for header in fields:
        name = next(fields).decode("utf-8", "backslashreplace")
        if header.decode("ascii").lstrip(":").split(" ")[0] == _GITLINK:
            message = (
                f"the submodule {name!r} of the worktree has changes that were not committed, "
                "which no patch can carry: commit and push them, or change it outside"
            )
            raise ConfigError(message)


def _names(raw: bytes) -> list[str]:
    """Return the paths of a raw diff; a renamed file's is the new one."""
    names: list[str] = []
    fields = iter(raw.split(b"\0")[:-1])
    for header in fields:
        old_mode, new_mode, _, _, what = header.decode("ascii").lstrip(":").split(" ")
        path = next(fields)
        if what[0] in "RC":
            path = next(fields)
        name = path.decode("utf-8", "backslashreplace")
        if new_mode == _GITLINK and old_mode != _GITLINK:
            message = (
                f"the worktree contains another repository at {name!r}, whose files no patch "
                "can carry: remove its .git, or make it outside of the worktree"
            )
            raise ConfigError(message)
        names.append(name)
    return names
