"""The process dies at its n-th store call, for every n: a successor finishes, exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import InvalidResolutionError, StepFailedError
from rulvar.core.journal import last_settle, read_journal
from rulvar.core.records import TERMINAL_STATUSES, JournalRecord
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.engine import Context, RunOutcome, Workflow
    from rulvar.core.stores import StorePair
    from rulvar.core.testing import StoreCall

ARGS = {"names": ["a", "b", "c"]}


class ProcessDiedError(BaseException):
    """The process image is gone: nothing that it still tries has any effect."""


class Image:
    """A process that dies at its n-th store call, before or after it has landed."""

    def __init__(self, stores: StorePair, at: int, when: Literal["before", "after"]) -> None:
        self.dead = False
        self.acknowledged: list[JournalRecord] = []
        self._at = at
        self._when = when
        self._lock = threading.Lock()
        self.stores = WatchedStores(stores, around=self._around)

    def _around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        with self._lock:
            if self.dead or (call.number == self._at and self._when == "before"):
                self.dead = True
                raise ProcessDiedError
            result = perform()
            if call.number == self._at:
                self.dead = True
                raise ProcessDiedError
            if call.method == "append":
                self.acknowledged += [a for a in call.arguments if isinstance(a, JournalRecord)]
            return result


class Work:
    """A workload of every kind of call, and how often its steps really ran."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def count(self, name: str) -> str:
        self.ran[name] += 1
        return name.upper()

    async def count_async(self, name: str) -> str:
        return self.count(name)

    def workflow(self) -> Workflow:
        @workflow(name="work")
        async def body(ctx: Context, args: dict[str, list[str]]) -> object:
            first = await ctx.step("first", self.count, "first")

            def branch(name: str) -> Callable[[Context], Awaitable[str]]:
                async def one(branch: Context) -> str:
                    if name == "b":
                        await branch.sleep(30)
                    return await branch.step("one", self.count_async, name)

                return one

            names = await ctx.parallel("all", [branch(n) for n in args["names"]], limit=2)
            allowed = await ctx.await_external("allow")
            token = str(await ctx.uuid())
            try:
                await ctx.step("fails", self.fails)
            except StepFailedError as error:
                failure = error.error_type
            await ctx.sleep(60)
            last = await ctx.step("last", self.count, "last")
            return [first, names, allowed, len(token), failure, last]

        return body

    def fails(self) -> None:
        self.ran["fails"] += 1
        message = "as it should"
        raise ValueError(message)


EXPECTED = ["FIRST", ["A", "B", "C"], {"by": "me"}, 36, "ValueError", "LAST"]


async def through(stores: StorePair, clock: ManualClock, body: Workflow) -> RunOutcome:
    """Start the run, answer it, let time pass, and resume it until it is over."""
    engine = Engine(stores, [body], clock=clock, suspend_after=0)
    try:
        outcome = await engine.run(body, ARGS, run_id="r")
        while outcome.status not in TERMINAL_STATUSES:
            for waiting in outcome.waiting_for:
                if waiting.kind == "external":
                    with contextlib.suppress(InvalidResolutionError):
                        await engine.resolve("r", waiting.key, {"by": "me"})
            clock.advance(60_000)
            outcome = await engine.resume("r")
    finally:
        await engine.aclose()
    return outcome


def audit(store: ReferenceStore, acknowledged: list[JournalRecord]) -> None:
    records = store.load("r")
    kept = {record.seq: record.payload for record in records}
    for record in acknowledged:
        assert kept[record.seq] == record.payload, "an acknowledged record is gone"
    entries = read_journal("r", records)
    settles = [
        entry.value["runStatus"]
        for entry in entries
        if entry.kind == "decision"
        and isinstance(entry.value, dict)
        and entry.value["decisionType"] == "run_settle"
    ]
    assert settles.count("ok") == 1
    assert settles[-1] == "ok"
    epochs = [entry.epoch for entry in entries if entry.epoch is not None]
    assert epochs == sorted(epochs), "epochs fall along the journal"
    settle = last_settle(entries)
    assert settle is not None
    assert settle.value == EXPECTED
    row = store.get_meta("r")
    assert row is not None
    assert row.status == "ok"
    assert row.wake_at is None
    assert store.list_leases(None, 10) == []


def crash_at(at: int, when: Literal["before", "after"]) -> bool:
    """Let one image die at a call, and another finish; return whether the first one died."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    stores = Stores(store, store.transcripts())
    image = Image(stores, at, when)
    work = Work()
    try:
        asyncio.run(through(image.stores, clock, work.workflow()))
    except ProcessDiedError:
        assert image.dead
    before = Counter(work.ran)
    done = {
        str(entry.value).lower() if entry.status == "ok" else "fails"
        for entry in read_journal("r", store.load("r"))
        if entry.kind == "step" and entry.ref is not None
    }
    clock.advance(store.lease_ttl_ms)
    outcome = asyncio.run(through(stores, clock, work.workflow()))
    assert outcome.value == EXPECTED, image.stores.calls[-1]
    for name, times in work.ran.items():
        assert times == before[name] if name in done else times <= 2, f"{name}: {times} times"
    audit(store, image.acknowledged)
    return image.dead


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_at_any_store_call_is_succeeded_exactly_once(
    when: Literal["before", "after"],
) -> None:
    at = 1
    while crash_at(at, when):
        at += 1
    assert at > 50, "the workload makes more calls than that"


def test_a_crash_while_failed_steps_are_retried_leaves_a_run_that_goes_on() -> None:
    """The journal ends in work after a terminal settle: that run is not over."""
    clock = ManualClock()
    store = ReferenceStore(clock=clock)
    stores = Stores(store, store.transcripts())
    healthy = False

    @workflow
    async def flaky(ctx: Context) -> object:
        def step() -> str:
            if not healthy:
                message = "not yet"
                raise RuntimeError(message)
            return "done"

        result = await ctx.step("flaky", step)
        return [result, await ctx.step("more", lambda: "more")]

    async def main(pair: StorePair, *, retry: bool = False) -> RunOutcome:
        async with Engine(pair, [flaky], clock=clock) as engine:
            if store.get_meta("r") is None:
                return await engine.run(flaky, run_id="r")
            return await (engine.retry("r") if retry else engine.resume("r"))

    assert asyncio.run(main(stores)).status == "error"
    healthy = True
    appends = 0

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal appends
        appends += call.method == "append"
        if appends >= 4:  # the retry, then the step's opening and answer
            raise ProcessDiedError
        return perform()

    with pytest.raises(ProcessDiedError):
        asyncio.run(main(WatchedStores(stores, around=around), retry=True))
    clock.advance(store.lease_ttl_ms)
    outcome = asyncio.run(main(stores))
    assert (outcome.status, outcome.value) == ("ok", ["done", "more"])
    assert outcome.executed == 1, "the retried step was journalled and is not paid again"
