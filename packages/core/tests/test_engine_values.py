"""What cannot cross the journal is refused with its path; what can comes back exactly."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, StepFailedError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.testing import StoreCall

HUGE = "x" * (15 * 1024 * 1024 + 1)
CYCLE: list[object] = []
CYCLE.append(CYCLE)

BAD = [
    pytest.param([1, {"a": math.nan}], "[1].a", id="NaN"),
    pytest.param({"a": [math.inf]}, ".a[0]", id="Infinity"),
    pytest.param([-math.inf], "[0]", id="-Infinity"),
    pytest.param({"a": "\ud800"}, ".a", id="lone surrogate"),
    pytest.param({"\udfff": 1}, "", id="lone surrogate in a key"),
    pytest.param([[2**53]], "[0][0]", id="2^53"),
    pytest.param({"n": -(2**70)}, ".n", id="-2^70"),
    pytest.param({1: "a"}, "", id="a key that is not a string"),
    pytest.param([b"bytes"], "[0]", id="bytes"),
    pytest.param({"s": {1, 2}}, ".s", id="a set"),
    pytest.param([object()], "[0]", id="an object"),
    pytest.param(CYCLE, "[0]", id="a cycle"),
    pytest.param(HUGE, "", id="over 15 MiB"),
]

GOOD: list[object] = [
    None,
    True,
    0,
    2**53 - 1,
    -(2**53 - 1),
    0.1,
    5e-324,
    1.7976931348623157e308,
    "",
    "a\x00b",
    "\u2028\ufeff\U0001f600",
    {"": {"\x00": []}},
    [[[[]]]],
    {"__proto__": 1, "seq": 2, "lease": None},
]


def bench() -> tuple[ReferenceStore, Stores, ManualClock]:
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    return store, Stores(store, store.transcripts()), clock


def loadable(store: ReferenceStore) -> int:
    return len(read_journal("r", store.load("r")))


@pytest.mark.parametrize(("value", "path"), BAD)
def test_bad_arguments_are_refused_before_any_io(value: object, path: str) -> None:
    store, stores, clock = bench()

    @workflow
    async def takes(_ctx: Context, args: object) -> object:
        return args

    async def main() -> None:
        async with Engine(stores, [takes], clock=clock) as engine:
            with pytest.raises(ConfigError) as caught:
                await engine.run(takes, value, run_id="r")
            assert (caught.value.path or "").startswith("$.args" + path)

    asyncio.run(main())
    assert store.snapshot().epochs == {}, "not even a lease"


@pytest.mark.parametrize(("value", "path"), BAD)
@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
def test_a_bad_step_result_fails_the_step_and_the_run_goes_on(
    value: object, path: str, plain: bool
) -> None:
    store, stores, clock = bench()

    @workflow
    async def steps(ctx: Context) -> object:
        async def returns() -> object:
            return value

        try:
            await (ctx.step("bad", lambda: value) if plain else ctx.step("bad", returns))
        except StepFailedError as error:
            return [error.error_type, str(error)]
        return None

    async def main() -> RunOutcome:
        async with Engine(stores, [steps], clock=clock) as engine:
            first = await engine.run(steps, run_id="r")
            assert (await engine.resume("r")).value == first.value
            return first

    outcome = asyncio.run(main())
    assert outcome.status == "ok"
    kind, text = cast("list[str]", outcome.value)
    assert kind.endswith("ConfigError")
    assert f"${path[:6]}" in text
    assert loadable(store) == 4


@pytest.mark.parametrize(("value", "path"), BAD)
def test_a_bad_result_of_the_body_fails_the_run(value: object, path: str) -> None:
    store, stores, clock = bench()

    @workflow
    async def returns(_ctx: Context) -> object:
        return value

    async def main() -> RunOutcome:
        async with Engine(stores, [returns], clock=clock) as engine:
            return await engine.run(returns, run_id="r")

    outcome = asyncio.run(main())
    assert outcome.status == "error"
    assert outcome.error is not None
    assert f"$.result{path[:6]}" in outcome.error.message
    assert loadable(store) == 2


@pytest.mark.parametrize(("value", "path"), BAD)
def test_bad_arguments_of_a_child_are_refused_before_it_is_dispatched(
    value: object, path: str
) -> None:
    store, stores, clock = bench()

    @workflow
    async def takes(_ctx: Context, args: object) -> object:
        return args

    @workflow
    async def parent(ctx: Context) -> object:
        with pytest.raises(ConfigError) as caught:
            await ctx.child("c", takes, value)
        return caught.value.path

    async def main() -> RunOutcome:
        async with Engine(stores, [takes, parent], clock=clock) as engine:
            return await engine.run(parent, run_id="r")

    assert str(asyncio.run(main()).value).startswith("$.args" + path)
    assert loadable(store) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("value", "path"), BAD)
@pytest.mark.parametrize("live", [True, False])
def test_a_bad_resolution_or_default_is_refused_and_the_run_waits_on(
    value: object, path: str, live: bool
) -> None:
    store, stores, clock = bench()
    waiting = threading.Event()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        result = perform()
        if b'"key":"k"' in call.payload:
            waiting.set()
        return result

    @workflow
    async def waits(ctx: Context) -> object:
        try:
            await ctx.await_external("never", timeout=0.005, default=value)
        except ConfigError as error:
            seen = error.path
        return [seen, await ctx.await_external("k", timeout=60)]

    async def main() -> None:
        linger = 100_000 if live else 0
        watched = WatchedStores(stores, around=around)
        async with Engine(watched, [waits], clock=clock, suspend_after=linger / 1000) as engine:
            handle = engine.start(waits, run_id="r")
            assert await asyncio.get_running_loop().run_in_executor(None, waiting.wait, 10)
            if not live:
                await handle.result()
            before = store.load("r")
            with pytest.raises(ConfigError) as caught:
                await engine.resolve("r", "k", value)
            assert (caught.value.path or "").startswith("$")
            assert store.load("r") == before
            await engine.resolve("r", "k", "good")
            outcome = await (handle.result() if live else engine.resume("r"))
            assert outcome.status == "ok"
            seen, resolved = cast("list[str]", outcome.value)
            assert seen.startswith("$.default" + path[:3])
            assert resolved == "good"

    asyncio.run(main())


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=10,
)


async def round_trips(stores: Stores, clock: ManualClock, value: object) -> None:
    seen: list[object] = []

    @workflow
    async def echo(ctx: Context, args: object) -> object:
        stepped = await ctx.step("s", lambda: value)
        waited = await ctx.await_external("d", timeout=0, default=value)
        resolved = await ctx.await_external("k")
        seen.append([args, stepped, waited, resolved])
        return [args, stepped, waited, resolved]

    async with Engine(stores, [echo], clock=clock, suspend_after=0) as engine:
        await engine.run(echo, value, run_id="r")
        await engine.resolve("r", "k", value)
        outcome = await engine.resume("r")
        assert outcome.value == [value] * 4
        assert repr(outcome.value) == repr([value] * 4), "0.0 and -0.0, 1 and 1.0 and True differ"
        assert (await engine.resume("r")).value == outcome.value
        assert (await engine.run(echo, value, run_id="r")).value == outcome.value
        assert len(seen) == 1


@pytest.mark.parametrize("value", GOOD, ids=repr)
def test_values_at_the_edge_round_trip(value: object) -> None:
    _store, stores, clock = bench()
    asyncio.run(round_trips(stores, clock, value))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(json_values)
def test_every_i_json_value_round_trips(value: object) -> None:
    _store, stores, clock = bench()
    asyncio.run(round_trips(stores, clock, value))


@pytest.mark.slow
def test_a_large_value_within_the_bound_round_trips() -> None:
    _store, stores, clock = bench()
    value = "x" * (15 * 1024 * 1024 - 2)

    @workflow
    async def large(ctx: Context, args: str) -> object:
        return await ctx.step("s", lambda: args)

    async def main() -> RunOutcome:
        async with Engine(stores, [large], clock=clock) as engine:
            return await engine.run(large, value, run_id="r")

    assert asyncio.run(main()).value == value


def raises_unreadable() -> None:
    class Unreadable(Exception):  # noqa: N818 - of this test alone
        def __str__(self) -> str:
            message = "not even a message"
            raise RuntimeError(message)

    raise Unreadable


def raises_surrogate() -> None:
    class Odd(Exception):  # noqa: N818 - of this test alone
        pass

    Odd.__qualname__ = "Odd\ud800"
    message = "\udfff"
    raise Odd(message)


def raises_long() -> None:
    message = "y" * 20_000_000
    raise ValueError(message)


def raises_stop_iteration() -> None:
    raise StopIteration


@pytest.mark.parametrize("place", ["step", "body"])
@pytest.mark.parametrize(
    "fails", [raises_unreadable, raises_surrogate, raises_long, raises_stop_iteration]
)
def test_an_error_that_cannot_be_written_down_still_fails_what_raised_it(
    fails: Callable[[], None], place: str
) -> None:
    store, stores, clock = bench()

    @workflow
    async def body(ctx: Context) -> str:
        if place == "body":
            fails()
        with pytest.raises(StepFailedError):
            await ctx.step("s", fails)
        return "caught"

    async def main() -> RunOutcome:
        async with Engine(stores, [body], clock=clock) as engine:
            return await engine.run(body, run_id="r")

    assert asyncio.run(main()).status == ("ok" if place == "step" else "error")
    assert loadable(store) == (4 if place == "step" else 2)
    for entry in read_journal("r", store.load("r")):
        json.dumps(entry.error, ensure_ascii=False).encode("utf-8")  # no lone surrogate


def test_a_body_that_changes_what_it_was_given_changes_nothing_that_is_journalled() -> None:
    _store, stores, clock = bench()

    @workflow
    async def changes(ctx: Context, args: list[int]) -> object:
        args.append(2)
        value = await ctx.step("s", lambda: [1])
        value.append(2)
        waited = await ctx.await_external("k", timeout=0, default=[1])
        assert isinstance(waited, list)
        waited.append(2)
        return [args, value, waited]

    async def main() -> None:
        given = [1]
        async with Engine(stores, [changes], clock=clock) as engine:
            outcome = await engine.run(changes, given, run_id="r")
            assert given == [1]
            assert outcome.value == [[1, 2]] * 3

    asyncio.run(main())
