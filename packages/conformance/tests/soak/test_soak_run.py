"""Real storms: a sound store passes, broken ones are caught, and what cannot be stormed says so."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gallery_soak
import pytest
from click.testing import CliRunner
from gallery_defects import DEFECTS

from rulvar.conformance import StoreAtUrl, StoreFromFactory
from rulvar.conformance.harness.machine_clock import true_now_ms
from rulvar.conformance.soak import CI, CoverageGoals, Plan, run, soak
from rulvar.conformance.soak.cli import soak_command
from rulvar.conformance.soak.coverage import coverage_of, with_clock
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.spi import Stores, SystemClock
from rulvar.core.testing import ReferenceStore, reference_stores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from rulvar.conformance import Home
    from rulvar.conformance.soak.coverage import Shortfall
    from rulvar.core.spi import JournalRecord, Lease

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="stops processes")

LITTLE = CoverageGoals(
    accepted=250,
    refused=400,
    takeovers=25,
    per_surface=2,
    per_cell=1,
    per_death=1,
    overtaken=1,
    stops=10,
    kills=1,
    forks=1,
)
SHORT = Plan(seed=1, processes=3, lease_ttl_ms=250, deadline_s=90, goals=LITTLE)


def remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder)


@pytest.mark.storm
@pytest.mark.timeout(180)
def test_sqlite_is_stormed_to_the_coverage_goals_without_a_violation() -> None:
    told: list[str] = []
    report = soak(StoreAtUrl("sqlite:///s.db?durability=normal"), SHORT, progress=told.append)
    assert report.passed, report.text()
    assert report.folder is None
    assert told
    assert "takeovers" in told[-1]
    found = report.to_json()
    assert found["violations"] == []
    assert set(found["takeovers"]) >= {"stopped", "killed", "stalled", "blocked", "clock"}
    assert found["faults"]["self-stopped"] >= 1
    assert found["looks"] > found["runs"]


@pytest.mark.storm
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "sqlite-append-checks-first",
        "sqlite-epoch-in-memory",
        "sqlite-blob-before-fence",
        "sqlite-append-in-forked-child",
        "sqlite-renew-all-checks-first",
        "sqlite-seize-over-checks-first",
    ],
)
def test_a_broken_store_is_caught_within_the_default_goals(name: str) -> None:
    report = gallery_soak.storm_once(DEFECTS[name], replace(CI, seed=1))
    assert gallery_soak.caught(report), report.text()


@pytest.mark.storm
@pytest.mark.timeout(180)
def test_a_forked_child_whose_work_nobody_else_sees_is_caught() -> None:
    report = gallery_soak.storm_once(DEFECTS["sqlite-forked-child-has-a-copy"], SHORT)
    assert {str(each.kind) for each in report.verdict.violations} == {"lost-write"}, report.text()


@pytest.mark.storm
def test_a_deadline_is_no_pass_and_the_reports_are_kept() -> None:
    report = soak(
        StoreAtUrl("sqlite:///s.db?durability=normal"),
        replace(SHORT, goals=CI.goals, deadline_s=2),
    )
    try:
        assert not report.passed
        assert report.verdict.sound
        assert report.words().startswith("NOT PROVEN")
        assert report.folder is not None
        assert list(report.folder.glob("report-*.jsonl"))
    finally:
        remove(report.folder)


class _Breaks(SqliteStore):
    def renew(self, lease: Lease, /) -> None:
        super().renew(lease)
        message = "in pieces"
        raise StoreCorruptError(message, run_id=lease.run_id)


def open_breaking(home: Home) -> Stores:
    store = _Breaks(home.folder / "s.db", lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


@pytest.mark.storm
def test_an_error_that_is_none_of_the_contract_fails_the_soak() -> None:
    report = soak(StoreFromFactory("breaks", open_breaking), SHORT)
    try:
        assert not report.passed
        assert "untyped-error" in report.words()
        assert "in pieces" in report.text()
    finally:
        remove(report.folder)


class _Unreadable(SqliteStore):
    def load(self, run_id: str, /) -> list[JournalRecord]:
        message = "in pieces"
        raise StoreCorruptError(message, run_id=run_id)


def open_unreadable(home: Home) -> Stores:
    store = _Unreadable(home.folder / "s.db", lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


@pytest.mark.storm
def test_what_cannot_be_read_at_the_end_is_a_violation_and_the_rest_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calm(self: run._Soak, *, stop_at_first: bool) -> list[Shortfall]:
        assert stop_at_first
        recorder = self._recorder
        recorder.invoked(recorder.next_id(), "acquire", "r", lease=None, target="w0")
        self._progress.touched["r"] = 1
        return []

    monkeypatch.setattr(run._Soak, "_storm", calm)
    report = soak(StoreFromFactory("unreadable", open_unreadable), SHORT)
    try:
        assert not report.passed
        assert "untyped-error" in report.words()
        assert "the last look failed: StoreCorruptError: in pieces" in report.text()
    finally:
        remove(report.folder)


@pytest.mark.storm
def test_the_command_fails_when_little_has_happened_and_leaves_no_run_behind(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    written = tmp_path / "soak.json"
    asked = [url, "--seed", "5", "--deadline", "2", "--processes", "3", "--report", str(written)]
    done = CliRunner().invoke(soak_command, asked)
    assert done.exit_code == 1, done.output
    assert "NOT PROVEN" in done.stdout
    assert f"rulvar soak '{url}' --seed 5 --processes 3 --deadline 2.0" in done.stdout
    found = json.loads(written.read_text(encoding="utf-8"))
    assert found["plan"]["seed"] == 5
    assert "durability=normal" in found["notes"][-1]
    remove(Path(found["reports"]))
    with SqliteStore(tmp_path / "s.db") as store:
        assert store.list_run_ids(None, 10) == []


# --- whose clock it is --------------------------------------------------------------------


class TrueClock(SystemClock):
    """The machine's clock, whatever this process believes: as a server's is."""

    def now_ms(self) -> int:
        return true_now_ms()


def open_clocked(home: Home, clock: SystemClock) -> Stores:
    store = SqliteStore(home.folder / "s.db", lease_ttl_ms=home.lease_ttl_ms, clock=clock)
    return Stores(store, store.transcripts())


@pytest.mark.slow
@pytest.mark.parametrize(("clock", "clocked"), [(SystemClock(), True), (TrueClock(), False)])
def test_nobody_dies_of_a_wrong_clock_that_the_store_does_not_look_at(
    clock: SystemClock, clocked: bool
) -> None:
    subject = StoreFromFactory("clocked", open_clocked, arguments=(clock,))
    place = subject.fresh(lease_ttl_ms=200, manual_clock=False)
    try:
        stores = place.open()
        here = with_clock(coverage_of(stores), place.opener(), "clock-run", 200)
        assert here.clocked is clocked
        assert (("append", "clock") in here.cells) is clocked
        assert ("clock" in here.fatal) is clocked
        assert ["wrong clock" in note for note in here.notes] == [True] * (not clocked)
        # Neither a lease that lives for an hour nor anything else is left.
        stores.journal.acquire("clock-run", "next")  # type: ignore[attr-defined]
    finally:
        place.discard()


# --- what cannot be stormed -------------------------------------------------------------------


def open_plainly(home: Home) -> Stores:
    del home
    return reference_stores()


class _Journal:
    def __init__(self) -> None:
        inner = ReferenceStore()
        self.append, self.load, self.put_meta = inner.append, inner.load, inner.put_meta
        self.list_runs, self.delete = inner.list_runs, inner.delete


def open_without_leases(home: Home) -> Stores:
    del home
    return Stores(_Journal(), ReferenceStore().transcripts())


def test_a_store_that_one_process_has_is_refused_and_not_passed() -> None:
    with pytest.raises(ConfigError, match="several processes can open"):
        soak(StoreAtUrl("sqlite://"), SHORT)
    with pytest.raises(ConfigError, match="several processes can open"):
        soak(StoreFromFactory("plain", open_plainly, sharing="object"), SHORT)


def test_a_store_without_leases_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="has no leases"):
        soak(StoreFromFactory("journal", open_without_leases), SHORT)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_refused_before_the_storm(tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "soak.json"
    done = CliRunner().invoke(soak_command, ["sqlite:///s.db", "--report", str(nowhere)])
    assert isinstance(done.exception, ConfigError)
    assert "create it first" in str(done.exception)
