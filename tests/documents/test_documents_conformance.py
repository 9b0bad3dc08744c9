"""The store author's guide: its clauses are the kit's, and what it shows works."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rulvar.conformance import catalogue
from rulvar.conformance.certification.report import clauses_page

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "stores" / "certifying.md").read_text("utf-8")
ACME = ROOT / "examples" / "acme-store" / "src"


def test_the_page_of_clauses_is_what_the_kit_checks() -> None:
    written = (ROOT / "docs" / "reference" / "clauses.md").read_text("utf-8")
    assert written == clauses_page(catalogue()), "run python scripts/write_clauses.py"


def test_every_clause_that_the_guide_names_is_one() -> None:
    known = {clause.id for clause in catalogue()}
    named = set(re.findall(r"\b([AMDLFTIECPBX]\d?-[a-z][\w-]+)", GUIDE))
    assert named
    assert named <= known


@pytest.mark.slow
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


@pytest.mark.slow
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


# --- building one, step by step ---------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "acme-store"
STEPS = GUIDE.partition("## Building one")[2].partition("## What a certificate says")[0]
BLOCKS = re.findall(r"```(\w+)(?: (\S+))?\n(.*?)```", STEPS, re.DOTALL)


def _without_spare_lines(text: str) -> str:
    return re.sub(r"\n{2,}", "\n\n", text).strip()


def test_the_blocks_of_the_guide_put_together_are_the_example() -> None:
    built: dict[str, str] = {}
    for _, name, text in BLOCKS:
        if name:
            built[name] = built.get(name, "") + "\n" + text
    real = {
        path.relative_to(EXAMPLE).as_posix(): path.read_text("utf-8")
        for path in (EXAMPLE / "pyproject.toml", *EXAMPLE.rglob("*.py"))
    }
    assert built.keys() == real.keys()
    for name, text in built.items():
        assert _without_spare_lines(text) == _without_spare_lines(real[name]), name


def test_the_example_is_as_short_as_it_is_said_to_be() -> None:
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in EXAMPLE.rglob("*.py"))
    assert lines < 250


def _certify(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the guide where only what was built so far is installed."""
    arguments = shlex.split(command)
    assert arguments[0] == "python"
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    if Path("/dev/shm").is_dir():
        environment["TMPDIR"] = "/dev/shm"  # as the guide says: no power is cut here
    return subprocess.run(
        [sys.executable, *arguments[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _register(folder: Path, project: str) -> None:
    """Do what ``pip install -e .`` does for an entry point."""
    [(scheme, module)] = tomllib.loads(project)["project"]["entry-points"]["rulvar.stores"].items()
    metadata = folder / "src" / "acme_store-1.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-store\nVersion: 1.0.0\n")
    (metadata / "entry_points.txt").write_text(f"[rulvar.stores]\n{scheme} = {module}\n")


@pytest.mark.storm
@pytest.mark.timeout(900)
def test_who_follows_the_guide_has_a_certified_store_after_every_step(tmp_path: Path) -> None:
    levels: list[str] = []
    for language, name, text in BLOCKS:
        if name:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" + text)
            if name == "pyproject.toml":
                _register(tmp_path, text)
            continue
        assert language == "sh"
        for line in filter(lambda line: "rulvar.conformance" in line, text.splitlines()):
            if line.startswith("pip"):
                continue
            # The last command is the certificate; of those before a part shows enough.
            part = " --only 'A*' --only 'T-r*' --only 'L*'" if "--level" in line else ""
            done = _certify(line + part, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            levels.append(done.stdout.splitlines()[-1])
    assert len(levels) == 3
    assert levels[0].endswith("no certificate of journal + transcripts")
    assert levels[1].endswith("no certificate of journal + leasable")
    whole = "journal + leasable + fenced + transcripts + fenced-pair"
    assert levels[2] == f"CONFORMANT: acme:///runs.db keeps every MUST of {whole}"


@pytest.mark.storm
@pytest.mark.timeout(300)
def test_the_example_in_memory_is_a_fenced_pair_too(tmp_path: Path) -> None:
    _register(tmp_path, (EXAMPLE / "pyproject.toml").read_text("utf-8"))
    done = subprocess.run(
        [sys.executable, "-m", "rulvar.conformance", "acme://"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ACME), str(tmp_path / "src")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_store_imports_nothing_of_rulvar_but_the_front_door_for_its_author() -> None:
    found: set[str] = set()
    for path in ACME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
    ours = {name for name in found if name.startswith("rulvar")}
    assert ours
    assert {
        n for n in ours if n != "rulvar.core.spi" and not n.startswith("rulvar.core.spi.")
    } == set()
