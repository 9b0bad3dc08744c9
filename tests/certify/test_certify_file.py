"""The file store, certified at its level: a journal store and its transcripts, one writer.

One writable handle at a time is what the store is about, so its reach is one object; that a
store opened again has everything is tried by the store's own tests.
"""

from __future__ import annotations

import pytest

from rulvar.conformance import StoreAtUrl, certify


@pytest.mark.storm
def test_the_file_store_keeps_the_contract_at_its_level() -> None:
    certificate = certify(StoreAtUrl("file:///@tmp@/store", sharing="object"))
    assert certificate.conformant, [
        (each.clause_id, each.outcome, each.reason)
        for each in certificate.results
        if each.outcome not in {"passed", "not claimed"}
    ]
    passed = {each.clause_id for each in certificate.results if each.outcome == "passed"}
    assert len(passed) >= 50
    assert "X-model" in passed
