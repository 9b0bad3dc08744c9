"""`StoreCases`: one test for each clause, for a store's own test suite.

Derive from it, and say what the store is in a fixture of the scope ``class``::

    @pytest.fixture(scope="class")
    def rulvar_subject() -> Subject:
        return StoreFromFactory("acme", open_acme, takes_clock=True)


    class TestAcme(StoreCases):
        pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.pytest_plugin import judge

if TYPE_CHECKING:
    from rulvar.conformance.certification.runner import Certification
    from rulvar.conformance.contract.clauses import Clause

__all__ = ["StoreCases"]


class StoreCases:
    """The clauses as tests; a fixture ``rulvar_subject`` says of which store."""

    def test_clause(self, rulvar_certification: Certification, rulvar_clause: Clause) -> None:
        """Try one clause; what the store does not claim is skipped."""
        judge(rulvar_certification.result(rulvar_clause))
