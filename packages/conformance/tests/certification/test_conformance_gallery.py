"""Every broken store of the gallery fails the clause that it breaks, and is named by it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import gallery_run
import pytest
from gallery_defects import DEFECTS, SOUND

from rulvar.conformance import catalogue

_AT_LEAST = 60


@pytest.mark.storm
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_a_broken_store_fails_the_clause_it_breaks(name: str) -> None:
    assert gallery_run.caught(DEFECTS[name], seed=1) == "failed", DEFECTS[name].words


@pytest.mark.storm
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_store_without_a_defect_passes_what_the_broken_ones_over_it_fail(name: str) -> None:
    named = {each.breaks for each in DEFECTS.values() if each.name.startswith(f"{name}-")}
    row = gallery_run.try_sound(name, named)
    assert row.ok, row.stories
    assert row.clauses == len(named)


def test_every_defect_names_a_clause_that_there_is() -> None:
    known = {clause.id for clause in catalogue()}
    assert {each.breaks for each in DEFECTS.values()} <= known


def test_the_gallery_is_as_large_as_was_promised() -> None:
    assert len(DEFECTS) >= _AT_LEAST
    assert all(number > 0 for number in gallery_run.stores(DEFECTS.values()).values())
    assert set(gallery_run.stores(DEFECTS.values())) == set(SOUND)


def test_every_family_of_clauses_is_broken_by_some_defect() -> None:
    known = {clause.id[0] for clause in catalogue()}
    assert set(gallery_run.families(DEFECTS.values())) == known


def test_every_defect_says_what_is_wrong_in_words_of_its_own() -> None:
    told = {(each.name.partition("-")[0], each.words) for each in DEFECTS.values()}
    assert len(told) == len(DEFECTS)
    assert all(each.words and not each.words.endswith(".") for each in DEFECTS.values())


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, gallery_run.__file__, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_script_leaves_with_0_only_when_all_were_caught() -> None:
    ended = _run("--only", "reference-renew-does-nothing", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["caught"], document["seeded"], document["ok"]) == (1, 1, True)
    assert document["defects"][0]["outcomes"] == ["failed"]
    assert [each["ok"] for each in document["sound"]] == [True] * len(SOUND)


def test_a_defect_that_is_not_caught_is_told_and_fails_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "reference-renew-does-nothing"
    monkeypatch.setitem(DEFECTS, name, replace(DEFECTS[name], build=SOUND["reference"].build))
    monkeypatch.setattr(sys, "argv", ["gallery_run.py", "--only", name])
    assert gallery_run.main() == 1
    told = capsys.readouterr().out
    assert "MISSED (passed)" in told
    assert "caught 0 of 1 seeded" in told


@pytest.mark.slow
def test_an_unknown_name_is_an_error_of_the_caller() -> None:
    ended = _run("--only", "reference-no-such")
    assert ended.returncode == 2
    assert "reference-no-such" in ended.stderr
    assert "--list" in ended.stderr


@pytest.mark.slow
def test_the_list_names_every_defect_and_how_many_there_are() -> None:
    ended = _run("--list")
    assert ended.returncode == 0, ended.stderr
    *names, total = ended.stdout.splitlines()
    assert [line.split()[0] for line in names] == list(DEFECTS)
    assert total.startswith(f"{len(DEFECTS)} broken stores (")
