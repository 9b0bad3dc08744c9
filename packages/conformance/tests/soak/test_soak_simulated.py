"""The checker over simulated storms: any interleaving over a sound store, and broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from soak_stories import simulate

from rulvar.conformance.soak.checker import judge
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from rulvar.core.spi import JournalRecord, Lease


@pytest.mark.parametrize("seed", range(25))
def test_any_interleaving_over_a_sound_store_is_passed(seed: int) -> None:
    verdict = judge(simulate(seed))
    assert verdict.sound, "\n".join(map(str, verdict.violations))
    assert verdict.tally.reasons["superseded"] > 0


class _EpochIgnored(ReferenceStore):
    def _fence(self, run_id: str, lease: Lease | None) -> None:
        stale = lease is not None and self._verdict(lease) == "superseded"
        if not (stale and run_id in self._leases):
            super()._fence(run_id, lease)


class _DeleteForgetsEpochs(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        self._epochs.pop(run_id, None)


class _EveryTenthAppendLost(ReferenceStore):
    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        if record.seq % 10:
            super().append(run_id, record, lease=lease)
        else:
            self._fence(run_id, lease)


class _DeleteLeavesTheRow(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        kept = self._tables.row(run_id)
        super().delete(run_id, lease=lease)
        if kept is not None:
            self._tables.put_row(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (_EpochIgnored, {"stale-acceptance"}),
        (_DeleteForgetsEpochs, {"duplicate-grant", "epoch-inversion"}),
        (_EveryTenthAppendLost, {"lost-write"}),
        (_DeleteLeavesTheRow, {"deleted-came-back"}),
    ],
)
def test_what_a_broken_store_does_is_found(
    broken: type[ReferenceStore], expected: set[str]
) -> None:
    found: set[str] = set()
    for seed in range(12):
        found |= {str(each.kind) for each in judge(simulate(seed, broken)).violations}
    assert expected <= found
