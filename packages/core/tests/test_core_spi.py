"""The front door for authors of stores, and the decisions that it offers them."""

from __future__ import annotations

import os
from itertools import product

import pytest

from rulvar.core import spi
from rulvar.core.errors import LeaseHeldError, StoreClosedError, StoreForkedError
from rulvar.core.records import Lease
from rulvar.core.spi import LeaseState, StoreLife, lease_status, refusal, refuse_foreign

NOW = 1_000
LEASE = Lease(run_id="run", owner="worker", epoch=3)


def test_every_name_of_the_front_door_is_there_once() -> None:
    assert len(set(spi.__all__)) == len(spi.__all__)
    assert {name for name in vars(spi) if not name.startswith("_")} - {"annotations"} == set(
        spi.__all__
    )


def test_a_live_lease_is_the_runs_highest_under_its_owner_before_its_expiry() -> None:
    state = LeaseState("run", 3, "worker", 3, NOW + 1)
    assert lease_status(state, LEASE, NOW) is None
    assert lease_status(state, LEASE, NOW + 1) == "expired"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (LeaseState("other", None), "foreign-run"),
        (LeaseState("other", 3, "worker", 3, NOW + 1), "foreign-run"),
        (LeaseState("run", None), "unknown"),
        (LeaseState("run", 2, "worker", 2, NOW + 1), "unknown"),
        (LeaseState("run", 4, "successor", 4, NOW + 1), "superseded"),
        (LeaseState("run", 4), "superseded"),
        (LeaseState("run", 4, "worker", 3, NOW + 1), "superseded"),
        (LeaseState("run", 3), "released"),
        (LeaseState("run", 3, "worker", 2, NOW + 1), "released"),
        (LeaseState("run", 3, "another", 3, NOW + 1), "unknown"),
        (LeaseState("run", 3, "worker", 3, NOW), "expired"),
    ],
)
def test_the_first_reason_in_the_order_of_the_contract_is_given(
    state: LeaseState, reason: str
) -> None:
    assert lease_status(state, LEASE, NOW) == reason


def test_exactly_one_state_in_all_is_live() -> None:
    states = [
        LeaseState(*each)
        for each in product(
            ("run", "other"), (None, 2, 3, 4), ("worker", None), (None, 2, 3), (None, NOW, NOW + 1)
        )
    ]
    live = [state for state in states if lease_status(state, LEASE, NOW) is None]
    assert live == [LeaseState("run", 3, "worker", 3, NOW + 1)]


def test_a_refusal_names_the_present_holder_and_no_former_one() -> None:
    held = refusal(LeaseState("run", 4, "successor", 4, NOW + 1), "superseded", NOW, offered=LEASE)
    assert (held.run_id, held.reason, held.offered) == ("run", "superseded", LEASE)
    assert (held.holder, held.epoch, held.expires_at) == ("successor", 4, NOW + 1)
    for state in (LeaseState("run", 4, "gone", 4, NOW), LeaseState("run", 5, "old", 4, NOW + 1)):
        free = refusal(state, "superseded", NOW, offered=LEASE)
        assert (free.holder, free.epoch, free.expires_at) == (None, None, None)


def test_a_lease_for_another_run_is_refused_before_anything_is_read() -> None:
    refuse_foreign("run", None)
    refuse_foreign("run", LEASE)
    with pytest.raises(LeaseHeldError) as refused:
        refuse_foreign("other", LEASE)
    assert (refused.value.reason, refused.value.run_id) == ("foreign-run", "other")


def test_a_life_ends_once_and_for_ever() -> None:
    life = StoreLife("the store at /runs")
    before = life.is_closed
    life.check()
    life.close()
    life.close()
    assert (before, life.is_closed) == (False, True)
    with pytest.raises(StoreClosedError, match="the store at /runs was closed: open it again"):
        life.check()
    life.check_process()


@pytest.mark.parametrize("call", ["check", "check_process", "close"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_forked_child_is_refused_whether_its_parent_closed_or_not(
    call: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = StoreLife("the store", remedy="open one here")
    owner = os.getpid()
    if closed:
        life.close()
    monkeypatch.setattr(os, "getpid", lambda: owner + 1)
    with pytest.raises(StoreForkedError, match=f"opened by process {owner}.*: open one here"):
        getattr(life, call)()
