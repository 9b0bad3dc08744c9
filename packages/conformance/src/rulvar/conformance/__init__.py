"""The conformance kit: the contract of a store, in executable form.

    from rulvar.conformance import StoreAtUrl, certify

    certificate = certify(StoreAtUrl("acme:///runs.db"))
    print(certificate.conformant)

`contract` is what is asked: the clauses, and a check for each. `harness` is what the checks work
with: a store under test, callers, processes, stopped calls. `certification` tries
the clauses and writes the certificate.

Four more packages try a store as a whole: `model` (random operations, held against the reference
store), `soak` (processes that storm it), `crash` (a death at every call) and `protocol` (the fence
as a model, explored without a gap and replayed).

Reading order: `contract.clauses`, `harness.store_under_test`, `harness.actors` and
`harness.check_context`, any module of `contract.checks`, then `certification.runner`.
`harness.races` is how a fence that is not atomic is caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.harness.lazy import lazy_names

if TYPE_CHECKING:
    from rulvar.conformance.certification.certificate import Certificate, Outcome, Result
    from rulvar.conformance.certification.report import report
    from rulvar.conformance.certification.runner import Certification, certify
    from rulvar.conformance.contract.clauses import Clause
    from rulvar.conformance.contract.levels import Level, Sharing
    from rulvar.conformance.contract.registry import catalogue
    from rulvar.conformance.harness.store_under_test import (
        Home,
        Opener,
        StoreAtUrl,
        StoreFromFactory,
        StoreUnderTest,
        TestLocation,
    )

__all__ = [
    "Certificate",
    "Certification",
    "Clause",
    "Home",
    "Level",
    "Opener",
    "Outcome",
    "Result",
    "Sharing",
    "StoreAtUrl",
    "StoreFromFactory",
    "StoreUnderTest",
    "TestLocation",
    "catalogue",
    "certify",
    "report",
]

# At first use: pytest imports this package in every project where it is installed.
_HOMES = {
    "catalogue": "contract.registry",
    "Certificate": "certification.certificate",
    "Outcome": "certification.certificate",
    "Result": "certification.certificate",
    "Clause": "contract.clauses",
    "Level": "contract.levels",
    "Sharing": "contract.levels",
    "report": "certification.report",
    "Certification": "certification.runner",
    "certify": "certification.runner",
    "StoreFromFactory": "harness.store_under_test",
    "Home": "harness.store_under_test",
    "Opener": "harness.store_under_test",
    "TestLocation": "harness.store_under_test",
    "StoreUnderTest": "harness.store_under_test",
    "StoreAtUrl": "harness.store_under_test",
}


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
