"""A resolution fits the schema that was journalled with its suspension, or is refused."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import ConfigError, InvalidResolutionError
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rulvar.core.engine import Context, Workflow

    Schema = Mapping[str, object] | bool

VERDICT: Schema = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["approved"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "integer", "minimum": 1}},
}


def asking(schema: Schema, **options: object) -> Workflow:
    @workflow(name="asks")
    async def body(ctx: Context) -> object:
        return await ctx.await_external("verdict", schema=schema, **options)  # type: ignore[arg-type]

    return body


class Bench:
    """One run that waits for a verdict."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())

    def engine(self, *workflows: Workflow) -> Engine:
        return Engine(self.pair, workflows, clock=self.clock)

    def kinds(self) -> list[str]:
        return [entry.kind for entry in read_journal("r", self.store.load("r"))]

    async def refused(self, engine: Engine, value: object, path: str, said: str) -> None:
        """Resolve with what does not fit."""
        before = self.store.load("r")
        with pytest.raises(InvalidResolutionError, match=r"verdict.*does not fit") as refused:
            await engine.resolve("r", "verdict", value)
        error = refused.value
        assert error.path == path
        assert f" at {path}: " in str(error)
        assert said in str(error)
        assert (error.run_id, error.key) == ("r", "verdict")
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.path) == (str(error), path)
        assert self.store.load("r") == before


BAD = [
    ({"approved": "yes"}, "$.approved", "not of type 'boolean'"),
    ({"approved": True, "lines": [1, 0]}, "$.lines[1]", "less than the minimum"),
    ({"approved": True, "lines": {}}, "$.lines", "not of type 'array'"),
    ({"approved": True, "more": 1}, "$", "Additional properties"),
    ({}, "$", "'approved' is a required property"),
    (None, "$", "not of type 'object'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("value", "path", "said"), BAD)
def test_offline_a_value_that_does_not_fit_is_refused_and_the_run_waits_on(
    value: object, path: str, said: str
) -> None:
    bench = Bench()
    asks = asking(VERDICT)

    async def main() -> object:
        async with bench.engine(asks) as engine:
            assert (await engine.run(asks, run_id="r")).status == "suspended"
            await bench.refused(engine, value, path, said)
            await engine.resolve("r", "verdict", {"approved": True})
            with pytest.raises(InvalidResolutionError, match="first answer counts") as late:
                await engine.resolve("r", "verdict", {"approved": False})
            assert late.value.path is None
            return (await engine.resume("r")).value

    assert asyncio.run(asyncio.wait_for(main(), 60)) == {"approved": True}


@pytest.mark.parametrize(("value", "path", "said"), BAD)
def test_live_a_value_that_does_not_fit_is_refused_and_the_run_waits_on(
    value: object, path: str, said: str
) -> None:
    bench = Bench()
    release = asyncio.Event()

    @workflow
    async def asks(ctx: Context) -> object:
        async def waits(branch: Context) -> object:
            return await branch.await_external("verdict", schema=VERDICT)

        async def works(branch: Context) -> None:
            """Keep the segment alive, and begin only when the other branch waits."""
            await branch.step("first", lambda: None)
            await branch.step("second", release.wait)

        return (await ctx.parallel("both", [waits, works]))[0]

    async def main() -> object:
        async with bench.engine() as engine:
            handle = engine.start(asks, run_id="r")
            async for event in handle.events():
                if (event.kind, event.name) == ("step.started", "second"):
                    break
            assert "external" in bench.kinds()
            await bench.refused(engine, value, path, said)
            await engine.resolve("r", "verdict", {"approved": True})
            release.set()
            outcome = await handle.result()
            assert outcome.segment == 1
            return outcome.value

    assert asyncio.run(asyncio.wait_for(main(), 60)) == {"approved": True}


def test_the_schema_that_counts_is_the_one_that_was_journalled() -> None:
    bench = Bench()

    async def main() -> None:
        async with bench.engine() as engine:
            await engine.run(asking({"type": "integer"}), run_id="r")
        async with bench.engine(asking({"type": "string"})) as engine:
            with pytest.raises(InvalidResolutionError):
                await engine.resolve("r", "verdict", "text")
            await engine.resolve("r", "verdict", 5)
            assert (await engine.resume("r")).value == 5

    asyncio.run(main())
    [opening] = [
        entry
        for entry in read_journal("r", bench.store.load("r"))
        if entry.kind == "external" and entry.ref is None
    ]
    assert opening.value == {"schema": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strange"}, r"\$\.schema\.type: no JSON Schema"),
        ({"properties": {"a": {"minimum": "x"}}}, r"\$\.schema\.properties\.a\.minimum"),
        ({"pattern": "("}, r"\$\.schema\.pattern"),
        ({"$ref": "#/$defs/missing"}, "'#/\\$defs/missing' leads nowhere"),
        ({"items": {"$ref": "https://example.org/schema"}}, "nothing is fetched"),
        ({"$ref": "file:///etc/hostname"}, "nothing is fetched"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "is not the dialect"),
        ({"x": object()}, r"\$\.schema\.x"),
        ([], "an object or a boolean"),
        ("string", "an object or a boolean"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_anything_is_journalled(
    schema: object, said: str
) -> None:
    bench = Bench()
    caught: list[ConfigError] = []

    @workflow
    async def careful(ctx: Context) -> object:
        try:
            await ctx.await_external("verdict", schema=cast("Schema", schema))
        except ConfigError as error:
            caught.append(error)
        return "went on"

    async def main() -> object:
        async with bench.engine() as engine:
            return (await engine.run(careful, run_id="r")).value

    assert asyncio.run(main()) == "went on"
    assert bench.kinds() == ["decision", "decision"]
    [error] = caught
    with pytest.raises(ConfigError, match=said):
        raise error


GOOD: list[tuple[Schema, object]] = [
    (True, None),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "null"}, None),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "string"}),
    ({"$id": "https://example.org/a", "$ref": "b", "$defs": {"b": {"$id": "b"}}}, 1),
    ({"$defs": {"n": {"$anchor": "n", "type": "number"}}, "$ref": "#n"}, 1),
    ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "no reference"}),
    ({"format": "date"}, "not a date: an annotation"),
    ({"const": {"$ref": "https://example.org/data"}}, {"$ref": "https://example.org/data"}),
]


@pytest.mark.parametrize(("schema", "value"), GOOD)
def test_a_schema_may_use_what_2020_12_has(schema: Schema, value: object) -> None:
    bench = Bench()
    asks = asking(schema)

    async def main() -> object:
        async with bench.engine(asks) as engine:
            outcome = await engine.run(asks, run_id="r")
            assert outcome.status == "suspended", outcome
            await engine.resolve("r", "verdict", value)
            return (await engine.resume("r")).value

    assert asyncio.run(main()) == value


def test_a_value_too_deep_for_a_recursive_schema_is_refused() -> None:
    bench = Bench()
    asks = asking({"items": {"$ref": "#"}})
    value: object = []
    for _ in range(170):
        value = [value]

    async def main() -> None:
        async with bench.engine(asks) as engine:
            await engine.run(asks, run_id="r")
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(600)
            try:
                with pytest.raises(InvalidResolutionError, match="nested too deep"):
                    await engine.resolve("r", "verdict", value)
            finally:
                sys.setrecursionlimit(limit)
            await engine.resolve("r", "verdict", [[[]]])

    asyncio.run(main())


def test_a_default_must_fit_too() -> None:
    bench = Bench()
    bad = asking(VERDICT, timeout=1, default={"approved": "no"})
    good = asking(VERDICT, timeout=0, default={"approved": False})

    async def main() -> None:
        async with bench.engine() as engine:
            failed = await engine.run(bad, run_id="bad")
            assert failed.error is not None
            assert "$.default.approved: the default does not fit" in failed.error.message
        async with bench.engine() as engine:
            assert (await engine.run(good, run_id="r")).value == {"approved": False}

    asyncio.run(main())


WITHOUT = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
sys.modules["jsonschema"] = None
from rulvar.core import ConfigError, Engine, MemoryStores, workflow
from rulvar.core.engine.kernel.schemas import check_resolution
from rulvar.core.journal import JournalEntry

@workflow
async def asks(ctx):
    try:
        await ctx.await_external("k", schema={"type": "string"})
    except ConfigError as error:
        assert "rulvar-core[schema]" in str(error), error
    return await ctx.await_external("plain", timeout=0, default="works")

async def main():
    async with Engine(MemoryStores()) as engine:
        outcome = await engine.run(asks, run_id="r")
        assert outcome.value == "works", outcome

asyncio.run(main())
opening = JournalEntry(
    seq=1, kind="external", status="suspended", key="k", value={"schema": {"type": "string"}}
)
try:  # what another process has asked for under a schema is not accepted unseen
    check_resolution(opening, "text", run_id="r")
except ConfigError as error:
    assert "rulvar-core[schema]" in str(error), error
else:
    raise AssertionError
"""

PLAIN = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from rulvar.core import Engine, MemoryStores, workflow

@workflow
async def asks(ctx):
    return await ctx.await_external("k", timeout=0, default=1)

async def main():
    async with Engine(MemoryStores()) as engine:
        assert (await engine.run(asks)).value == 1

asyncio.run(main())
assert "jsonschema" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [WITHOUT, PLAIN], ids=["without the extra", "not asked for"])
def test_the_library_is_an_extra(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
