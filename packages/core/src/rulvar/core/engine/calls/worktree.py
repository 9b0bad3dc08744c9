"""Work in a temporary git worktree: its patch is kept, the folder is removed.

The call is journalled with the commit that its base named; that commit stays its base in
every later segment. The worktree lies in the temp folder at a path made of the run, the
dispatch, the segment and the epoch: a stalled predecessor's is never the successor's. On
exit the patch becomes the blob ``<run>/patch/<dispatch seq>`` under the lease, the worktree
goes, and then the answer is journalled: whatever crashes before has a dangling dispatch, and
the segment that performs it again first removes what older segments left.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rulvar.core.engine.calls import git
from rulvar.core.engine.calls.steps import call, user_code
from rulvar.core.engine.code.raised import caught
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.segment.scope import unwrap
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rulvar.core.engine.code.raised import Caught
    from rulvar.core.engine.segment.lifecycle import Segment
    from rulvar.core.engine.segment.scope import Scope
    from rulvar.core.journal import JournalEntry

__all__ = ["WorktreeResult", "worktree"]

_log = logging.getLogger("rulvar.engine")

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorktreeResult(Generic[T_co]):
    """What the body of a worktree returned, and how it left the files.

    ``patch`` is binary-safe and against the commit ``base``; it is empty when nothing
    changed. It is kept as the blob ``ref``. ``files_changed`` counts the paths in it;
    ``files`` names the first thousand, a renamed file by its new name.
    """

    value: T_co
    patch: bytes
    ref: str
    base: str
    files_changed: int
    files: tuple[str, ...]


async def worktree(
    scope: Scope, name: str, repo: str, body: Callable[[Path], object], base: str
) -> WorktreeResult[object]:
    """Return what the journal and its blob have, or do the work; see `Context.worktree`."""
    segment = scope.segment

    async def begin() -> object:
        resolve = partial(git.resolve_base, repo, base)
        return {"base": await segment.runtime.git_threads.call(resolve)}

    opened = await scope.open("worktree", name, draw=begin)
    if isinstance(opened, Answered):
        return await _replayed(segment, opened.answer)
    return await _perform(scope, opened.entry, repo, body)


async def _replayed(segment: Segment, answer: JournalEntry) -> WorktreeResult[object]:
    facts = cast("dict[str, object]", unwrap(answer, segment.run_id))
    ref = cast("str", facts["ref"])
    patch = await segment.get_blob(ref)
    if patch is None or _hash(patch) != facts["patchHash"]:
        what = "is gone" if patch is None else "is not the one that was journalled"
        message = (
            f"run {segment.run_id!r}: the patch of its worktree {answer.key!r}, blob {ref!r}, "
            f"{what}: restore it from a backup, or start a new run"
        )
        raise segment.failed_by(StoreCorruptError(message, run_id=segment.run_id))
    segment.emit("worktree.replayed", name=answer.key, seq=answer.ref)
    return _result(facts, patch)


async def _perform(
    scope: Scope, opening: JournalEntry, repo: str, body: Callable[[Path], object]
) -> WorktreeResult[object]:
    segment, name = scope.segment, opening.key
    segment.executed += 1
    segment.emit("worktree.started", name=name, epoch=opening.epoch, seq=opening.seq)
    failed: Caught | None = None
    try:
        with user_code(segment):  # also a result of odd classes
            value, changes = await _work(segment, opening, repo, body)
        ref = f"{segment.run_id}/patch/{opening.seq}"
        await segment.put_blob(ref, changes.patch)
    except Exception as error:  # noqa: BLE001 - journalled, then raised
        failed = caught(name, error)
    if failed is not None:
        error_of_it = await scope.failed(opening, failed)
        segment.emit("worktree.finished", name=name, detail="error", seq=opening.seq)
        raise error_of_it
    facts: dict[str, object] = {
        "value": value,
        "ref": ref,
        "base": _base(opening),
        "patchHash": _hash(changes.patch),
        "patchBytes": len(changes.patch),
        "filesChanged": changes.count,
        "files": list(changes.names),
    }
    await scope.answer(opening, facts)
    segment.emit("worktree.finished", name=name, detail="ok", seq=opening.seq)
    return _result(facts, changes.patch)


async def _work(
    segment: Segment, opening: JournalEntry, repo: str, body: Callable[[Path], object]
) -> tuple[object, git.Changes]:
    """Run the body in a worktree of its own, which is gone afterwards, whatever happens."""
    threads = segment.runtime.git_threads
    base = _base(opening)
    run = hashlib.sha256(f"{segment.run_id}/{segment.genesis}".encode()).hexdigest()[:16]
    tenure = git.Tenure(segment.number, segment.writer.epoch or 0)
    made: list[git.Tree] = []

    def make() -> git.Tree:
        return git.make_tree(git.place_of(repo), run, opening.seq, tenure, base)

    try:
        # Noted even when this task is cancelled meanwhile: then it is removed all the same.
        tree = await threads.call(make, then=made.append)
        value = normalize(await call(segment, body, (tree.path,)))
        return value, await threads.call(partial(git.changes_of, tree, base))
    finally:
        for tree in made:
            await threads.call(partial(_remove, segment.run_id, tree))


def _remove(run_id: str, tree: git.Tree) -> None:
    try:
        git.remove_tree(tree)
    except OSError as error:
        # What the body came to stands; a later segment of this run tries again.
        _log.warning("run %r: its worktree %s could not be removed: %s", run_id, tree.path, error)


def _base(opening: JournalEntry) -> str:
    facts = opening.value
    base = facts.get("base") if isinstance(facts, dict) else None
    if not isinstance(base, str):
        message = f"entry {opening.seq} opens a worktree and names no base commit"
        raise ConfigError(message)
    return base


def _hash(patch: bytes) -> str:
    return "sha256:" + hashlib.sha256(patch).hexdigest()


def _result(facts: dict[str, object], patch: bytes) -> WorktreeResult[object]:
    return WorktreeResult(
        value=facts["value"],
        patch=patch,
        ref=cast("str", facts["ref"]),
        base=cast("str", facts["base"]),
        files_changed=cast("int", facts["filesChanged"]),
        files=tuple(cast("list[str]", facts["files"])),
    )
