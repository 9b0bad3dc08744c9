"""The conformance kit: the contract of a store, in executable form.

    from rulvar.conformance import UrlSubject, certify

    certificate = certify(UrlSubject("acme:///runs.db"))
    print(certificate.conformant)

Reading order: `clauses` (what a clause is), `subject` (how the kit gets at a store), `actors`
and `trial` (what a check works with), any module of `checks`, then `runner`. `races` is how
a fence that is not atomic is caught.
"""

from __future__ import annotations

from rulvar.conformance.catalogue import catalogue
from rulvar.conformance.certificate import Certificate, Outcome, Result
from rulvar.conformance.clauses import Clause, Level, Reach
from rulvar.conformance.report import report
from rulvar.conformance.runner import Certification, certify
from rulvar.conformance.subject import FactorySubject, Home, Opener, Place, Subject, UrlSubject

__all__ = [
    "Certificate",
    "Certification",
    "Clause",
    "FactorySubject",
    "Home",
    "Level",
    "Opener",
    "Outcome",
    "Place",
    "Reach",
    "Result",
    "Subject",
    "UrlSubject",
    "catalogue",
    "certify",
    "report",
]
