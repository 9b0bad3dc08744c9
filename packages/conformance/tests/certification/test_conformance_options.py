"""The doors: a module, a command, and pytest, over the same clauses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rulvar.conformance import catalogue
from rulvar.conformance.__main__ import main
from rulvar.conformance.certification.cli import certify as command
from rulvar.core.plugins import installed_commands, load_command

if TYPE_CHECKING:
    from pathlib import Path

URL = "sqlite:///runs.db"


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


# --- python -m ------------------------------------------------------------------------------------


def test_the_module_answers_0_for_a_pass_and_prints_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([URL, "--only", "A5*", "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "journals" in told
    assert "seed 3" in told


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_the_module_answers_1_when_a_clause_fails_and_2_when_it_cannot_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["memory://", "--level", "leasable", "--only", "L-exclusive"]) == 1
    assert "FAILED L-exclusive" in capsys.readouterr().out
    assert main(["nosuch:///x"]) == 2
    assert "nosuch" in capsys.readouterr().err
    assert main([URL, "--only", "Z9"]) == 2
    assert "Z9" in capsys.readouterr().err


def test_what_cannot_be_written_or_waited_for_is_refused_before_a_clause_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--certificate", "--badge"):
        assert main([URL, "--only", "A5*", option, str(tmp_path / "no" / "c.json")]) == 2
        assert "create it first" in capsys.readouterr().err
        assert main([URL, "--only", "A5*", option, str(tmp_path)]) == 2
        assert "name a file in it" in capsys.readouterr().err
    for seconds in ("0", "-5", "nan", "inf"):
        assert main([URL, "--only", "A5*", f"--deadline={seconds}"]) == 2
        assert "above 0" in capsys.readouterr().err


def test_the_module_lists_every_clause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [clause.id for clause in catalogue()]


@pytest.mark.slow
def test_the_module_writes_certificate_and_badge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, badge = tmp_path / "c.json", tmp_path / "b.json"
    assert (
        main(
            [
                URL,
                "--only",
                "A2*",
                "--json",
                "--certificate",
                str(certificate),
                "--badge",
                str(badge),
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(certificate.read_text()) == printed
    assert printed["store"] == URL
    assert json.loads(badge.read_text())["schemaVersion"] == 1


# --- the command ----------------------------------------------------------------------------------


def test_the_command_is_offered_to_the_command_line() -> None:
    assert [each.name for each in installed_commands() if each.name == "certify"] == ["certify"]
    assert load_command("certify") is command


def test_the_command_passes_lists_and_needs_a_url() -> None:
    runner = CliRunner()
    done = runner.invoke(command, [URL, "--only", "A5-guard", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["counts"]["passed"] == 1
    assert runner.invoke(command, ["--list", "--only", "A5*"]).output.startswith("A5-")
    assert runner.invoke(command, []).exit_code == 2


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_the_command_answers_1_for_a_store_that_breaks_a_clause() -> None:
    done = CliRunner().invoke(command, ["memory://", "--level", "fenced", "--only", "C-marker"])
    assert done.exit_code == 1


# --- pytest ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pytest_certifies_a_url_without_a_test_file(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "--rulvar-store", URL, "-k", "A5 or boundary", "--rulvar-seed", "4")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert "seed 4" in done.stdout


@pytest.mark.slow
def test_pytest_collects_the_clauses_alone_unless_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    alone = _pytest(tmp_path, "--rulvar-store", URL, "-k", "A5-guard or mine")
    assert "1 passed" in alone.stdout
    both = _pytest(tmp_path, "--rulvar-store", URL, "-k", "A5-guard or mine", "test_mine.py")
    assert "2 passed" in both.stdout


@pytest.mark.slow
def test_pytest_shows_the_timeline_of_a_failure_and_the_verdict(tmp_path: Path) -> None:
    done = _pytest(
        tmp_path, "--rulvar-store", "memory://", "--rulvar-level", "leasable", "-k", "L-exclusive"
    )
    assert done.returncode == 1
    assert "timeline:" in done.stdout
    assert "again:" in done.stdout
    assert "NOT CONFORMANT" in done.stdout


@pytest.mark.slow
def test_pytest_refuses_a_store_that_nobody_provides(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "--rulvar-store", "nosuch:///x")
    assert done.returncode == 4
    assert "nosuch" in done.stderr


@pytest.mark.slow
def test_a_class_has_one_test_for_each_clause(tmp_path: Path) -> None:
    (tmp_path / "test_store.py").write_text(
        """
import pytest
from rulvar.conformance import StoreAtUrl
from rulvar.conformance.certification.pytest_cases import StoreCases

@pytest.fixture(scope="class")
def rulvar_subject():
    return StoreAtUrl("memory://")

class TestStore(StoreCases):
    pass
"""
    )
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    ours = [c for c in catalogue() if c.level in {"journal", "transcripts"}]
    assert f"{len(catalogue())}" in str(
        sum(int(part.split()[0]) for part in done.stdout.splitlines()[-1].split(", ")[:2])
    )
    assert 40 < int(done.stdout.splitlines()[-1].split()[0]) <= len(ours)


@pytest.mark.slow
def test_without_the_option_the_plugin_imports_nothing_of_the_kit(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\ndef test_light():\n"
        "    assert 'rulvar.conformance.certification.runner' not in sys.modules\n"
    )
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout
