"""Answers to a run: which wait one is for, given twice, too early, too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    AlreadyAnsweredError,
    ConfigError,
    InvalidResolutionError,
    NotAskedError,
)
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.engine import Context, RunHandle


@workflow
async def asks_twice(ctx: Context) -> object:
    first = await ctx.await_external("go")
    return [first, await ctx.await_external("go"), await ctx.await_external("other")]


@workflow
async def asks_live(ctx: Context, gate: object = None) -> object:
    del gate

    async def asking(branch: Context) -> object:
        return [await branch.await_external("go"), await branch.await_external("go")]

    async def working(branch: Context) -> object:
        return await branch.step("work", GATE.wait)

    return await ctx.parallel("both", [asking, working])


class Gate:
    """Holds a step until the test lets it go."""

    event: asyncio.Event

    async def wait(self) -> str:
        await self.event.wait()
        return "worked"


GATE = Gate()


def pair() -> Stores:
    store = ReferenceStore()
    return Stores(store, store.transcripts())


def test_an_answer_given_twice_never_answers_the_second_wait() -> None:
    async def main() -> None:
        async with Engine(pair(), [asks_twice]) as engine:
            (first,) = (await engine.run(asks_twice, run_id="r")).waiting_for
            await engine.resolve("r", "go", "yes", seq=first.seq)
            (second,) = (await engine.resume("r")).waiting_for
            assert (second.key, second.seq > first.seq) == ("go", True)
            # The answer to the first question, once more: its sender was not told that it landed.
            with pytest.raises(AlreadyAnsweredError, match=rf"seq {first.seq}\) is resolved"):
                await engine.resolve("r", "go", "yes", seq=first.seq)
            with pytest.raises(NotAskedError) as early:
                await engine.resolve("r", "go", "no", seq=second.seq + 9)
            assert f"'go' (seq {second.seq})" in str(early.value)
            # Without a number it is the earliest one that is open.
            await engine.resolve("r", "go", "no")
            (third,) = (await engine.resume("r")).waiting_for
            with pytest.raises(NotAskedError):
                await engine.resolve("r", "go", "no", seq=third.seq)
            await engine.resolve("r", "other", 3, seq=third.seq)
            assert (await engine.resume("r")).value == ["yes", "no", 3]

    asyncio.run(main())


def test_not_asked_yet_and_answered_already_are_two_codes() -> None:
    async def main() -> None:
        async with Engine(pair(), [asks_twice]) as engine:
            await engine.run(asks_twice, run_id="r")
            with pytest.raises(NotAskedError) as early:
                await engine.resolve("r", "other", 1)
            assert (early.value.code, early.value.retryable) == ("not-asked", True)
            await engine.resolve("r", "go", 1)
            with pytest.raises(AlreadyAnsweredError) as late:
                await engine.resolve("r", "go", 1)
            assert (late.value.code, late.value.retryable) == ("already-answered", False)
            assert isinstance(late.value, InvalidResolutionError)
            await engine.resume("r")
            await engine.cancel("r")
            # Of a run that has ended: what it was given is answered, the rest is past.
            with pytest.raises(AlreadyAnsweredError):
                await engine.resolve("r", "go", 1)
            with pytest.raises(InvalidResolutionError, match="is cancelled: it waits") as past:
                await engine.resolve("r", "other", 1)
            assert (past.value.code, past.value.retryable) == ("invalid-resolution", False)

    asyncio.run(main())


def test_a_live_run_is_answered_by_the_same_rules() -> None:
    async def main() -> None:
        GATE.event = asyncio.Event()
        async with Engine(pair(), [asks_live]) as engine:
            handle = engine.start(asks_live, run_id="r")
            await handle.began()
            first = await seq_of_wait(engine, "r", 0)
            with pytest.raises(NotAskedError):
                await handle.resolve("other", 1)
            await until_asked(handle, "go", 1, first)
            second = await seq_of_wait(engine, "r", 1)
            with pytest.raises(AlreadyAnsweredError):
                await handle.resolve("go", 1, seq=first)
            with pytest.raises(NotAskedError):
                await engine.resolve("r", "go", 1, seq=second + 5)
            with pytest.raises(NotAskedError):
                await engine.resolve("r", "other", 1, seq=first)
            await until_asked(handle, "go", 2, second)
            GATE.event.set()
            assert (await handle.result()).value == [[1, 2], "worked"]

    asyncio.run(main())


async def until_asked(handle: RunHandle, key: str, value: object, seq: int) -> None:
    """Answer a question that is journalled, and that the segment may not know of yet."""
    while True:
        try:
            await handle.resolve(key, value, seq=seq)
        except NotAskedError:
            await asyncio.sleep(0)
        else:
            return


async def seq_of_wait(engine: Engine, run_id: str, number: int) -> int:
    """Return where the run's n-th question stands, once it is asked."""
    while True:
        found = [
            record.seq
            for record in engine.runtime.reads.load(run_id)
            if b'"kind":"external"' in record.payload and b'"ref"' not in record.payload
        ]
        if len(found) > number:
            return found[number]
        await asyncio.sleep(0)


@pytest.mark.parametrize("seq", [-1, True, "1"])
def test_a_number_that_is_none_is_refused_before_anything_is_read(seq: object) -> None:
    async def main() -> None:
        async with Engine(pair(), [asks_twice]) as engine:
            with pytest.raises(ConfigError, match="seq"):
                await engine.resolve("r", "go", 1, seq=seq)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_handle_cancels_the_run_that_has_suspended_by_then() -> None:
    async def main() -> None:
        async with Engine(pair(), [asks_twice]) as engine:
            handle = engine.start(asks_twice, run_id="r")
            assert (await handle.result()).status == "suspended"
            assert (await handle.cancel()).status == "cancelled"
            assert (await handle.cancel()).status == "cancelled"
            outcome = await engine.resume("r")
            assert (outcome.status, outcome.waiting_for) == ("cancelled", ())

    asyncio.run(main())


def test_a_handle_cancels_under_the_lease_that_its_caller_holds() -> None:
    async def main() -> None:
        stores = pair()
        assert isinstance(stores.journal, ReferenceStore)
        lease = stores.journal.acquire("r", "the caller")
        async with Engine(stores, [asks_twice]) as engine:
            handle = engine.start(asks_twice, run_id="r", lease=lease)
            assert (await handle.result()).status == "suspended"
            assert (await handle.cancel()).status == "cancelled"
            stores.journal.renew(lease)
            stores.journal.release(lease)
            assert (await engine.resume("r")).status == "cancelled"

    asyncio.run(main())


def test_a_handle_whose_run_has_ended_keeps_its_outcome() -> None:
    @workflow
    async def ends(ctx: Context) -> object:
        return await ctx.step("one", lambda: 1)

    async def main() -> None:
        async with Engine(pair(), [ends]) as engine:
            handle = engine.start(ends, run_id="r")
            await handle.result()
            assert (await handle.cancel()).status == "ok"

    asyncio.run(main())
