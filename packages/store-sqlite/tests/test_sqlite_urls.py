"""URLs of the SQLite store, through `open_stores`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import ConfigError
from rulvar.core.urls import StoreURL
from rulvar.stores.sqlite.plugin import rulvar_open_stores
from rulvar.stores.sqlite.store import SqliteStore
from rulvar.stores.sqlite.transcripts import SqliteTranscripts

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.stores import Stores


# --- the URL ------------------------------------------------------------------------------


def opened(url: str) -> Stores:
    stores = rulvar_open_stores(StoreURL.parse(url))
    assert stores is not None
    return stores


def test_urls_open_the_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "sqlite:///runs.db": str(tmp_path / "runs.db"),
        f"sqlite:///{tmp_path}/abs.db": str(tmp_path / "abs.db"),
        "sqlite://": ":memory:",
        "sqlite:///:memory:": ":memory:",
    }
    for url, path in places.items():
        with opened(url) as stores:
            assert isinstance(stores.journal, SqliteStore)
            assert isinstance(stores.transcripts, SqliteTranscripts)
            assert stores.journal.transcripts() is stores.transcripts
            assert stores.journal.path == path
            assert stores.journal.lease_ttl_ms == 60_000
    options = "lease_ttl_ms=9000&busy_timeout_ms=2000&durability=normal"
    url = f"sqlite:///runs.db?{options}&allow_network_filesystem=true&open_timeout_ms=5"
    with opened(url) as stores:
        assert isinstance(stores.journal, SqliteStore)
        assert (stores.journal.lease_ttl_ms, stores.journal.busy_timeout_ms) == (9_000, 2_000)
        assert stores.journal._database.settings.durability == "normal"
        assert stores.journal._database.settings.open_timeout_ms == 5
    assert rulvar_open_stores(StoreURL.parse("acme:///runs.db")) is None


@pytest.mark.parametrize(
    "query",
    ["lease_ttl=1", "lease_ttl_ms=x", "durability=off", "busy_timeout_ms=30000", "lease_ttl_ms=0"],
)
def test_a_wrong_url_option_makes_no_file(
    query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        opened(f"sqlite:///runs.db?{query}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_plugin_imports_no_driver() -> None:
    code = (
        "import sys, rulvar.stores.sqlite.plugin, rulvar.stores.sqlite; "
        "assert 'apsw' not in sys.modules; rulvar.stores.sqlite.SqliteStore; "
        "assert 'apsw' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
