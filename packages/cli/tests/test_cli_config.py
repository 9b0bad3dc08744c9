"""Where the settings come from, in which order, and what is said when they are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rulvar.cli.config import find_project, read_setting
from rulvar.cli.store_access import store_url
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write_project(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_what_is_given_wins_over_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, '[tool.rulvar]\nstore = "sqlite:///project.db"\n')
    monkeypatch.chdir(tmp_path)
    assert read_setting("store", "sqlite:///flag.db").value == "sqlite:///flag.db"
    assert read_setting("store", None).value == "sqlite:///project.db"


def test_a_broken_project_file_is_not_read_when_the_setting_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, "no toml")
    monkeypatch.chdir(tmp_path)
    assert read_setting("app", "flows").value == "flows"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_setting("app", None)


def test_a_missing_setting_names_all_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, '[tool.rulvar]\napp = "flows"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_setting("store", None)
    for way in ("--store", "RULVAR_STORE", "[tool.rulvar]", "pyproject.toml"):
        assert way in str(caught.value)


def test_the_nearest_project_with_a_table_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, '[tool.rulvar]\napp = "outer"\n')
    write_project(tmp_path / "member", "[project]\nname = 'member'\n")
    inner = tmp_path / "member" / "deep"
    inner.mkdir()
    monkeypatch.chdir(inner)
    setting = read_setting("app", None)
    assert (setting.value, setting.folder) == ("outer", tmp_path)
    write_project(tmp_path / "member", '[tool.rulvar]\napp = "near"\n')
    assert read_setting("app", None).value == "near"


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("[tool.rulvar]\nstores = 'sqlite://'\n", "no setting 'stores'"),
        ("[tool.rulvar]\nstore = 7\n", "must be a string"),
        ("[tool.rulvar]\nstore = ''\n", "must be a string"),
        ("[tool]\nrulvar = 3\n", "must be a table"),
    ],
)
def test_a_wrong_table_is_refused_with_the_file_named(
    tmp_path: Path, table: str, complaint: str
) -> None:
    write_project(tmp_path, table)
    with pytest.raises(ConfigError, match=complaint) as caught:
        find_project(tmp_path)
    assert str(tmp_path / "pyproject.toml") in str(caught.value)


def test_a_projects_relative_path_starts_at_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, '[tool.rulvar]\nstore = "sqlite:///runs.db?durability=normal"\n')
    inner = tmp_path / "deep"
    inner.mkdir()
    monkeypatch.chdir(inner)
    url = store_url(None)
    assert url.local_path() == tmp_path / "runs.db"
    assert url.query == {"durability": "normal"}
    # A flag starts from the current folder, as everywhere else.
    assert store_url("sqlite:///runs.db").local_path() == inner / "runs.db"


@pytest.mark.parametrize("url", ["sqlite:////var/runs.db", "memory://", "acme://host/name"])
def test_a_projects_other_urls_are_taken_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    write_project(tmp_path, f'[tool.rulvar]\nstore = "{url}"\n')
    inner = tmp_path / "deep"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert str(store_url(None)) == url
