"""What a certificate may say, and when it may not say "conformant"."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import (
    Result,
    Sharing,
    StoreAtUrl,
    StoreFromFactory,
    catalogue,
    certify,
    report,
)
from rulvar.conformance.certification.certificate import Certificate
from rulvar.conformance.contract.registry import chosen
from rulvar.core import ConfigError, Stores
from rulvar.core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import (
        Home,
        TestLocation,
    )

_FILE = Path(__file__).with_name("conformance_odd_stores.py")
_SPEC = importlib.util.spec_from_file_location("conformance_odd_stores", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
odd = importlib.util.module_from_spec(_SPEC)
sys.modules["conformance_odd_stores"] = odd
_SPEC.loader.exec_module(odd)


def _subject(name: str) -> StoreFromFactory:
    opening: Callable[[Home], Stores] = getattr(odd, f"open_{name}")
    return StoreFromFactory(name, opening, sharing="object", takes_clock=True)


# --- a store that keeps nothing ---------------------------------------------------------------


@pytest.mark.slow
def test_a_store_with_no_methods_passes_nothing_and_is_not_conformant() -> None:
    certificate = certify(_subject("empty"))
    assert not certificate.conformant
    assert certificate.claim == ("journal", "transcripts")
    passed = [result.clause_id for result in certificate.results if result.outcome == "passed"]
    # True of a store that is not there: nothing is claimed by the wrong names.
    assert set(passed) <= {"C-unfenced", "C-methods", "C-optional"}


@pytest.mark.storm
def test_a_store_that_implements_nothing_is_not_conformant() -> None:
    certificate = certify(_subject("unimplemented"))
    assert not certificate.conformant
    passed = {r.clause_id[0] for r in certificate.results if r.outcome == "passed"}
    assert passed <= {"C", "T"}  # the shape of the calls, and a domain that nobody declares
    assert certificate.count("failed") + certificate.count("error") > 250


@pytest.mark.slow
def test_a_store_that_does_nothing_is_not_conformant() -> None:
    certificate = certify(_subject("silent"))
    assert not certificate.conformant
    assert certificate.count("failed") + certificate.count("error") > 250


def test_a_store_that_hangs_is_an_error_of_the_clause_and_the_kit_goes_on() -> None:
    certificate = certify(_subject("hanging"), only=["F-append-live", "A5-guard"], deadline_s=0.5)
    outcomes = {result.clause_id: result.outcome for result in certificate.results}
    assert outcomes == {"F-append-live": "error", "A5-guard": "passed"}
    assert not certificate.ok


# --- what may be called conformant --------------------------------------------------------------


def test_a_part_of_the_clauses_is_never_conformant() -> None:
    certificate = certify(_subject("sound"), only=["A5-*"])
    assert certificate.ok
    assert not certificate.conformant
    assert "no certificate" in report(certificate)


def test_nothing_tried_is_never_a_pass() -> None:
    certificate = certify(_subject("sound"), only=["P-visible"])
    assert certificate.ran == 0
    assert not certificate.ok
    assert not certificate.conformant


def _certificate(*outcomes: tuple[str, str]) -> Certificate:
    results = tuple(
        Result(
            clause_id=f"A-{number}",
            strength="MUST" if strength == "MUST" else "SHOULD",
            level="journal",
            sentence="A sentence.",
            outcome=outcome,  # type: ignore[arg-type] # one of them
            seed=1,
        )
        for number, (strength, outcome) in enumerate(outcomes)
    )
    return Certificate(
        store="x",
        claim=("journal",),
        sharing="object",
        capabilities=(),
        notes=(),
        seed=1,
        complete=True,
        results=results,
        versions={},
        duration_s=1.0,
    )


@pytest.mark.parametrize(
    ("outcomes", "conformant"),
    [
        ([("MUST", "passed")], True),
        ([("MUST", "passed"), ("SHOULD", "failed")], True),
        ([("MUST", "passed"), ("MUST", "not claimed")], True),
        ([], False),
        ([("MUST", "not claimed")], False),
        ([("MUST", "not verified")], False),
        ([("MUST", "passed"), ("MUST", "not verified")], False),
        ([("MUST", "passed"), ("MUST", "failed")], False),
        ([("MUST", "passed"), ("MUST", "error")], False),
    ],
)
def test_conformant_is_every_must_tried_and_passed(
    outcomes: list[tuple[str, str]], conformant: bool
) -> None:
    certificate = _certificate(*outcomes)
    assert certificate.conformant is conformant
    assert json.loads(certificate.badge())["color"] == ("brightgreen" if conformant else "red")


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ([("MUST", "passed")], "CONFORMANT: x keeps every MUST of journal"),
        (
            [("MUST", "passed"), ("SHOULD", "failed")],
            "CONFORMANT: x keeps every MUST of journal; not kept, and no MUST: A-1",
        ),
        ([("SHOULD", "error")], "NOT PASSED: nothing of what was asked for"),
        ([("MUST", "not claimed")], "NOT CONFORMANT: no clause was tried on x"),
        (
            [("MUST", "passed"), ("MUST", "not verified")],
            "NOT CONFORMANT: x does not keep journal: one MUST is broken or not verified; begin",
        ),
    ],
)
def test_the_verdict_is_one_line(outcomes: list[tuple[str, str]], told: str) -> None:
    assert report(_certificate(*outcomes)).splitlines()[-1].startswith(told)


def test_a_must_that_cannot_be_tried_is_not_verified_with_its_reason() -> None:
    subject = StoreFromFactory("slow", odd.open_without_options, sharing="object")
    certificate = certify(_NoTtl(subject), only=["L-expiry"])
    [result] = certificate.results
    assert result.outcome == "not verified"
    assert "lease_ttl_ms" in result.reason
    assert not certificate.ok


class _NoTtl:
    """A subject whose leases live for as long as the store says."""

    has_clock = False

    def __init__(self, inner: StoreFromFactory) -> None:
        self._inner = inner
        self.name = inner.name
        self.sharing = inner.sharing

    def fresh(self, *, lease_ttl_ms: int, manual_clock: bool) -> TestLocation:
        place = self._inner.fresh(lease_ttl_ms=lease_ttl_ms, manual_clock=manual_clock)
        place.honours_ttl = False
        return place

    def again(self, clause_id: str, seed: int, levels: tuple[str, ...] = ()) -> str:
        return self._inner.again(clause_id, seed, levels)


# --- what is told ---------------------------------------------------------------------------------


def test_a_failure_tells_who_did_what_and_how_to_try_it_again() -> None:
    certificate = certify(_subject("silent"), only=["L-exclusive"], seed=5)
    [result] = certificate.results
    assert result.outcome == "failed"
    for part in ("timeline:", "first", "acquire(", "expected:", "got:", "only=['L-exclusive']"):
        assert part in result.story
    assert "seed=5" in result.again


def test_what_was_claimed_is_part_of_the_way_to_try_it_again() -> None:
    certificate = certify(_subject("silent"), level="leasable", only=["L-exclusive"], seed=5)
    assert "level=['leasable']" in certificate.results[0].again
    assert "level" not in StoreAtUrl("acme:///x").again("A5-guard", 1)
    command = StoreAtUrl("acme:///x", sharing="object").again("A5-guard", 1, ("journal", "fenced"))
    assert command.endswith("--seed 1 --level journal --level fenced --sharing object")


def test_a_report_tells_the_first_failures_whole_and_ends_with_where_to_begin() -> None:
    certificate = certify(_subject("silent"), only=["A*", "L-exclusive"])
    bad = {"failed", "error"}
    broken = [each.clause_id for each in certificate.results if each.outcome in bad]
    lines = report(certificate).splitlines()
    assert lines[0].startswith("---")
    assert lines[1].startswith(f"FAILED {broken[0]} ")
    assert sum(line.startswith(("FAILED ", "ERROR ")) for line in lines) == 5
    assert any(line.startswith(f"{len(broken) - 5} more failed") for line in lines)
    assert lines[-1].startswith("NOT CONFORMANT")
    assert lines[-1].endswith(f"begin with {broken[0]}")
    summary = "\n".join(lines[-20:])
    assert all(clause_id in summary for clause_id in broken)


def test_the_certificate_is_json_with_versions_seed_and_counts() -> None:
    certificate = certify(_subject("sound"), only=["A5-*"], seed=9)
    document = json.loads(certificate.to_json())
    assert document["seed"] == 9
    assert document["counts"]["passed"] == document["counts"]["ran"] == len(document["clauses"])
    assert set(document["versions"]) == {"python", "rulvar-conformance", "rulvar-core"}
    assert document["conformant"] is False
    assert all(row["seed"] == 9 for row in document["clauses"])


def test_what_looks_present_and_is_not_declared_is_noted() -> None:
    class Unmarked(odd.ReferenceStore):  # type: ignore[name-defined, misc]
        fenced_writes = False

    def opening(home: Home) -> Stores:
        store = Unmarked(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
        return Stores(store, store.transcripts())

    certificate = certify(StoreFromFactory("unmarked", opening, sharing="object"), only=["C-*"])
    assert certificate.claim == ("journal", "leasable", "transcripts")
    assert any("lacks the marker" in note for note in certificate.notes)


def test_progress_is_told_for_each_clause_and_a_failure_can_stop() -> None:
    seen: list[str] = []
    certificate = certify(
        _subject("silent"),
        only=["A5-*"],
        stop_at_failure=True,
        progress=lambda result: seen.append(result.clause_id),
    )
    assert seen == ["A5-guard"] == [result.clause_id for result in certificate.results]


# --- several at once ------------------------------------------------------------------------------


class _Crowd:
    """Counts the places that are open, and lets the second one wait for the third."""

    def __init__(self) -> None:
        self.opened = 0
        self.there: set[int] = set()
        self.most = 0
        self._third = threading.Event()
        self._lock = threading.Lock()

    def enter(self, store: object) -> None:
        with self._lock:
            self.opened += 1
            self.there.add(id(store))
            number, self.most = self.opened, max(self.most, len(self.there))
        if number == 2:
            self._third.wait(30)
        if number == 3:
            self._third.set()

    def leave(self, store: object) -> None:
        with self._lock:
            self.there.discard(id(store))


def test_a_clause_that_fails_in_company_is_tried_again_alone() -> None:
    crowd = _Crowd()

    class Shy(odd.ReferenceStore):  # type: ignore[name-defined, misc]
        def append(self, *arguments: object, **options: object) -> None:
            if len(crowd.there) > 1:
                message = "somebody else has a store, too"
                raise RuntimeError(message)
            super().append(*arguments, **options)

        def close(self) -> None:
            crowd.leave(self)
            super().close()

    def opening(home: Home) -> Stores:
        store = Shy(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
        crowd.enter(store)
        return Stores(store, store.transcripts())

    subject = StoreFromFactory("shy", opening, sharing="object", takes_clock=True)
    seen: list[str] = []
    certificate = certify(
        subject,
        only=["F-append-live", "F-put_meta-live", "F-append-superseded"],
        jobs=2,
        progress=lambda result: seen.append(result.clause_id),
    )
    assert crowd.most > 1
    assert certificate.count("passed") == 3
    assert sorted(seen) == sorted(result.clause_id for result in certificate.results)


@pytest.mark.slow
def test_several_at_once_find_what_one_after_the_other_finds() -> None:
    alone, together = (
        certify(_subject("sound"), only=["A5*", "F-append*", "L-*"], seed=1, jobs=jobs)
        for jobs in (1, 4)
    )
    outcomes = [[(each.clause_id, each.outcome) for each in c.results] for c in (alone, together)]
    assert outcomes[0] == outcomes[1]
    broken = certify(_subject("silent"), only=["F-append*"], jobs=4)
    assert broken.count("passed") == 0
    assert broken.count("failed") == broken.ran > 5


# --- what is refused ------------------------------------------------------------------------------


def test_an_unknown_clause_level_or_effort_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no clause is called 'A9'"):
        certify(_subject("sound"), only=["A9"])
    with pytest.raises(ConfigError, match="did you mean 'A5-guard'"):
        certify(_subject("sound"), only=["A5-gard"])
    with pytest.raises(ConfigError, match="'gold' is not a level"):
        certify(_subject("sound"), level="gold")
    with pytest.raises(ConfigError, match="effort"):
        certify(_subject("sound"), effort=0)
    with pytest.raises(ConfigError, match="jobs is 1 or more"):
        certify(_subject("sound"), jobs=0)
    with pytest.raises(ConfigError, match="no level is claimed"):
        certify(_subject("sound"), level=[])
    with pytest.raises(PluginError, match="acme"):
        certify(StoreAtUrl("acme:///x"))


# --- subjects -------------------------------------------------------------------------------------


def test_a_url_with_a_relative_path_is_put_into_a_new_folder_each_time() -> None:
    subject = StoreAtUrl("sqlite:///runs.db?durability=normal")
    places = [subject.fresh(lease_ttl_ms=1234, manual_clock=False) for _ in range(2)]
    try:
        stores = [place.open() for place in places]
        assert all(getattr(each.journal, "lease_ttl_ms", None) == 1234 for each in stores)
        paths = {getattr(each.journal, "path", None) for each in stores}
        assert len(paths) == 2
        assert not Path("runs.db").exists()
    finally:
        for place in places:
            place.discard()
    assert not any(Path(str(path)).exists() for path in paths)


def test_a_url_with_an_absolute_path_is_used_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    certificate = certify(StoreAtUrl(url), only=["A3-*", "F-append-superseded", "P-first-open"])
    outcomes = {result.clause_id: result.outcome for result in certificate.results}
    assert outcomes.pop("P-first-open") == "not verified"  # the place is not new
    assert set(outcomes.values()) == {"passed"}
    assert (tmp_path / "runs.db").exists()
    stores = StoreAtUrl(url).fresh(lease_ttl_ms=60_000, manual_clock=False).open()
    assert list(stores.journal.list_runs(None)) == []  # what the kit wrote is gone
    stores.close()


def test_the_reach_of_a_url_is_one_object_in_memory_and_shared_otherwise() -> None:
    assert StoreAtUrl("sqlite://").sharing is Sharing.OBJECT
    assert StoreAtUrl("sqlite:///x.db").sharing is Sharing.SHARED
    assert StoreAtUrl("acme://host/x").sharing is Sharing.SHARED
    assert StoreAtUrl("acme://host/x", sharing="process").sharing is Sharing.PROCESS


def test_a_subject_that_no_other_process_can_open_is_not_verified_there() -> None:
    def opening(home: Home) -> Stores:
        return (
            StoreAtUrl(f"sqlite:///{home.folder}/x.db")
            .fresh(lease_ttl_ms=60_000, manual_clock=False)
            .open()
        )

    certificate = certify(StoreFromFactory("nested", opening), only=["P-visible"])
    [result] = certificate.results
    assert result.outcome == "not verified"
    assert "another process" in result.reason


@pytest.mark.slow
def test_the_kit_works_without_assertions() -> None:
    program = (
        "import sys; from rulvar.conformance import *; "
        f"sys.path.insert(0, {str(_FILE.parent)!r}); import conformance_odd_stores as odd; "
        "s = lambda f: StoreFromFactory('x', f, sharing='object', takes_clock=True); "
        "sound = certify(s(odd.open_sound), only=['A*', 'F-append*', 'L-*']); "
        "silent = certify(s(odd.open_silent), only=['A*', 'F-append*', 'L-*']); "
        "print(sound.ok, silent.ok, silent.count('passed'))"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "0"]


def test_a_pattern_names_the_clauses_that_it_fits() -> None:
    atomic = [clause.id for clause in chosen(["F-*-atomic", "F-append-atomic"])]
    assert len(atomic) == len(set(atomic)) > 5
    assert all(each.startswith("F-") and each.endswith("-atomic") for each in atomic)


def test_every_clause_has_one_home_and_a_sentence() -> None:
    clauses = catalogue()
    assert len({clause.id for clause in clauses}) == len(clauses)
    for clause in clauses:
        assert clause.id[0] in "AMDTIELFCPBX"
        assert clause.sentence.endswith(".")
        assert clause.source
        assert clause.since
