"""The door by itself: one append at a time, and nothing after the seal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.core.engine import ownership
from rulvar.core.engine.control import SegmentEnded
from rulvar.core.engine.door import Door
from rulvar.core.engine.ownership import BorrowedRun
from rulvar.core.engine.reads import Reads
from rulvar.core.engine.surfaces import Surfaces
from rulvar.core.errors import LeaseHeldError, SupersededError
from rulvar.core.journal import JournalEntry
from rulvar.core.records import RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore, WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.testing import StoreCall

ROW = RunMeta(run_id="r", status="ok", updated_at="2026-01-01T00:00:00.000Z")


def draft(key: str) -> JournalEntry:
    return JournalEntry(seq=0, kind="step", status="running", key=key)


class Bench:
    """A door whose append of ``slow`` hangs in the store until it may go on."""

    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.in_store, self.go_on = threading.Event(), threading.Event()
        stores = WatchedStores(Stores(self.store, self.store.transcripts()), around=self.around)
        lease = self.store.acquire("r", "me")
        self.door = Door(Surfaces(stores), Reads(stores), "r", BorrowedRun(lease))
        self.door.arm((), None, None)

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if b'"key":"slow"' in call.payload:
            self.in_store.set()
            assert self.go_on.wait(10)
        return perform()

    def behind(self, act: Callable[[], object]) -> list[bytes]:
        """Do something while an append hangs, let it land, and return the journal."""
        slow = threading.Thread(target=self.door.append, args=(draft("slow"),))
        slow.start()
        assert self.in_store.wait(10)
        began = threading.Event()

        def second() -> None:
            began.set()
            act()

        other = threading.Thread(target=second)
        other.start()
        assert began.wait(10)
        other.join(0.05)
        assert other.is_alive(), "it waits for the append in flight"
        self.go_on.set()
        slow.join(10)
        other.join(10)
        return [record.payload for record in self.store.load("r")]


def test_a_second_append_waits_for_the_one_in_flight() -> None:
    bench = Bench()
    payloads = bench.behind(lambda: bench.door.append(draft("quick")))
    assert [b'"slow"' in payload for payload in payloads] == [True, False]


def test_the_settle_waits_for_the_append_in_flight() -> None:
    bench = Bench()
    payloads = bench.behind(lambda: bench.door.settle(draft("settle"), ROW))
    assert b'"slow"' in payloads[0]
    assert b'"settle"' in payloads[1]
    assert bench.store.get_meta("r") == ROW


def test_the_end_waits_for_the_append_in_flight() -> None:
    bench = Bench()
    assert len(bench.behind(lambda: bench.door.close_for("it was asked to stop"))) == 1


@pytest.mark.parametrize("seal", ["settle", "close", "delete"])
def test_nothing_passes_a_sealed_door(seal: str) -> None:
    bench = Bench()
    door = bench.door
    if seal == "settle":
        door.settle(draft("settle"), ROW)
    elif seal == "close":
        door.close_for("it was asked to stop")
    else:
        door.delete_run()
    before = bench.store.snapshot()
    late: list[Callable[[], object]] = [
        lambda: door.append(draft("late")),
        lambda: door.put_meta(ROW),
        lambda: door.put_blob("r/late", b""),
        lambda: door.delete_blob("r/late"),
        lambda: door.settle(draft("late"), ROW),
        door.delete_run,
    ]
    for call in late:
        with pytest.raises(SegmentEnded):
            call()
    assert bench.store.snapshot() == before


def test_a_borrowed_run_that_two_threads_find_lost_is_lost_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ReferenceStore()
    run = BorrowedRun(store.acquire("r", "me"))
    told: list[SupersededError] = []
    run.on_loss = told.append
    refusal = LeaseHeldError(run_id="r", reason="superseded", offered=run.lease)
    caught: list[SupersededError] = []

    def meet() -> None:
        with pytest.raises(SupersededError) as error:
            run.refused(run.lease, refusal)
        caught.append(error.value)

    others: list[threading.Thread] = []
    make = ownership._superseded

    def overtaken(*given: Any) -> SupersededError:
        if not others:
            others.append(threading.Thread(target=meet))
            others[0].start()
            others[0].join(0.05)
        return make(*given)

    monkeypatch.setattr(ownership, "_superseded", overtaken)
    meet()
    others[0].join(10)
    assert len(told) == 1
    assert [error is told[0] for error in caught] == [True, True]
