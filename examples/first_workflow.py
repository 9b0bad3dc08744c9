"""Measure a folder, one step a file. Start it twice: the second time no step runs again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rulvar.core import Context, Engine, assert_fenced_writes, open_stores, workflow


def list_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).iterdir() if path.is_file())


def count_bytes(name: str) -> int:
    return Path(name).stat().st_size


@workflow
async def measure(ctx: Context, folder: str) -> int:
    names = await ctx.step("list", list_files, folder)
    return sum([await ctx.step("count", count_bytes, name) for name in names])


async def main() -> None:
    with open_stores("sqlite:///runs.db") as stores:
        assert_fenced_writes(stores)  # a deployment without the full fence never starts
        async with Engine(stores, workflows=[measure]) as engine:
            outcome = await engine.run(measure, ".", run_id="measure-1")
    print(f"{outcome.value} bytes; {outcome.executed} steps ran in this process")


if __name__ == "__main__":
    asyncio.run(main())
