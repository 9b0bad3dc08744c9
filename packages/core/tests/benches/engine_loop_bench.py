"""A loop of five turns over one store, and a process of its that dies at a call."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.engine import Continue, Done, Engine, workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, RunOutcome, Turns, Workflow
    from rulvar.core.events import Event
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall


TURNS = 5
LOOP = 1
"""The seq of the loop's dispatch: the first entry after ``run_start``."""
CHECKPOINT = f"r/ckpt/{LOOP}"


class ProcessDiedError(BaseException):
    """The process image is gone: nothing that it still tries has any effect."""


class Image:
    """A process that dies at the store call that ``fatal`` names, before or after it lands."""

    def __init__(
        self,
        stores: StorePair,
        fatal: Callable[[StoreCall], bool],
        when: Literal["before", "after"] = "before",
    ) -> None:
        self.dead = False
        self._fatal = fatal
        self._when = when
        self.stores = WatchedStores(stores, around=self._around)

    def _around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if self.dead:
            raise ProcessDiedError
        if not self._fatal(call):
            return perform()
        self.dead = True
        if self._when == "after":
            perform()
        raise ProcessDiedError


class Bench:
    """One loop over one store, and what really ran."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())
        self.ran: Counter[int] = Counter()
        self.made: Counter[int] = Counter()
        self.events: list[Event] = []
        self.turn: Callable[[object, int], object] = self.count
        self.options: dict[str, object] = {}
        self.initial: object = []

    def count(self, state: object, number: int) -> Continue[object] | Done[object]:
        self.ran[number] += 1
        assert isinstance(state, list)
        state.append(number)
        return Done({"sum": state}) if number == TURNS - 1 else Continue(state)

    @property
    def workflow(self) -> Workflow:
        @workflow(name="loop")
        async def body(ctx: Context, _args: object) -> object:
            turns: Turns = await ctx.turns("loop", self.turn, self.initial, **self.options)  # type: ignore[arg-type]
            return turns.to_json()

        return body

    async def run(self, stores: StorePair | None = None) -> RunOutcome:
        async with Engine(
            stores or self.pair, clock=self.clock, observer=self.events.append
        ) as engine:
            return await engine.run(self.workflow, {}, run_id="r")

    async def resume(self, stores: StorePair | None = None, *, retry: bool = False) -> RunOutcome:
        self.clock.advance(self.store.lease_ttl_ms)  # whoever had it is gone
        async with Engine(
            stores or self.pair, [self.workflow], clock=self.clock, observer=self.events.append
        ) as engine:
            return await (engine.retry("r") if retry else engine.resume("r"))

    def die_at(
        self, fatal: Callable[[StoreCall], bool], when: Literal["before", "after"] = "before"
    ) -> Image:
        """Run in a process that dies there."""
        image = Image(self.pair, fatal, when)
        with pytest.raises(BaseException) as died:  # noqa: PT011 - whatever a dead store raises
            asyncio.run(self.run(image.stores))
        assert image.dead, died
        return image

    def blob(self, ref: str = CHECKPOINT) -> bytes | None:
        return self.pair.transcripts.get(ref)

    def put_checkpoint(self, blob: bytes) -> None:
        self.pair.transcripts.put(CHECKPOINT, blob)


def sealed(facts: dict[str, object]) -> bytes:
    """Return the blob of a checkpoint that says this, whole as it was kept."""
    said = {name: value for name, value in facts.items() if name != "hash"}
    body = json.dumps(said, separators=(",", ":")).encode().removesuffix(b"}")
    return body + b',"hash":"sha256:%b"}' % hashlib.sha256(body).hexdigest().encode()


def nth_checkpoint(number: int) -> Callable[[StoreCall], bool]:
    """Return what knows the put of the checkpoint after ``number`` turns."""

    def fits(call: StoreCall) -> bool:
        if call.method != "put" or call.arguments[0] != CHECKPOINT:
            return False
        turns: int = json.loads(call.payload)["turns"]
        return turns == number

    return fits


WHOLE = {
    "ended": "done",
    "result": {"sum": [0, 1, 2, 3, 4]},
    "state": [0, 1, 2, 3],
    "turns": 5,
    "summaries": [],
}
