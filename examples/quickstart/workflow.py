"""The quickstart's workflow: read files, one durable step each, then merge what they said.

Nothing in here knows about leases, workers or takeovers: that is the engine's part.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from rulvar.core import Context, workflow

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Counted", "Merged", "Wanted", "count_files", "count_plainly", "list_files"]


class Wanted(TypedDict):
    """The run's arguments: at most ``limit`` files of ``directory`` that match ``pattern``."""

    directory: str
    pattern: str
    limit: int


class Counted(TypedDict):
    """What one file's step found."""

    file: str
    lines: int
    bytes: int
    sha256: str


class Merged(TypedDict):
    """What the run comes to; ``sha256`` is over the files' own, in their order."""

    files: int
    lines: int
    bytes: int
    sha256: str


half_read: Callable[[str], None] | None = None
"""Called with a file's name when half of it is read: where the quickstart freezes a worker."""


def standard_library() -> str:
    """Return the folder of this Python's own modules."""
    return sysconfig.get_paths()["stdlib"]


def list_files(wanted: Wanted) -> list[str]:
    """Return the names of the first files, sorted, relative to the directory."""
    directory = Path(wanted["directory"])
    found = (
        path.relative_to(directory).as_posix()
        for path in directory.glob(wanted["pattern"])
        if path.is_file() and not path.is_symlink()
    )
    # A name that is no text cannot cross the journal.
    return sorted(name for name in found if name.isprintable())[: wanted["limit"]]


def count_file(directory: str, name: str) -> Counted:
    """Read one file in two halves; count and hash it."""
    path = Path(directory, name)
    with path.open("rb") as file:
        data = file.read(path.stat().st_size // 2)
        if half_read is not None:
            half_read(name)
        data += file.read()
    return Counted(
        file=name,
        lines=data.count(b"\n"),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def merge(counted: list[Counted]) -> Merged:
    """Add up."""
    together = "".join(one["sha256"] for one in counted)
    return Merged(
        files=len(counted),
        lines=sum(one["lines"] for one in counted),
        bytes=sum(one["bytes"] for one in counted),
        sha256=hashlib.sha256(together.encode("ascii")).hexdigest(),
    )


def step_name(name: str) -> str:
    """Return what a file's step is called in the journal."""
    return f"count {name[-150:]}"


@workflow(name="count-files")
async def count_files(ctx: Context, wanted: Wanted) -> Merged:
    """Count every file in a step of its own; a step that has completed never runs again."""
    names = await ctx.step("list", list_files, wanted)
    counted = [
        await ctx.step(step_name(name), count_file, wanted["directory"], name) for name in names
    ]
    return await ctx.step("merge", merge, counted)


def count_plainly(wanted: Wanted) -> Merged:
    """Do the same in this process, without any of the machinery."""
    return merge([count_file(wanted["directory"], name) for name in list_files(wanted)])
