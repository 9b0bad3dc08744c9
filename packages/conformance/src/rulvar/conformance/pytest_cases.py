"""`StoreCases`: one test for each clause, for a store's own test suite.

Derive from it and say what the store is; the fixture is of the scope ``class``::

    class TestAcme(StoreCases):
        @pytest.fixture(scope="class")
        def rulvar_subject(self) -> Subject:
            return FactorySubject("acme", open_acme, takes_clock=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.pytest_plugin import judge

if TYPE_CHECKING:
    from rulvar.conformance.clauses import Clause
    from rulvar.conformance.runner import Certification

__all__ = ["StoreCases"]


class StoreCases:
    """The clauses as tests; the derived class has a fixture ``rulvar_subject``."""

    def test_clause(self, rulvar_certification: Certification, rulvar_clause: Clause) -> None:
        """Try one clause; what the store does not claim is skipped."""
        judge(rulvar_certification.result(rulvar_clause))
