"""The writer by itself: one append at a time, and nothing after the seal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.core.engine.io.mutations import FencedCalls
from rulvar.core.engine.io.reads import Reads
from rulvar.core.engine.kernel.endings import SegmentEnded
from rulvar.core.engine.lease import ownership
from rulvar.core.engine.lease.ownership import ExternalLease
from rulvar.core.engine.lease.writer import RunWriter
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
    """A writer whose append of ``slow`` hangs in the store until it may go on."""

    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.in_store, self.go_on = threading.Event(), threading.Event()
        stores = WatchedStores(Stores(self.store, self.store.transcripts()), around=self.around)
        lease = self.store.acquire("r", "me")
        self.writer = RunWriter(FencedCalls(stores), Reads(stores), "r", ExternalLease(lease))
        self.writer.record_read_state((), None, None)

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        if b'"key":"slow"' in call.payload:
            self.in_store.set()
            assert self.go_on.wait(10)
        return perform()

    def behind(self, act: Callable[[], object]) -> list[bytes]:
        """Do something while an append hangs, let it land, and return the journal."""
        slow = threading.Thread(target=self.writer.append, args=(draft("slow"),))
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
    payloads = bench.behind(lambda: bench.writer.append(draft("quick")))
    assert [b'"slow"' in payload for payload in payloads] == [True, False]


def test_the_settle_waits_for_the_append_in_flight() -> None:
    bench = Bench()
    payloads = bench.behind(lambda: bench.writer.settle(draft("settle"), ROW))
    assert b'"slow"' in payloads[0]
    assert b'"settle"' in payloads[1]
    assert bench.store.get_meta("r") == ROW


def test_the_end_waits_for_the_append_in_flight() -> None:
    bench = Bench()
    assert len(bench.behind(lambda: bench.writer.close_for("it was asked to stop"))) == 1


@pytest.mark.parametrize("seal", ["settle", "close", "delete"])
def test_nothing_passes_a_sealed_door(seal: str) -> None:
    bench = Bench()
    writer = bench.writer
    if seal == "settle":
        writer.settle(draft("settle"), ROW)
    elif seal == "close":
        writer.close_for("it was asked to stop")
    else:
        writer.delete_run()
    before = bench.store.snapshot()
    late: list[Callable[[], object]] = [
        lambda: writer.append(draft("late")),
        lambda: writer.put_meta(ROW),
        lambda: writer.put_blob("r/late", b""),
        lambda: writer.delete_blob("r/late"),
        lambda: writer.settle(draft("late"), ROW),
        writer.delete_run,
    ]
    for call in late:
        with pytest.raises(SegmentEnded):
            call()
    assert bench.store.snapshot() == before


def test_a_borrowed_run_that_two_threads_find_lost_is_lost_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ReferenceStore()
    run = ExternalLease(store.acquire("r", "me"))
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
