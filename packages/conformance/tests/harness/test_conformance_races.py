"""How a fence that is not atomic is caught: every time, whichever of the two ways sees it.

What lands once in a race (a release, a deletion) the storm alone catches by chance, in a store
that lives in one process even rarely; the steps catch it. What can land again and again, it
catches as well: at least every fifth race does, of 60 in one process and 24 in two.
"""

from __future__ import annotations

import pytest
from gallery_defects import DEFECTS, SOUND, register, subject

from rulvar.conformance import certify
from rulvar.conformance.contract.checks import atomicity
from rulvar.conformance.harness.stepping import Stepped
from rulvar.core.spi import JournalRecord
from rulvar.core.testing import ReferenceStore

register()
_NOT_ATOMIC = sorted(name for name in DEFECTS if DEFECTS[name].breaks.endswith("-atomic"))
_TWENTY_TIMES = {"reference-append-checks-first", "sqlite-append-checks-first"}


def _caught(name: str, seed: int) -> bool:
    found = DEFECTS[name]
    [result] = certify(subject(found), only=[found.breaks], seed=seed).results
    assert result.outcome in {"passed", "failed"}, result.story
    return result.outcome == "failed"


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _NOT_ATOMIC)
def test_a_check_outside_its_transaction_is_caught_every_time(name: str) -> None:
    times = 20 if name in _TWENTY_TIMES else 3
    assert sum(_caught(name, seed) for seed in range(times)) == times


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["step_through", "storm"])
@pytest.mark.parametrize("name", ["reference-append-checks-first", "sqlite-append-checks-first"])
def test_each_of_the_two_ways_catches_it_alone(
    name: str, way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"step_through": "storm", "storm": "step_through"}[way]
    monkeypatch.setattr(atomicity, other, lambda *_: None)
    assert _caught(name, seed)


@pytest.mark.slow
def test_a_sound_store_passes_both_and_says_how_often_it_was_tried() -> None:
    [result] = certify(subject(SOUND["reference"]), only=["F-append-atomic"]).results
    assert result.outcome == "passed"
    assert result.counts["steps of append"] > 10
    assert result.counts["takeovers inside a call"] > 0
    assert result.counts["takeovers that waited"] > 0
    assert result.counts["races"] == 60
    assert result.counts["landed before a takeover"] > 0


def test_a_call_is_stopped_at_its_nth_step_and_goes_on() -> None:
    store = ReferenceStore()

    def append(seq: int) -> None:
        store.append("run", JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq))

    counted = Stepped(lambda: append(0), stop_at=0)
    assert not counted.start(10)
    assert counted.join(10)
    assert counted.steps > 5

    first = Stepped(lambda: append(1), stop_at=1)
    assert first.start(10)
    assert len(store.load("run")) == 1  # not yet
    first.go_on()
    assert first.join(10)
    assert len(store.load("run")) == 2

    last = Stepped(lambda: append(2), stop_at=counted.steps)
    assert last.start(10)
    assert len(store.load("run")) == 3  # already
    last.go_on()
    assert last.join(10)


def test_beyond_its_last_step_a_call_ends_untouched_and_its_error_is_kept() -> None:
    store = ReferenceStore()
    call = Stepped(lambda: store.load("a/b"), stop_at=10_000)
    assert not call.start(10)
    assert call.error is not None
