"""The error tree: one root, stable codes, facts that survive a process boundary."""

from __future__ import annotations

import copy
import pickle
import re
from typing import TYPE_CHECKING

import pytest

from rulvar.core import errors
from rulvar.core.errors import (
    AlreadyAnsweredError,
    ConfigError,
    InvalidResolutionError,
    JournalCompatibilityError,
    JournalOrderViolation,
    LeaseHeldError,
    NonDeterminismError,
    NotAskedError,
    OutcomeUnknownError,
    PluginError,
    RulvarError,
    RunCancelledError,
    RunError,
    RunFailedError,
    RunTimeoutError,
    SettlementError,
    StepFailedError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForkedError,
    StoreFullError,
    StoreInUseError,
    SupersededError,
)
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from rulvar.core.errors import RefusalReason

LEASE = Lease(run_id="r", owner="a", epoch=3)

SAMPLES: list[RulvarError] = [
    RulvarError("m"),
    ConfigError("m", path="$.a"),
    PluginError("m", name="acme"),
    StoreError("m", run_id="r"),
    LeaseHeldError(
        run_id="r", reason="superseded", offered=LEASE, holder="b", epoch=4, expires_at=99
    ),
    JournalOrderViolation(run_id="r", seq=3, tail_seq=5),
    StoreBusyError("m", run_id="r", waited_ms=12, blocker="pid 7"),
    StoreFullError("m", run_id="r"),
    OutcomeUnknownError("m", run_id="r"),
    StoreCorruptError("m", run_id="r", position=4),
    StoreInUseError("m", holder="pid 7"),
    StoreClosedError("m"),
    StoreForkedError("m"),
    RunError("m", run_id="r"),
    SupersededError(run_id="r", reason="superseded", epoch=3, holder="b", holder_epoch=4),
    SettlementError("m", run_id="r"),
    StepFailedError("m", run_id="r", step="s", error_type="ValueError", attempts=3),
    RunFailedError("m", run_id="r", error_type="ValueError"),
    RunCancelledError("m", run_id="r"),
    RunTimeoutError("m", run_id="r"),
    JournalCompatibilityError("m", run_id="r", found=(1, 2), window=(101, 101)),
    NonDeterminismError("m", run_id="r", scope="", key="k", ordinal=2),
    InvalidResolutionError("m", run_id="r", key="k"),
    NotAskedError("m", run_id="r", key="k"),
    AlreadyAnsweredError("m", run_id="r", key="k"),
]


def all_classes() -> set[type[RulvarError]]:
    return {
        found
        for name in errors.__all__
        if isinstance(found := getattr(errors, name), type) and issubclass(found, RulvarError)
    }


def test_there_is_a_sample_of_every_class() -> None:
    assert {type(error) for error in SAMPLES} == all_classes()


def test_every_code_names_one_class_for_ever() -> None:
    assert {kind.__name__: kind.code for kind in all_classes()} == {
        "RulvarError": "rulvar",
        "ConfigError": "config",
        "PluginError": "plugin",
        "StoreError": "store",
        "LeaseHeldError": "lease-held",
        "JournalOrderViolation": "journal-order",
        "StoreBusyError": "store-busy",
        "StoreFullError": "store-full",
        "OutcomeUnknownError": "outcome-unknown",
        "StoreCorruptError": "store-corrupt",
        "StoreInUseError": "store-in-use",
        "StoreClosedError": "store-closed",
        "StoreForkedError": "store-forked",
        "RunError": "run",
        "SupersededError": "superseded",
        "SettlementError": "settlement",
        "StepFailedError": "step-failed",
        "RunFailedError": "run-failed",
        "RunCancelledError": "run-cancelled",
        "RunTimeoutError": "run-timeout",
        "JournalCompatibilityError": "journal-compatibility",
        "NonDeterminismError": "non-determinism",
        "InvalidResolutionError": "invalid-resolution",
        "NotAskedError": "not-asked",
        "AlreadyAnsweredError": "already-answered",
    }


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_facts_across_processes(error: RulvarError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(error, protocol))
        assert type(back) is type(error)
        assert (str(back), back.args, back.__dict__) == (str(error), error.args, error.__dict__)
        assert back.retryable == error.retryable
    assert copy.copy(error).__dict__ == error.__dict__


def test_a_subclass_of_a_user_survives_too() -> None:
    with pytest.raises(LeaseHeldError) as caught:
        raise LeaseHeldError(run_id="r", reason="held", holder="b", epoch=1)
    caught.value.add_note("seen at noon")
    back = pickle.loads(pickle.dumps(caught.value))
    assert back.__notes__ == ["seen at noon"]


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for kind in all_classes() - {RulvarError}:
        assert kind.__name__ in drawn
    above: dict[int, type[BaseException]] = {0: RulvarError}
    for indent, name in re.findall(r"^ {4}([ │]*)[├└]── (\w+)", drawn, re.MULTILINE):
        depth = len(indent) // 4
        kind = getattr(errors, name)
        assert kind.__base__ is above[depth], name
        above[depth + 1] = kind
    assert set(re.findall(r"(?<=[├└]── )\w+", drawn)) == {
        kind.__name__ for kind in all_classes() - {RulvarError}
    }


def test_only_held_busy_and_not_asked_yet_are_worth_a_retry() -> None:
    worth = {StoreBusyError, NotAskedError}
    assert {type(error) for error in SAMPLES if error.retryable} == worth
    assert LeaseHeldError(run_id="r", reason="held", holder="b", epoch=1).retryable


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("held", "held by 'b' under epoch 4: wait, or take it over with rulvar runs take-over q"),
        ("foreign-run", "is for run 'r'"),
        ("unknown", "was never granted by this store"),
        ("superseded", "was superseded ('b' holds it under epoch 4)"),
        ("released", "was released, or its run was deleted"),
        ("expired", "has expired"),
    ],
)
def test_a_refusal_says_what_happened(reason: RefusalReason, words: str) -> None:
    error = LeaseHeldError(run_id="q", reason=reason, offered=LEASE, holder="b", epoch=4)
    assert words in str(error)
    assert "'q'" in str(error)
    assert ("wait, or take" if reason == "held" else "acquire it again") in str(error)


def test_a_loss_and_a_stale_seq_say_what_to_do() -> None:
    lost = SupersededError(run_id="r", reason="superseded", epoch=3, holder="b", holder_epoch=4)
    assert "to 'b' under epoch 4 (superseded) and has stopped" in str(lost)
    assert str(lost).endswith("nothing to do here")
    nobody = SupersededError(run_id="r", reason="released", epoch=3)
    assert str(nobody).endswith("if it still exists")
    assert "decide anew" in str(JournalOrderViolation(run_id="r", seq=3, tail_seq=5))


@pytest.mark.parametrize(
    ("expires_at", "told"),
    [
        (0, "epoch 4, until 1970-01-01T00:00:00.000Z if it is not renewed: wait"),
        (1_796_000_123_456, "epoch 4, until 2026-11-30T00:55:23.456Z if it is not renewed: wait"),
        (None, "epoch 4: wait"),
        (2**53 - 1, "epoch 4: wait"),  # the lease of a store that lets none run out
    ],
)
def test_a_held_run_says_until_when_and_what_takes_it_over(
    expires_at: int | None, told: str
) -> None:
    error = LeaseHeldError(
        run_id="order 17", reason="held", holder="b", epoch=4, expires_at=expires_at
    )
    assert told in str(error)
    assert str(error).endswith("with rulvar runs take-over 'order 17'")
