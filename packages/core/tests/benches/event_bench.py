"""A short run whose events are known, and how tests read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.engine import workflow
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.engine import Context, Event, EventStream


@workflow(name="two-steps")
async def two_steps(ctx: Context, _args: object) -> list[str]:
    return [await ctx.step("a", lambda: "A"), await ctx.step("b", lambda: "B")]


WHOLE = [
    ("lease.granted", ""),
    ("run.started", "two-steps"),
    ("step.started", "a"),
    ("step.finished", "a"),
    ("step.started", "b"),
    ("step.finished", "b"),
    ("run.settled", "ok"),
    ("run.ended", "ok"),
    ("lease.released", ""),
]


class Bench:
    """One store on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.pair = Stores(self.store, self.store.transcripts())


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.name) for event in events]


async def all_of(stream: EventStream) -> list[Event]:
    return [event async for event in stream]
