"""The certificate keeps apart which durability was tested and which is by configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from rulvar.conformance import StoreFromFactory, certify, report
from rulvar.conformance.contract.registry import chosen
from rulvar.core import Stores
from rulvar.core.testing import reference_stores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from rulvar.conformance import Certificate, Home


def open_full(home: Home) -> Stores:
    store = SqliteStore(home.folder / "runs.db", lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


def open_normal(home: Home) -> Stores:
    store = SqliteStore(
        home.folder / "runs.db", lease_ttl_ms=home.lease_ttl_ms, durability="normal"
    )
    return Stores(store, store.transcripts())


def open_in_memory(home: Home) -> Stores:
    store = SqliteStore(":memory:", lease_ttl_ms=home.lease_ttl_ms)
    return Stores(store, store.transcripts())


def open_reference(home: Home) -> Stores:
    return reference_stores(lease_ttl_ms=home.lease_ttl_ms)


def section(certificate: Certificate) -> dict[str, dict[str, object]]:
    return cast("dict[str, dict[str, object]]", certificate.document()["durability"])


def test_the_clauses_that_kill_a_process_say_so() -> None:
    killing = {clause.id for clause in chosen(None) if clause.kills}
    assert killing == {"P-killed", "P-killed-delete", "P-killed-holder"}


@pytest.mark.slow
def test_a_killed_process_is_tested_and_power_loss_is_by_configuration() -> None:
    certificate = certify(StoreFromFactory("sqlite", open_normal), only=["P-killed-holder"])
    found = section(certificate)
    assert found["process_death"] == {"tested": True, "clauses": {"P-killed-holder": "passed"}}
    assert found["power_loss"] == {"tested": False, "by": "configuration", "setting": "normal"}
    lines = report(certificate).splitlines()
    assert "durability, a process dies: tested: P-killed-holder passed" in lines
    assert (
        "durability, power is lost:  by configuration: the store says 'normal'; "
        "this kit cuts no power"
    ) in lines


def test_what_was_not_tried_is_not_tested() -> None:
    certificate = certify(StoreFromFactory("sqlite", open_full), only=["A5-*"])
    found = section(certificate)
    assert found["process_death"] == {"tested": False, "clauses": {}}
    assert found["power_loss"]["setting"] == "full"
    assert "durability, a process dies: not tested" in report(certificate).splitlines()


@pytest.mark.parametrize("opening", [open_in_memory, open_reference])
def test_a_store_that_no_other_process_reaches_is_tested_in_neither(opening: object) -> None:
    subject = StoreFromFactory("in memory", opening, sharing="object")  # type: ignore[arg-type]
    certificate = certify(subject, only=["P-killed*"])
    found = section(certificate)
    assert found["process_death"] == {"tested": False, "clauses": {}}
    assert found["power_loss"] == {"tested": False, "by": "not stated", "setting": None}
    assert "durability, power is lost:  not stated; this kit cuts no power" in report(certificate)
