"""A stale checkpoint is refused and ends the loop."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from engine_loop_bench import CHECKPOINT, TURNS, WHOLE, Bench, nth_checkpoint

from rulvar.core.errors import (
    StoreFullError,
    SupersededError,
)
from rulvar.core.journal import read_journal
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.records import Lease
    from rulvar.core.testing import StoreCall


# --- the fence (finding F2) -----------------------------------------------------------------


def _stale_checkpoint(bench: Bench, *without: str) -> SupersededError:
    """Let a stalled segment's third checkpoint come after a successor's own."""
    fits = nth_checkpoint(3)
    successor: list[Lease] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if fits(call):
            bench.clock.advance(bench.store.lease_ttl_ms)
            lease = bench.store.acquire("r", "successor")
            successor.append(lease)
            bench.store.transcripts().put(CHECKPOINT, b"the successor's", lease=lease)
        return perform()

    watched = WatchedStores(bench.pair, around=around, without=without)
    with pytest.raises(SupersededError) as lost:
        asyncio.run(bench.run(watched))
    assert [lease.epoch for lease in successor] == [2]
    return lost.value


def test_a_stale_checkpoint_is_refused_and_ends_the_loop() -> None:
    bench = Bench()
    lost = _stale_checkpoint(bench)
    assert (lost.reason, lost.epoch, lost.holder) == ("superseded", 1, "successor")
    assert bench.blob() == b"the successor's"
    assert bench.ran == {0: 1, 1: 1, 2: 1}, "no further turn began"
    refused = [e for e in bench.events if e.kind == "write.refused"]
    assert [(e.name, e.detail) for e in refused] == [("put_blob", "superseded")]


def test_without_the_marker_the_old_failure_is_there() -> None:
    """What finding F2 is about: the stale checkpoint lands over the successor's."""
    bench = Bench()
    _stale_checkpoint(bench, "fenced_writes")
    blob = bench.blob()
    assert blob is not None
    assert json.loads(blob)["turns"] >= 3


def test_a_checkpoint_that_the_store_cannot_take_ends_the_segment_and_not_the_loop() -> None:
    bench = Bench()
    fits = nth_checkpoint(2)

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if fits(call):
            message = "the disk is full"
            raise StoreFullError(message)
        return perform()

    with pytest.raises(StoreFullError, match="disk is full"):
        asyncio.run(bench.run(WatchedStores(bench.pair, around=around)))
    assert [e.kind for e in read_journal("r", bench.store.load("r"))] == ["decision", "turns"]
    assert asyncio.run(bench.resume()).value == WHOLE
    assert [bench.ran[n] for n in range(TURNS)] == [1, 2, 1, 1, 1]
