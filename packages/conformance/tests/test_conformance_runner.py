"""What a certificate may say, and when it may not say "conformant"."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import (
    FactorySubject,
    Reach,
    Result,
    UrlSubject,
    catalogue,
    certify,
    report,
)
from rulvar.conformance.certificate import Certificate
from rulvar.core import ConfigError, PluginError, Stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import (
        Home,
        Place,
    )

_FILE = Path(__file__).with_name("conformance_odd_stores.py")
_SPEC = importlib.util.spec_from_file_location("conformance_odd_stores", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
odd = importlib.util.module_from_spec(_SPEC)
sys.modules["conformance_odd_stores"] = odd
_SPEC.loader.exec_module(odd)


def _subject(name: str) -> FactorySubject:
    opening: Callable[[Home], Stores] = getattr(odd, f"open_{name}")
    return FactorySubject(name, opening, reach="object", takes_clock=True)


# --- a store that keeps nothing ---------------------------------------------------------------


def test_a_store_with_no_methods_passes_nothing_and_is_not_conformant() -> None:
    certificate = certify(_subject("empty"))
    assert not certificate.conformant
    assert certificate.claim == ("journal", "transcripts")
    passed = [result.clause_id for result in certificate.results if result.outcome == "passed"]
    # True of a store that is not there: nothing is claimed by the wrong names.
    assert set(passed) <= {"C-unfenced", "C-methods", "C-optional"}


def test_a_store_that_implements_nothing_is_not_conformant() -> None:
    certificate = certify(_subject("unimplemented"))
    assert not certificate.conformant
    passed = {r.clause_id[0] for r in certificate.results if r.outcome == "passed"}
    assert passed <= {"C", "T"}  # the shape of the calls, and a domain that nobody declares
    assert certificate.count("failed") + certificate.count("error") > 250


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
        reach="object",
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


def test_a_must_that_cannot_be_tried_is_not_verified_with_its_reason() -> None:
    subject = FactorySubject("slow", odd.open_without_options, reach="object")
    certificate = certify(_NoTtl(subject), only=["L-expiry"])
    [result] = certificate.results
    assert result.outcome == "not verified"
    assert "lease_ttl_ms" in result.reason
    assert not certificate.ok


class _NoTtl:
    """A subject whose leases live for as long as the store says."""

    has_clock = False

    def __init__(self, inner: FactorySubject) -> None:
        self._inner = inner
        self.name = inner.name
        self.reach = inner.reach

    def fresh(self, *, lease_ttl_ms: int, manual_clock: bool) -> Place:
        place = self._inner.fresh(lease_ttl_ms=lease_ttl_ms, manual_clock=manual_clock)
        place.honours_ttl = False
        return place

    def again(self, clause_id: str, seed: int) -> str:
        return self._inner.again(clause_id, seed)


# --- what is told ---------------------------------------------------------------------------------


def test_a_failure_tells_who_did_what_and_how_to_try_it_again() -> None:
    certificate = certify(_subject("silent"), only=["L-exclusive"], seed=5)
    [result] = certificate.results
    assert result.outcome == "failed"
    for part in ("timeline:", "first", "acquire(", "expected:", "got:", "only=['L-exclusive']"):
        assert part in result.story
    assert "seed=5" in result.again


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

    certificate = certify(FactorySubject("unmarked", opening, reach="object"), only=["C-*"])
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


# --- what is refused ------------------------------------------------------------------------------


def test_an_unknown_clause_level_or_effort_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no clause is called 'A9'"):
        certify(_subject("sound"), only=["A9"])
    with pytest.raises(ConfigError, match="'gold' is no level"):
        certify(_subject("sound"), level="gold")
    with pytest.raises(ConfigError, match="effort"):
        certify(_subject("sound"), effort=0)
    with pytest.raises(PluginError, match="acme"):
        certify(UrlSubject("acme:///x"))


# --- subjects -------------------------------------------------------------------------------------


def test_a_url_with_a_relative_path_is_put_into_a_new_folder_each_time() -> None:
    subject = UrlSubject("sqlite:///runs.db?durability=normal")
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
    certificate = certify(UrlSubject(url), only=["A3-*", "F-append-superseded", "P-first-open"])
    outcomes = {result.clause_id: result.outcome for result in certificate.results}
    assert outcomes.pop("P-first-open") == "not verified"  # the place is not new
    assert set(outcomes.values()) == {"passed"}
    assert (tmp_path / "runs.db").exists()
    stores = UrlSubject(url).fresh(lease_ttl_ms=60_000, manual_clock=False).open()
    assert list(stores.journal.list_runs(None)) == []  # what the kit wrote is gone
    stores.close()


def test_the_reach_of_a_url_is_one_object_in_memory_and_shared_otherwise() -> None:
    assert UrlSubject("sqlite://").reach is Reach.OBJECT
    assert UrlSubject("sqlite:///x.db").reach is Reach.SHARED
    assert UrlSubject("acme://host/x").reach is Reach.SHARED
    assert UrlSubject("acme://host/x", reach="process").reach is Reach.PROCESS


def test_a_subject_that_no_other_process_can_open_is_not_verified_there() -> None:
    def opening(home: Home) -> Stores:
        return (
            UrlSubject(f"sqlite:///{home.folder}/x.db")
            .fresh(lease_ttl_ms=60_000, manual_clock=False)
            .open()
        )

    certificate = certify(FactorySubject("nested", opening), only=["P-visible"])
    [result] = certificate.results
    assert result.outcome == "not verified"
    assert "another process" in result.reason


def test_the_kit_works_without_assertions() -> None:
    program = (
        "import sys; from rulvar.conformance import *; "
        f"sys.path.insert(0, {str(_FILE.parent)!r}); import conformance_odd_stores as odd; "
        "s = lambda f: FactorySubject('x', f, reach='object', takes_clock=True); "
        "sound = certify(s(odd.open_sound), only=['A*', 'F-append*', 'L-*']); "
        "silent = certify(s(odd.open_silent), only=['A*', 'F-append*', 'L-*']); "
        "print(sound.ok, silent.ok, silent.count('passed'))"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "0"]


def test_every_clause_has_one_home_and_a_sentence() -> None:
    clauses = catalogue()
    assert len({clause.id for clause in clauses}) == len(clauses)
    for clause in clauses:
        assert clause.id[0] in "AMDTIELFCPBX"
        assert clause.sentence.endswith(".")
        assert clause.source
        assert clause.since
