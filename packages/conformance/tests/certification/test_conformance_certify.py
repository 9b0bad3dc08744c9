"""Our own stores are certified, each at the level that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.conformance import StoreAtUrl, StoreFromFactory, certify, report
from rulvar.core import Stores
from rulvar.core.testing import reference_stores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from rulvar.conformance import Certificate, Home

pytestmark = pytest.mark.slow

FENCED = ("journal", "leasable", "fenced", "transcripts", "fenced-pair")


def open_reference(home: Home) -> Stores:
    return reference_stores(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)


def open_sqlite(home: Home) -> Stores:
    store = SqliteStore(home.folder / "runs.db", clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


def open_sqlite_in_memory(home: Home) -> Stores:
    store = SqliteStore(":memory:", clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


def _holds(certificate: Certificate, claim: tuple[str, ...]) -> None:
    print(report(certificate))  # noqa: T201 - shown when the test fails, with every timeline
    assert certificate.claim == claim
    assert certificate.conformant
    assert certificate.count("passed") == certificate.ran > 0
    assert certificate.count("not verified") == 0


def test_the_reference_store_is_a_fenced_pair() -> None:
    subject = StoreFromFactory("reference", open_reference, sharing="object", takes_clock=True)
    certificate = certify(subject)
    _holds(certificate, FENCED)
    assert certificate.sharing == "object"


@pytest.mark.storm
@pytest.mark.timeout(300)
def test_sqlite_in_memory_is_a_fenced_pair() -> None:
    subject = StoreFromFactory(
        "sqlite in memory", open_sqlite_in_memory, sharing="object", takes_clock=True
    )
    _holds(certify(subject), FENCED)


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_sqlite_on_a_file_is_a_fenced_pair_between_processes() -> None:
    certificate = certify(StoreFromFactory("sqlite", open_sqlite, takes_clock=True))
    _holds(certificate, FENCED)
    assert certificate.sharing == "shared"
    # With a clock and another process there is nothing that could not be tried.
    assert certificate.count("not claimed") == 0
    assert certificate.count("passed") == len(certificate.results)


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_sqlite_through_its_url_is_certified_on_the_machines_own_clock() -> None:
    certificate = certify(StoreAtUrl("sqlite:///runs.db"))
    _holds(certificate, FENCED)
    timed = [result for result in certificate.results if result.timed]
    assert len(timed) > 20
    assert certificate.count("not claimed") == 0


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_the_in_memory_store_is_certified_at_its_own_level_without_the_marker() -> None:
    certificate = certify(StoreAtUrl("memory://"))
    _holds(certificate, ("journal", "transcripts"))
    fenced = [r for r in certificate.results if r.clause_id.startswith("F-")]
    assert fenced
    assert {result.outcome for result in fenced} == {"not claimed"}


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_the_in_memory_store_is_not_a_fenced_pair() -> None:
    certificate = certify(StoreAtUrl("memory://"), level="fenced-pair", only=["C-*", "L-*"])
    assert not certificate.ok
    outcomes = {result.clause_id: result.outcome for result in certificate.results}
    assert outcomes["C-marker"] == outcomes["C-leases"] == "failed"
    assert outcomes["L-exclusive"] == "failed"
