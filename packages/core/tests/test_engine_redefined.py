"""A workflow defined anew, as a notebook's cell that runs again; bodies that can never run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, Workflow, workflow
from rulvar.core.errors import ConfigError
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context

CELL = """
from rulvar.core.engine import workflow

@workflow
async def greet(ctx):
    return await ctx.step("say", lambda: {word!r})
"""


def run_cell(word: str, module: str = "__main__") -> Workflow:
    """What a notebook does when a cell is run: the same names, another function."""
    names: dict[str, object] = {"__name__": module}
    exec(CELL.format(word=word), names)
    greet = names["greet"]
    assert isinstance(greet, Workflow)
    return greet


def pair() -> Stores:
    store = ReferenceStore()
    return Stores(store, store.transcripts())


def test_the_cell_that_ran_last_counts() -> None:
    async def main() -> None:
        first = run_cell("hello")
        async with Engine(pair(), [first]) as engine:
            assert (await engine.run(first, run_id="a")).value == "hello"
            second = run_cell("hi")
            assert (await engine.run(second, run_id="b")).value == "hi"
            assert engine.workflows["greet"] is second
            assert (await engine.run("greet", run_id="c")).value == "hi"
            # What has ended keeps what it came to.
            assert (await engine.resume("a")).value == "hello"

    asyncio.run(main())


def closures() -> list[Workflow]:
    def made(number: int) -> Workflow:
        @workflow(name="made")
        async def body(ctx: Context) -> int:  # noqa: ARG001
            return number

        return body

    return [made(1), made(2)]


@pytest.mark.parametrize(
    "two",
    [
        lambda: [run_cell("a"), run_cell("b", module="elsewhere")],
        closures,
    ],
    ids=["of two modules", "of one function"],
)
def test_two_that_stand_beside_one_another_are_refused(
    two: Callable[[], list[Workflow]],
) -> None:
    async def main() -> None:
        first, second = two()
        async with Engine(pair(), [first]) as engine:
            with pytest.raises(ConfigError, match="two workflows have the name"):
                await engine.run(second, run_id="b")

    asyncio.run(main())


def test_one_list_holds_no_two_of_a_name() -> None:
    with pytest.raises(ConfigError, match="two workflows have the name 'greet'"):
        Engine(pair(), [run_cell("a"), run_cell("b")])


def test_a_body_that_no_run_can_call_is_refused_when_it_is_decorated() -> None:
    async def keyword(ctx: Context, *, url: str) -> str:  # noqa: ARG001
        return url

    async def both(ctx: Context, args: object, *, url: str) -> str:  # noqa: ARG001
        return url

    async def optional(ctx: Context, args: object = None, *, retries: int = 3) -> int:  # noqa: ARG001
        return retries

    for body in (keyword, both):
        with pytest.raises(ConfigError, match=r"needs the keyword 'url'.*write \(ctx, url\)"):
            workflow(body)

    async def main() -> None:
        fine = workflow(optional)
        async with Engine(pair(), [fine]) as engine:
            assert (await engine.run(fine, {"x": 1}, run_id="r")).value == 3

    asyncio.run(main())
