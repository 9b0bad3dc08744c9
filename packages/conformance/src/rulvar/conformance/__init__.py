"""The conformance kit: the contract of a store, in executable form.

    from rulvar.conformance import UrlSubject, certify

    certificate = certify(UrlSubject("acme:///runs.db"))
    print(certificate.conformant)

Reading order: `clauses` (what a clause is), `subject` (how the kit gets at a store), `actors`
and `trial` (what a check works with), any module of `checks`, then `runner`. `races` is how
a fence that is not atomic is caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.lazy import lazy_names

if TYPE_CHECKING:
    from rulvar.conformance.certificate import Certificate, Outcome, Result
    from rulvar.conformance.clauses import Clause, Level, Reach
    from rulvar.conformance.registry import catalogue
    from rulvar.conformance.reporting import report
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

# At first use: pytest imports this package in every project where it is installed.
_HOMES = {
    "catalogue": "registry",
    "Certificate": "certificate",
    "Outcome": "certificate",
    "Result": "certificate",
    "Clause": "clauses",
    "Level": "clauses",
    "Reach": "clauses",
    "report": "reporting",
    "Certification": "runner",
    "certify": "runner",
    "FactorySubject": "subject",
    "Home": "subject",
    "Opener": "subject",
    "Place": "subject",
    "Subject": "subject",
    "UrlSubject": "subject",
}


if not TYPE_CHECKING:  # a visible one would make every misspelt name an object, not an error
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
