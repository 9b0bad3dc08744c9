"""Expired but taken by nobody is not the end; a real takeover, or a changed run, is."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine import Engine, workflow
from rulvar.core.errors import (
    ConfigError,
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    SupersededError,
)
from rulvar.core.journal import read_journal
from rulvar.core.records import JournalRecord, Lease
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine import Context, Event, RunOutcome, Workflow
    from rulvar.core.engine.lease.ownership import OwnedLease
    from rulvar.core.testing import StoreCall

WITHOUT: list[tuple[str, ...]] = [(), ("revive",)]


class Bench:
    """A run of two steps; `asleep` is called where the process sleeps, between them."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self.clock = ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.stores = WatchedStores(
            Stores(self.store, self.store.transcripts()), around=self.around, without=without
        )
        self.ran: list[str] = []
        self.events: list[Event] = []
        self.asleep: Callable[[], None] = lambda: self.clock.advance(10 * self.store.lease_ttl_ms)
        self.sleep_before: Callable[[StoreCall], bool] = lambda call: b'"ref":1' in call.payload
        self.instead: dict[str, Callable[[Callable[[], object]], object]] = {}
        self.slept = False
        self.kept: set[OwnedLease] = set()

        @workflow
        async def steps(ctx: Context) -> list[str]:
            for name in ("a", "b", "c"):
                await ctx.step(name, self.ran.append, name)
            return self.ran

        self.workflow: Workflow = steps

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if not self.slept and self.sleep_before(call):
            self.slept = True
            self.asleep()
        instead = self.instead.pop(call.method, None) if self.slept else None
        return perform() if instead is None else instead(perform)

    def renew(self) -> None:
        """Do what the keeper does when a renewal is due."""
        [owned] = self.kept
        owned.renew()

    async def run(self, lease: Lease | None = None) -> RunOutcome:
        async with Engine(
            self.stores, [self.workflow], clock=self.clock, observer=self.events.append
        ) as engine:
            self.kept = engine.runtime.renewer._kept
            return await engine.run(self.workflow, run_id="r", lease=lease)

    def methods(self) -> list[str]:
        return [call.method for call in self.stores.changes()]

    def epochs(self) -> list[int | None]:
        return [entry.epoch for entry in read_journal("r", self.store.load("r"))]


# --- nobody has taken it ------------------------------------------------------------------------


@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
def test_a_run_that_slept_with_nobody_around_goes_on_by_itself(without: tuple[str, ...]) -> None:
    bench = Bench(without)
    outcome = asyncio.run(bench.run())
    assert outcome.status == "ok"
    assert bench.ran == ["a", "b", "c"], "no completed step runs again"
    assert outcome.epoch == 2, "exactly one above its own"
    assert bench.epochs() == [1, 1, 2, 2, 2, 2, 2, 2]
    assert bench.store.list_leases(None, 1) == []
    assert bench.methods().count("revive" if not without else "acquire") == 1 + bool(without)
    told = [(event.kind, event.epoch) for event in bench.events if event.kind.startswith("lease")]
    assert told == [("lease.granted", 1), ("lease.reacquired", 2), ("lease.released", 2)]


@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
@pytest.mark.parametrize("at", range(2, 20))
def test_a_process_may_sleep_before_any_store_call(without: tuple[str, ...], at: int) -> None:
    bench = Bench(without)
    bench.sleep_before = lambda call: call.number == at
    outcome = asyncio.run(bench.run())
    assert outcome.status == "ok"
    assert bench.ran == ["a", "b", "c"]
    assert outcome.epoch in {1, 2}
    assert bench.epochs() == sorted(bench.epochs(), key=lambda epoch: epoch or 0)
    assert set(bench.epochs()) <= {1, 2}


def test_a_process_that_sleeps_before_it_has_read_anything_goes_on() -> None:
    """Nothing was decided yet: what the keeper's new lease finds is read anew."""
    bench = Bench()

    async def main() -> RunOutcome:
        async with Engine(bench.stores, [bench.workflow], clock=bench.clock) as engine:
            await engine.run(bench.workflow, run_id="r")
            records = bench.store._tables._runs["r"].records
            del records[3:]  # as if the process had died in its second step
            row = bench.store.get_meta("r")
            assert row is not None
            bench.store.put_meta(replace(row, status="running"))
            bench.kept = engine.runtime.renewer._kept
            bench.slept = False
            bench.ran.clear()
            return await engine.resume("r")

    def asleep() -> None:
        bench.clock.advance(bench.store.lease_ttl_ms)
        keeper = threading.Thread(target=bench.renew)
        keeper.start()
        keeper.join()

    bench.asleep = asleep
    bench.sleep_before = lambda call: call.method == "get_meta" and len(bench.stores.calls) > 9
    outcome = asyncio.run(main())
    assert outcome.status == "ok"
    assert bench.ran == ["b", "c"]


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
def test_a_run_taken_again_while_an_append_is_under_way_has_it_exactly_once(
    without: tuple[str, ...], unknown: bool, landed: bool
) -> None:
    """The keeper takes the run again while the append hangs between the store and its answer."""
    bench = Bench(without)
    bench.asleep = lambda: None

    def expires_under_way(perform: Callable[[], object]) -> object:
        if landed:
            perform()
        bench.clock.advance(bench.store.lease_ttl_ms)
        keeper = threading.Thread(
            target=bench.renew
        )  # as the keeper does, from a thread of its own
        keeper.start()
        keeper.join()
        if landed and unknown:
            message = "who knows"
            raise OutcomeUnknownError(message)
        return None if landed else perform()

    bench.instead = {"append": expires_under_way}
    outcome = asyncio.run(bench.run())
    assert (outcome.status, outcome.epoch) == ("ok", 2)
    assert bench.ran == ["a", "b", "c"]
    assert bench.epochs() == [1, 1, 1 if landed else 2, 2, 2, 2, 2, 2]
    assert [record.seq for record in bench.store.load("r")] == list(range(8))


def owner(bench: Bench) -> str:
    info = bench.store.get_lease("r")
    assert info is not None
    return info.owner


@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
def test_a_grant_whose_outcome_was_unknown_but_landed_is_its_own(without: tuple[str, ...]) -> None:
    bench = Bench(without)

    def landed(perform: Callable[[], object]) -> object:
        perform()
        message = "who knows"
        raise OutcomeUnknownError(message)

    bench.instead = {"acquire" if without else "revive": landed}
    outcome = asyncio.run(bench.run())
    assert (outcome.status, outcome.epoch) == ("ok", 2)
    assert bench.ran == ["a", "b", "c"]


@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
def test_a_busy_store_is_asked_again_while_the_run_is_taken_again(
    without: tuple[str, ...],
) -> None:
    bench = Bench(without)

    def busy(_perform: Callable[[], object]) -> object:
        message = "busy"
        raise StoreBusyError(message)

    bench.instead = {"acquire" if without else "revive": busy, "load": busy}
    outcome = asyncio.run(bench.run())
    assert (outcome.status, outcome.epoch) == ("ok", 2)


def test_a_lease_that_lives_again_is_used_as_it_is() -> None:
    """The clock went back between the refusal and the revival: held, by itself."""
    bench = Bench()
    ttl = bench.store.lease_ttl_ms
    start = bench.clock.now_ms()
    bench.asleep = lambda: bench.clock.set(start + ttl)

    def back(perform: Callable[[], object]) -> object:
        bench.clock.set(start)
        return perform()

    bench.instead = {"revive": back}
    outcome = asyncio.run(bench.run())
    assert (outcome.status, outcome.epoch) == ("ok", 1)


# --- somebody has, or something is not as it was --------------------------------------------------


def takeover(bench: Bench) -> None:
    bench.clock.advance(bench.store.lease_ttl_ms)
    bench.store.acquire("r", "successor")


def takeover_and_release(bench: Bench) -> None:
    bench.clock.advance(bench.store.lease_ttl_ms)
    bench.store.release(bench.store.acquire("r", "successor"))


def takeover_and_expiry(bench: Bench) -> None:
    takeover(bench)
    bench.clock.advance(bench.store.lease_ttl_ms)


def unleased_append(bench: Bench) -> None:
    seq = bench.store.load("r")[-1].seq + 1
    bench.store.append("r", JournalRecord(seq=seq, payload=b'{"seq":%d,"hashVersion":102}' % seq))
    bench.clock.advance(bench.store.lease_ttl_ms)


def unleased_status(bench: Bench) -> None:
    row = bench.store.get_meta("r")
    assert row is not None
    bench.store.put_meta(replace(row, status="cancelled"))
    bench.clock.advance(bench.store.lease_ttl_ms)


def unleased_segment(bench: Bench) -> None:
    row = bench.store.get_meta("r")
    assert row is not None
    bench.store.put_meta(replace(row, segments=7))
    bench.clock.advance(bench.store.lease_ttl_ms)


def other_genesis(bench: Bench) -> None:
    """Recreated under the same id by an unleased writer: same length, another beginning."""
    records = list(bench.store.load("r"))
    bench.store._tables._runs["r"].records = [
        JournalRecord(
            seq=records[0].seq,
            payload=records[0].payload.replace(b'"genesis":"', b'"genesis":"f00d'),
        ),
        *records[1:],
    ]
    bench.clock.advance(bench.store.lease_ttl_ms)


def other_last_record(bench: Bench) -> None:
    records = bench.store._tables._runs["r"].records
    changed = records[-1].payload.replace(b'"key":"a"', b'"key":"z"')
    records[-1] = JournalRecord(seq=records[-1].seq, payload=changed)
    bench.clock.advance(bench.store.lease_ttl_ms)


def other_generation(bench: Bench) -> None:
    records = bench.store._tables._runs["r"].records
    old = records[0].payload.replace(b'"hashVersion":102', b'"hashVersion":7')
    records[0] = JournalRecord(seq=records[0].seq, payload=old)
    bench.clock.advance(bench.store.lease_ttl_ms)


def raised_epoch(bench: Bench) -> None:
    bench.clock.advance(bench.store.lease_ttl_ms)
    bench.store.raise_epoch("r", 1)  # ends the lease: what was expired is released now


@pytest.mark.parametrize("without", WITHOUT, ids=["revive", "acquire"])
@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (takeover, "superseded"),
        (takeover_and_release, "superseded"),
        (takeover_and_expiry, "superseded"),
        (unleased_append, "superseded"),
        (unleased_status, "superseded"),
        (unleased_segment, "superseded"),
        (other_genesis, "superseded"),
        (other_last_record, "superseded"),
        (other_generation, "superseded"),
        (raised_epoch, "released"),
    ],
)
def test_a_run_that_is_not_as_it_was_is_let_go(
    happens: Callable[[Bench], None], reason: str, without: tuple[str, ...]
) -> None:
    bench = Bench(without)
    bench.asleep = lambda: happens(bench)
    before: list[object] = []

    def refused(perform: Callable[[], object]) -> object:
        before.append(bench.store.load("r"))
        return perform()

    bench.instead = {"append": refused}
    with pytest.raises(SupersededError) as caught:
        asyncio.run(bench.run())
    assert caught.value.reason == reason
    assert bench.store.load("r") == before[0], "it appended nothing"
    assert bench.ran == ["a"]
    lease = bench.store.get_lease("r")
    assert lease is None or lease.owner == "successor", "what it took in vain it has given back"


def test_an_epoch_two_above_its_own_is_a_takeover_in_between() -> None:
    """Without `revive`: acquired by another, expired again, and only then taken again."""
    bench = Bench(("revive",))
    taken_at: list[int] = []

    def late(perform: Callable[[], object]) -> object:
        takeover_and_expiry(bench)
        lease = perform()
        assert isinstance(lease, Lease)
        taken_at.append(lease.epoch)
        return lease

    bench.instead = {"acquire": late}
    with pytest.raises(SupersededError):
        asyncio.run(bench.run())
    assert taken_at == [3]
    assert bench.ran == ["a"]
    assert bench.store.list_leases(None, 1) == []


# --- a lease of the caller's ----------------------------------------------------------------------


def test_a_lease_of_the_callers_is_neither_acquired_renewed_nor_released() -> None:
    bench = Bench()
    bench.sleep_before = lambda _call: False
    lease = bench.store.acquire("r", "caller")
    outcome = asyncio.run(bench.run(lease))
    assert (outcome.status, outcome.epoch) == ("ok", 1)
    assert set(bench.methods()) == {"put", "put_meta", "append"}
    assert {call.lease for call in bench.stores.changes()} == {lease}
    assert owner(bench) == "caller"


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda b: b.clock.advance(b.store.lease_ttl_ms), "expired"),
        (lambda b: b.store.seize("r", "successor"), "superseded"),
        (lambda b: b.store.raise_epoch("r", 1), "released"),
    ],
)
def test_a_lease_of_the_callers_that_is_dead_is_the_end(
    happens: Callable[[Bench], None], reason: str
) -> None:
    bench = Bench()
    bench.asleep = lambda: happens(bench)
    lease = bench.store.acquire("r", "caller")
    with pytest.raises(SupersededError) as caught:
        asyncio.run(bench.run(lease))
    assert caught.value.reason == reason
    assert not {"revive", "acquire", "renew", "release"} & set(bench.methods())
    assert bench.ran == ["a"]


def test_a_lease_for_another_run_is_refused_before_any_store_call() -> None:
    bench = Bench()
    lease = bench.store.acquire("other", "caller")
    with pytest.raises(ConfigError, match="other"):
        asyncio.run(bench.run(lease))
    assert bench.stores.calls == []


def test_every_owner_string_belongs_to_one_segment() -> None:
    bench = Bench()
    bench.sleep_before = lambda _call: False

    async def main() -> set[str]:
        owners: set[str] = set()
        async with Engine(bench.stores, [bench.workflow], owner="me", clock=bench.clock) as engine:
            for run_id in ("r", "s", "t"):
                await engine.run(bench.workflow, run_id=run_id)
                await engine.resume(run_id)
        for call in bench.stores.calls:
            if call.method == "acquire":
                owners.add(str(call.arguments[1]))
        return owners

    owners = asyncio.run(main())
    assert len(owners) == 6
    assert all(name.startswith("me:") for name in owners)


def test_a_held_run_is_refused_with_its_holder() -> None:
    bench = Bench()
    bench.store.acquire("r", "somebody")
    for act in ("run", "resume", "cancel", "delete_run"):

        async def ask(act: str = act) -> None:
            async with Engine(bench.stores, [bench.workflow], clock=bench.clock) as engine:
                if act == "run":
                    await engine.run(bench.workflow, run_id="r")
                else:
                    await getattr(engine, act)("r")

        with pytest.raises(LeaseHeldError) as caught:
            asyncio.run(ask())
        assert (caught.value.reason, caught.value.holder) == ("held", "somebody")
        assert caught.value.retryable
    assert bench.store.load("r") == ()
