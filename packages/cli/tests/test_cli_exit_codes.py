"""The table of exit statuses: one for each error of the tree and each status of a run."""

from __future__ import annotations

import pytest

from rulvar.cli.exit_codes import MEANINGS, ExitStatus, status_of_error, status_of_run
from rulvar.core import errors
from rulvar.core.records import RUN_STATUSES

HELD = errors.LeaseHeldError(run_id="r", reason="held", holder="a", epoch=1)
DEAD = errors.LeaseHeldError(run_id="r", reason="superseded")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigError("x"), 2),
        (errors.PluginError("x"), 2),
        (errors.InvalidResolutionError("x", key="k"), 2),
        (errors.JournalCompatibilityError("x", run_id="r", found=(1,), window=(101, 101)), 2),
        (HELD, 3),
        (DEAD, 4),
        (errors.SupersededError(run_id="r", reason="superseded", epoch=1), 4),
        (errors.StoreBusyError("x"), 5),
        (errors.StoreFullError("x"), 5),
        (errors.StoreCorruptError("x"), 5),
        (errors.OutcomeUnknownError("x"), 5),
        (errors.StoreInUseError("x"), 5),
        (errors.JournalOrderViolation("x", run_id="r", seq=1), 5),
        (errors.SettlementError("x"), 5),
        (errors.NonDeterminismError("x", scope="", key="k", ordinal=0), 1),
        (errors.StepFailedError("x", step="s", error_type="ValueError"), 1),
        (errors.RunCancelledError("x"), 1),
    ],
)
def test_each_error_has_its_status(error: errors.RulvarError, status: int) -> None:
    assert status_of_error(error) == status


def test_each_status_of_a_run_has_its_own() -> None:
    expected = {"ok": 0, "error": 1, "cancelled": 1, "exhausted": 1, "suspended": 6, "running": 6}
    assert {status: status_of_run(status) for status in RUN_STATUSES} == expected


def test_every_status_is_explained() -> None:
    assert set(MEANINGS) == set(ExitStatus)
