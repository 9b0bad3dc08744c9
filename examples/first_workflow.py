"""Measure the files of this folder, one step each. Start it twice: no step runs again."""

import asyncio
from pathlib import Path

from rulvar.core import Context, Engine, assert_fenced_writes, open_stores, workflow


def list_files() -> list[str]:
    return sorted(str(path) for path in Path().iterdir() if path.is_file())


def count_bytes(name: str) -> int:
    return Path(name).stat().st_size


@workflow
async def measure(ctx: Context) -> int:
    names = await ctx.step("list", list_files)
    return sum([await ctx.step("count", count_bytes, name, key=name) for name in names])


async def main() -> None:
    with open_stores("sqlite:///runs.db") as stores:
        assert_fenced_writes(stores)  # a deployment without the full fence never starts
        async with Engine(stores, workflows=[measure]) as engine:
            outcome = await engine.run(measure, run_id="measure-1")
    print(f"{outcome.value} bytes; {outcome.executed} steps ran in this process")


if __name__ == "__main__":
    asyncio.run(main())
