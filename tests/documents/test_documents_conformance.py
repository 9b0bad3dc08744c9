"""The store author's guide: its clauses are the kit's, and what it shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rulvar.conformance import catalogue
from rulvar.conformance.reporting import clauses_page

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "conformance.md").read_text("utf-8")
ACME = ROOT / "examples" / "acme-store" / "src"


def test_the_page_of_clauses_is_what_the_kit_checks() -> None:
    written = (ROOT / "docs" / "clauses.md").read_text("utf-8")
    assert written == clauses_page(catalogue()), "run python scripts/write_clauses.py"


def test_every_clause_that_the_guide_names_is_one() -> None:
    known = {clause.id for clause in catalogue()}
    named = set(re.findall(r"\b([AMDLFTIECPBX]\d?-[a-z][\w-]+)", GUIDE))
    assert named
    assert named <= known


def test_the_script_of_the_guide_certifies_a_store(tmp_path: Path) -> None:
    script, _ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    # A family is enough to see that it works; the whole kit takes a minute.
    part = 'certify(subject, only=["A5*", "F-append-l*", "P-visible"])'
    script = script.replace("certify(subject)", part)
    script = script.replace("certificate.conformant", "certificate.ok")
    (tmp_path / "certify_acme.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "certify_acme.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ACME)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed what was asked for" in done.stdout


def test_the_class_of_the_guide_is_collected(tmp_path: Path) -> None:
    _, cases = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    script = cases.replace("import pytest\n", "import pytest\nfrom certify_acme import open_acme\n")
    (tmp_path / "test_acme.py").write_text(script)
    opening, _ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "certify_acme.py").write_text(opening)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "A5"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ACME)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
