"""The guard guards: each way of losing a promise is found, and named.

The stores and disks here are broken on purpose, each in one way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import power_loss
from power_disk import Disk
from power_history import Call, History, RunState
from power_judge import Judge
from power_observe import Observation
from power_sweep import record, sweep
from power_workloads import WORKLOADS, birth, checkpoints, deletions, leases

from rulvar.core.errors import LeaseHeldError
from rulvar.stores.sqlite import SqliteStore, connection, group_commit, mutations, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import apsw
    from power_scribe import Scribe
    from power_sweep import Tally

    from rulvar.core.records import Lease
    from rulvar.stores.sqlite.connection import Durability
    from rulvar.stores.sqlite.group_commit import Committer

IMAGES = 100


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: no sync of these files means anything."""
    with power_loss.folder_in_memory() as folder:
        yield folder


def found(
    workload: Callable[[Scribe], None],
    folder: Path,
    durability: Durability = "full",
    *,
    images: int = IMAGES,
    stop_after: int | None = None,
    smashing: bool = False,
    ignores_syncs: bool = False,
) -> Tally:
    """Record and sweep with whatever is broken by now."""
    recorded = record(
        "broken", workload, folder / "recorded", durability, ignores_syncs=ignores_syncs
    )
    return sweep(recorded, folder, images=images, seed=1, smashing=smashing, stop_after=stop_after)


def texts(tally: Tally, kind: str) -> list[str]:
    return [str(finding) for finding in tally.findings if finding.violation.kind == kind]


# --- lost -------------------------------------------------------------------------------------


def test_a_store_that_never_syncs_loses_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(writer: apsw.Connection, _durability: Durability) -> None:
        writer.execute("PRAGMA synchronous = OFF").fetchall()

    monkeypatch.setattr(connection, "set_durability", never)
    monkeypatch.setattr(group_commit, "set_durability", never)
    for durability in power_loss.SETTINGS:
        folder = tmp_path / durability
        folder.mkdir()
        tally = found(leases, folder, durability, stop_after=8)
        lost = texts(tally, "lost")
        assert lost
        # It names the call, the epoch it was made under, and where the power was lost.
        assert any("acquire on run" in text for text in lost)
        assert all("acknowledged at" in text and "power lost at" in text for text in lost)
        assert any("under epoch" in text for text in lost) or durability == "normal"
        assert texts(tally, "reused epoch")


@pytest.mark.slow
def test_a_disk_that_swallows_syncs_loses_and_damages(tmp_path: Path) -> None:
    tally = found(checkpoints, tmp_path, images=150, ignores_syncs=True)
    assert {"lost", "reused epoch", "does not open"} <= set(tally.kinds)
    assert "StoreCorruptError" in texts(tally, "does not open")[0]
    assert tally.consistent < tally.distinct


def test_a_folder_that_is_never_synced_loses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "sync_names", lambda _self: None)
    assert texts(found(birth, tmp_path, stop_after=1), "lost")


@pytest.mark.slow
def test_a_store_that_acknowledges_before_it_commits_loses_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = group_commit.Committer._repair

    def later(self: Committer) -> None:
        self._stage = "committed"

    def commit_and_repair(self: Committer) -> None:
        writer = self._connection
        if writer is not None and writer.in_transaction:
            writer.execute("COMMIT")
        repair(self)

    monkeypatch.setattr(group_commit.Committer, "_commit", later)
    monkeypatch.setattr(group_commit.Committer, "_repair", commit_and_repair)

    def work(scribe: Scribe) -> None:
        hand = scribe.open("hand")
        for _ in range(3):
            hand.append("run")

    tally = found(work, tmp_path, images=60)
    assert tally.kinds.keys() == {"lost"}
    assert "append seq" in texts(tally, "lost")[0]


@pytest.mark.slow
def test_a_disk_that_smashes_sectors_needs_sqlite_to_know_it(tmp_path: Path) -> None:
    """What the promise rests on: SQLite takes a disk for powersafe unless it is told otherwise."""
    assert texts(found(leases, tmp_path, images=400, smashing=True, stop_after=1), "lost")


# --- an epoch -------------------------------------------------------------------------------


def test_grants_that_are_not_made_durable_are_granted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At normal durability, with the rule for grants taken out."""
    monkeypatch.setattr(group_commit.Committer, "_choose_durability", lambda *_: None)
    take = group_commit.Committer._take

    def take_all(self: Committer) -> object:
        self._durability = "full"
        return take(self)

    monkeypatch.setattr(group_commit.Committer, "_take", take_all)
    tally = found(leases, tmp_path, "normal", stop_after=10)
    again = texts(tally, "reused epoch")
    assert again
    assert "would be granted again" in again[0]


# --- refused --------------------------------------------------------------------------------


def test_a_refused_write_that_lands_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that comes after the change is committed with its neighbours' work."""
    append = mutations.append

    def careless(
        tx: mutations.Transaction, run_id: str, seq: int, text: str, lease: Lease | None
    ) -> None:
        try:
            append(tx, run_id, seq, text, lease)
        except LeaseHeldError:
            tx.connection.execute(schema.APPEND, (run_id, text, seq))
            raise

    monkeypatch.setattr(mutations, "append", careless)
    tally = found(leases, tmp_path, stop_after=3)
    resurrected = texts(tally, "resurrected")
    assert resurrected
    assert "stalled append seq" in resurrected[0]
    assert "was refused, and what it does is there" in resurrected[0]


def test_a_refused_release_that_lands_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = mutations.release

    def careless(tx: mutations.Transaction, lease: Lease) -> None:
        try:
            release(tx, lease)
        except LeaseHeldError:
            tx.connection.execute(schema.END_LEASE, (lease.run_id,))
            raise

    monkeypatch.setattr(mutations, "release", careless)

    def work(scribe: Scribe) -> None:
        stalled, successor = scribe.open("stalled"), scribe.open("successor")
        old = stalled.acquire("run")
        successor.seize("run")
        stalled.release(old, refused=True)

    tally = found(work, tmp_path, stop_after=1)
    assert "stalled release" in texts(tally, "resurrected")[0]


# --- half -----------------------------------------------------------------------------------


def test_a_deletion_in_two_transactions_is_found_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_two_steps(self: SqliteStore, run_id: str, /, *, lease: Lease | None = None) -> None:
        for ref in self.transcripts().list_refs(run_id):
            self.transcripts().delete(ref, lease=lease)
        self.delete(run_id, lease=lease)

    monkeypatch.setattr(SqliteStore, "delete_whole_run", in_two_steps)
    tally = found(deletions, tmp_path, images=800, stop_after=1)
    (half, *_) = texts(tally, "half a transaction")
    assert "its blobs as after" in half
    assert "its journal as after" in half


@pytest.mark.slow
def test_the_workloads_hold_when_nothing_is_broken(tmp_path: Path) -> None:
    """What all of the above would be worth nothing without."""
    for name in ("birth", "leases", "deletions", "checkpoints"):
        folder = tmp_path / name
        folder.mkdir()
        assert found(WORKLOADS[name], folder, images=15).findings == []


# --- the judge ------------------------------------------------------------------------------


def made_of(calls: Iterable[tuple[str, int]], *, refused: int = 0) -> History:
    """Return calls one after the other; each but the refused one adds its number to its run."""
    made = History()

    def call(run_id: str, at: int) -> None:
        line = str(at)
        made.add(
            Call(
                number=at,
                run_id=run_id,
                what=f"append {at}",
                actor="hand",
                effect=lambda state: state._replace(journal=(*state.journal, line)),
                invoked=at,
                answered=at + 1,
                outcome="refused" if at == refused else "landed",
                token=line,
            )
        )

    for run_id, at in calls:
        call(run_id, at)
    return made


def history() -> History:
    """Two runs, and a refused call."""
    return made_of([("a", 10), ("b", 20), ("a", 30), ("a", 40), ("b", 50)], refused=40)


def test_a_hole_is_one_by_the_newest_call_of_any_run_and_no_older_one_hides_it() -> None:
    judge = Judge(made_of([("a", 5), ("b", 10), ("c", 15), ("b", 20), ("a", 30)]), "normal")
    states = {"a": ("5", "30"), "b": ("10",), "c": ("15",)}
    found = {run_id: RunState(journal=journal) for run_id, journal in states.items()}
    [hole] = judge.verdict(Observation(states=found), 40).violations
    assert hole.kind == "hole"
    assert "call 20" in hole.text
    assert "call 30" in hole.text


@pytest.mark.parametrize(
    ("durability", "position", "a", "b", "kinds"),
    [
        ("full", 60, ("10", "30"), ("20", "50"), []),
        ("full", 50, ("10", "30"), ("20", "50"), []),
        ("full", 50, ("10", "30"), ("20",), []),
        ("full", 51, ("10", "30"), ("20",), ["lost"]),
        ("full", 60, ("10",), ("20", "50"), ["lost"]),
        ("full", 60, ("10", "30", "40"), ("20", "50"), ["resurrected"]),
        ("full", 45, ("10", "30"), ("20", "50"), ["half a transaction"]),
        ("full", 60, ("30",), ("20", "50"), ["half a transaction"]),
        ("normal", 60, ("10", "30"), ("20",), []),
        ("normal", 60, ("10",), ("20",), []),
        ("normal", 60, (), (), []),
        ("normal", 60, ("10",), ("20", "50"), ["hole"]),
        ("normal", 60, ("10", "30"), (), ["hole"]),
        ("normal", 60, ("10", "30", "40"), (), ["resurrected"]),
    ],
)
def test_the_judge_knows_what_may_be_left(
    durability: Durability,
    position: int,
    a: tuple[str, ...],
    b: tuple[str, ...],
    kinds: list[str],
) -> None:
    states = {"a": RunState(journal=a), "b": RunState(journal=b)}
    verdict = Judge(history(), durability).verdict(Observation(states=states), position)
    assert [violation.kind for violation in verdict.violations] == kinds


def test_the_judge_reports_what_could_not_be_read_and_who_is_unknown() -> None:
    judge = Judge(history(), "full")
    damaged = judge.verdict(Observation(("damaged", "integrity check: page 3")), 60)
    assert [violation.kind for violation in damaged.violations] == ["damaged"]
    states = {"a": RunState(journal=("10", "30")), "b": RunState(journal=("20", "50"))}
    stranger = judge.verdict(Observation(states=states, strangers=("x",)), 60)
    assert [violation.kind for violation in stranger.violations] == ["stranger"]


def test_an_unknown_outcome_may_be_either_until_the_store_has_told() -> None:
    made = history()
    doubtful = Call(
        number=60,
        run_id="a",
        what="append 60",
        actor="hand",
        effect=lambda state: state._replace(journal=(*state.journal, "60")),
        invoked=60,
        answered=70,
        outcome="doubtful",
    )
    made.add(doubtful)
    judge = Judge(made, "full")
    there = {"a": RunState(journal=("10", "30", "60")), "b": RunState(journal=("20", "50"))}
    absent = {**there, "a": RunState(journal=("10", "30"))}
    for position, states, kinds in (
        (65, there, []),
        (65, absent, []),
        (70, absent, []),
        (70, there, ["half a transaction"]),
    ):
        verdict = judge.verdict(Observation(states=states), position)
        assert [violation.kind for violation in verdict.violations] == kinds
