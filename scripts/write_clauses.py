"""Write docs/reference/clauses.md from the clauses of the conformance kit."""

from __future__ import annotations

from rulvar.conformance import catalogue
from rulvar.conformance.certification.report import clauses_page
from workspace import ROOT

if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "clauses.md").write_text(
        clauses_page(catalogue()), encoding="utf-8"
    )
